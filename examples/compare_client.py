#!/usr/bin/env python3
"""Asks a server one question and says how fast the answer came, and how many tokens each pass gave.

    pleach serve --model MODEL &
    examples/compare_client.py "Write a Python function that merges two sorted lists"
    examples/compare_client.py --base-url http://127.0.0.1:8080/v1 "..."     # any other server of the same protocol

Nothing but Python's standard library is needed. A server that does not count its passes leaves the last figure out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any


def events(response: Any) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event, up to `[DONE]`. Comments, which keep the connection alive, are left out."""
    for raw in response:
        line = raw.decode("utf-8").rstrip("\r\n")
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        yield json.loads(data)


def request(args: argparse.Namespace) -> urllib.request.Request:
    body = {
        "model": args.model,
        "messages": [{"role": "user", "content": args.prompt}],
        "temperature": 0,
        "max_tokens": args.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    headers = {"content-type": "application/json"}
    if args.api_key:
        headers["authorization"] = f"Bearer {args.api_key}"
    return urllib.request.Request(args.base_url.rstrip("/") + "/chat/completions", json.dumps(body).encode(), headers)


def follow(response: Any, started: float) -> dict[str, Any]:
    """Prints the answer as it comes, and returns its usage with the times."""
    usage: dict[str, Any] = {}
    first = None
    for event in events(response):
        if "error" in event:
            raise SystemExit(f"error: {event['error'].get('message', event['error'])}")
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                first = first or time.monotonic()
                sys.stdout.write(text)
                sys.stdout.flush()
    ended = time.monotonic()
    return usage | {"first_s": (first or ended) - started, "decode_s": ended - (first or ended)}


def report(usage: dict[str, Any]) -> str:
    tokens = usage.get("completion_tokens", 0)
    parts = [f"{tokens} tokens", f"first after {usage['first_s']:.3f} s"]
    if tokens > 1 and usage["decode_s"] > 0:
        parts.append(f"{(tokens - 1) / usage['decode_s']:.1f} tokens/s")
    passes = usage.get("spec_verify_ct")
    if passes:
        # The first token comes from the prompt's pass.
        parts.append(f"{(tokens - 1) / passes:.2f} tokens per pass")
    return ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a server one question and time the answer.")
    parser.add_argument("prompt")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="default")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--api-key", default="")
    args = parser.parse_args()
    started = time.monotonic()
    try:
        with urllib.request.urlopen(request(args), timeout=600) as response:
            usage = follow(response, started)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"error: {error.code}: {error.read().decode(errors='replace')}") from None
    except urllib.error.URLError as error:
        raise SystemExit(f"error: no answer from {args.base_url}: {error.reason}") from None
    print(f"\n{report(usage)}", file=sys.stderr)


if __name__ == "__main__":
    main()
