"""Whether Hugging Face, our own step and Pleach write the same greedy tokens, all in f32 on the CPU.

    python -m pleach_training.evaluate.agreement --model PATH --pleach BINARY --prompts FILE.jsonl .. --num 20

PATH is a folder of the bundled model, as shipped, or of a dense model, or a GGUF file. Where two answers part, the gap
between the two likeliest tokens there is shown: rounding decides a near tie. Ends with an error if an answer parts elsewhere.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import torch

from ..drafter.targets import is_bundled, open_bundled, open_model, open_tokenizer
from ..generation import Job, generate
from ..replies import make_decoder, stop_tokens
from ..target.corpus import read_lines

# Logits of f32 implementations differ by less than this.
NEAR_TIE = 1e-3


def pleach_ids(binary: Path, model: Path, messages: list[dict[str, str]], length: int) -> tuple[list[int], list[int]]:
    """The prompt's ids and the answer's, as Pleach has them."""
    asked = ["run", str(model), "--messages", "-", "--temperature", "0", "--max-tokens", str(length), "--json"]
    asked += ["--activations", "exact", "--kv-cache", "f32"]
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
    parser.add_argument("--pleach", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--num", type=int, default=20)
    parser.add_argument("--length", type=int, default=48)
    args = parser.parse_args()
    tokenizer, library = open_tokenizer(args.model), open_model(args.model, "cpu")
    ours = open_bundled(args.model, "cpu") if is_bundled(args.model) else library
    stops = stop_tokens(library, tokenizer)
    each = -(-args.num // len(args.prompts))
    rows = [json.loads(line) for path in args.prompts for line in list(read_lines(path))[:each]]
    conversations = [row["messages"] for row in rows][: args.num]
    prompts: Any = [
        tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
        for turns in conversations
    ]
    decoder = make_decoder(ours, len(prompts), max(map(len, prompts)) + args.length)
    if decoder is None:
        raise SystemExit(f"{args.model}: no decoder of ours knows this model")
    written = generate(decoder, [Job(tuple(ids), 0.0) for ids in prompts], stops, args.length, seed=0)
    same, wrong = {"library": 0, "pleach": 0}, 0
    for turns, prompt, mine in zip(conversations, prompts, written, strict=True):
        limits = {"max_new_tokens": args.length, "eos_token_id": list(stops), "pad_token_id": stops[0]}
        out = library.generate(torch.tensor([prompt]), do_sample=False, **limits)
        asked, theirs = pleach_ids(args.pleach, args.model, turns, args.length)
        if asked != prompt:
            raise SystemExit(f"{args.model}: Pleach tokenizes a prompt as {asked}, the library as {prompt}")
        for name, other in (("library", out[0, len(prompt) :].tolist()), ("pleach", theirs)):
            at = parting(mine, other)
            same[name] += at is None
            if at is not None:
                apart = gap(library, [*prompt, *mine[:at]])
                wrong += apart > NEAR_TIE
                print(f"{name} parts after {at} tokens, gap {apart:.2e}", flush=True)
    print(f"{len(prompts)} prompts; same as our step: {same}")
    if wrong:
        raise SystemExit(f"{wrong} answers part where there is no near tie")


if __name__ == "__main__":
    main()
