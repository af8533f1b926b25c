#!/usr/bin/env python3
"""Compare greedy token ids of `pleach` with those of llama.cpp's server on the same GGUF file.

    scripts/compare_llamacpp.py --server LLAMA_SERVER --model FILE.gguf --prompts DIR_OR_FILES... [--pleach target/release/pleach]
                                [--tokens 32] [--count 40] [--json out.json]

`--prompts` names JSON-lines files with a `messages` list per line, as chat clients send them; `--count` prompts are
taken evenly over the files. `pleach` renders the template and gives prompt ids, greedy ids and the best five
log-probabilities of each step; llama.cpp continues from exactly those prompt ids with greedy sampling. At the first
difference both tokens are listed with the gap between them in the log-probabilities of each engine: a small gap on both
sides is a near-tie, which two ways of rounding may settle differently.
"""
import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def post(port: int, path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


def start_server(server: str, model: str) -> tuple[subprocess.Popen, int]:
    port = free_port()
    command = [server, "-m", model, "--port", str(port), "-c", "4096", "-np", "1", "--no-warmup", "-t", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return process, port
        except OSError:
            if process.poll() is not None:
                sys.exit(f"{server} ended with status {process.returncode}")
            time.sleep(0.1)
    process.kill()
    sys.exit(f"{server} did not become healthy in 60 s")


def read_prompts(paths: list[Path], count: int) -> list[dict]:
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    rows = [[json.loads(line) for line in file.open()] for file in files]
    per_file = -(-count // len(rows))
    picked = [row for lines in rows for row in lines[:: max(1, len(lines) // per_file)][:per_file]]
    return picked[:count]


def ours(pleach: str, model: str, messages: list[dict], tokens: int, activations: str) -> dict:
    command = [pleach, "run", model, "--messages", "-", "--json", "--temperature", "0", "--logprobs", "5",
               "--max-tokens", str(tokens), "--ctx", "4096", "--activations", activations]  # fmt: skip
    done = subprocess.run(command, input=json.dumps(messages), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"error": done.stderr.strip()}
    return json.loads(done.stdout)


def theirs(port: int, prompt_ids: list[int], tokens: int) -> tuple[list[int], list[dict]]:
    """Greedy ids, and the probabilities of each step (the server leaves out steps inside a character)."""
    body = {"prompt": prompt_ids, "n_predict": tokens, "temperature": 0, "top_k": 1, "n_probs": 5,
            "return_tokens": True, "cache_prompt": False, "samplers": ["top_k"]}  # fmt: skip
    answer = post(port, "/completion", body)
    return answer["tokens"], answer["completion_probabilities"]


def gap(top: list[dict], best: int, other: int) -> float | None:
    """Log-probability of `best` minus that of `other`, if both are listed."""
    logprobs = {entry["id"]: entry["logprob"] for entry in top}
    return round(logprobs[best] - logprobs[other], 3) if best in logprobs and other in logprobs else None


def compare(mine: dict, other: list[int], steps: list[dict], tokens: int) -> dict:
    pairs = list(zip(mine["output_ids"], other))
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if place is None:
        return {"equal": len(pairs), "tokens": min(len(mine["output_ids"]), tokens)}
    a, b = pairs[place]
    return {
        "equal": place,
        "ours": a,
        "theirs": b,
        "our_gap": gap(mine["logprobs"][place]["top"], a, b),
        "their_gap": gap(steps[place]["top_logprobs"], b, a) if len(steps) == len(other) else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True, nargs="+", type=Path)
    parser.add_argument("--pleach", default="target/release/pleach")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--activations", default="int8", choices=["int8", "exact"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    process, port = start_server(args.server, args.model)
    try:
        results = []
        for row in read_prompts(args.prompts, args.count):
            mine = ours(args.pleach, args.model, row["messages"], args.tokens, args.activations)
            if "error" in mine:
                results.append({"id": row["id"], "error": mine["error"]})
            else:
                other, steps = theirs(port, mine["prompt_ids"], args.tokens)
                found = compare(mine, other, steps, args.tokens)
                results.append({"id": row["id"], "prompt_tokens": len(mine["prompt_ids"]), **found})
            print(json.dumps(results[-1]), flush=True)
    finally:
        process.kill()
    same = sum("ours" not in result and "error" not in result for result in results)
    print(f"{same} of {len(results)} prompts: equal greedy ids over the whole run")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
