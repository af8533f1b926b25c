#!/usr/bin/env python3
"""Prompts with JSON Schemas: every answer is valid, and the same with and without speculation.

    schemas.py DRAFTING PLAIN PROMPTS      two servers of one model, and the file of prompts; `scripts/client_tests.sh` runs it

A small model may go on for longer than its context in a text that its schema allows, however it ends. So a prompt is asked at
several temperatures until its answer has an end; an answer that ends and is not valid is an error at once.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

import jsonschema

DRAFTING, PLAIN, PROMPTS = sys.argv[1:4]
TRIES = [{"temperature": 0}, *({"temperature": 1, "repetition_penalty": 1.1, "seed": seed} for seed in range(12))]

def ask(base: str, prompt: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    schema = prompt.get("response_schema")
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}} if schema else {"type": "json_object"}
    body = {"messages": prompt["messages"], "response_format": form, "enable_thinking": False, "max_tokens": 1200, **sampling}
    request = urllib.request.Request(
        f"{base}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def check(prompt: dict[str, Any]) -> int:
    """The number of tries until the answer had an end. Each of them is the same with and without speculation."""
    schema = prompt.get("response_schema", {"type": "object"})
    validator = jsonschema.validators.validator_for(schema)(schema)
    for count, sampling in enumerate(TRIES, 1):
        drafted, plain = (ask(base, prompt, sampling) for base in (DRAFTING, PLAIN))
        choice = plain["choices"][0]
        assert drafted["choices"] == plain["choices"], "the text differs with speculation"
        assert plain["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
        if choice["finish_reason"] == "stop":
            validator.validate(json.loads(choice["message"]["content"]))
            return count
    raise AssertionError("no answer had an end")


def main() -> None:
    passed = failed = tries = 0
    with open(PROMPTS, encoding="utf-8") as file:
        prompts = [json.loads(line) for line in file]
    for prompt in prompts:
        name = prompt["id"]
        try:
            tries += check(prompt)
            passed += 1
        except Exception as error:  # noqa: BLE001
            failed += 1
            print(f"failed  {name}: {type(error).__name__}: {str(error)[:300]}")
    print(f"{len(prompts)} prompts, {tries} answers until each had an end")
    print(f"{passed} passed, {failed} failed")
    raise SystemExit(1 if failed else 0)


main()
