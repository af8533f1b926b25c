"""Whether Hugging Face, our own step and Pleach write the same greedy tokens.

    python -m pleach_training.evaluate.agreement --model DIR --run DIR --pleach BINARY --prompts FILE.jsonl .. --num 20

`--run` is the training run that DIR was exported from, unquantized. Where two answers part, the gap between the two likeliest
tokens there is shown: rounding decides a near tie.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from ..drafter.targets import open_model, open_run
from ..generation import Job, generate
from ..target.corpus import read_lines
from ..target.decode import BundledDecoder


def pleach_ids(binary: Path, model: Path, messages: list[dict[str, str]], length: int) -> tuple[list[int], list[int]]:
    """The prompt's ids and the answer's, as Pleach has them."""
    asked = ["run", str(model), "--messages", "-", "--temperature", "0", "--max-tokens", str(length), "--json"]
    out = subprocess.run([str(binary), *asked], input=json.dumps(messages), capture_output=True, text=True, check=True)
    answer = json.loads(out.stdout)
    return answer["prompt_ids"], answer["output_ids"]


def parting(a: list[int], b: list[int]) -> int | None:
    """The first place where two answers differ; an end token that one of them leaves out is no difference."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if abs(len(a) - len(b)) <= 1 else min(len(a), len(b))


@torch.no_grad()
def gap(model: Any, ids: list[int]) -> float:
    """The difference of the two largest logits that follow `ids`."""
    best = model(torch.tensor([ids])).logits[0, -1].topk(2).values
    return float(best[0] - best[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--pleach", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--num", type=int, default=20)
    parser.add_argument("--length", type=int, default=48)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    library = open_model(args.model, "cpu")
    stops = tuple(library.generation_config.eos_token_id)
    each = -(-args.num // len(args.prompts))
    rows = [json.loads(line) for path in args.prompts for line in list(read_lines(path))[:each]]
    conversations = [row["messages"] for row in rows][: args.num]
    prompts: Any = [
        tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
        for turns in conversations
    ]
    decoder = BundledDecoder(open_run(args.run, "cpu"), len(prompts), max(map(len, prompts)) + args.length)
    ours = generate(decoder, [Job(tuple(ids), 0.0) for ids in prompts], stops, args.length, seed=0)
    same = {"library": 0, "pleach": 0}
    for turns, prompt, mine in zip(conversations, prompts, ours, strict=True):
        out = library.generate(torch.tensor([prompt]), max_new_tokens=args.length, do_sample=False)
        asked, theirs = pleach_ids(args.pleach, args.model, turns, args.length)
        assert asked == prompt, "the prompt is tokenized differently"
        for name, other in (("library", out[0, len(prompt) :].tolist()), ("pleach", theirs)):
            at = parting(mine, other)
            same[name] += at is None
            if at is not None:
                print(f"{name} parts after {at} tokens, gap {gap(library, [*prompt, *mine[:at]]):.2e}", flush=True)
    print(f"{len(prompts)} prompts; same as our step: {same}")


if __name__ == "__main__":
    main()
