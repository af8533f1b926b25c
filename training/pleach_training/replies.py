"""Generates a target's own replies: the text that its drafter learns from.

    python -m pleach_training.replies --target PATH --tokenizer DIR --prompts FILE.jsonl --out DIR --minutes 5

Prompts are JSON lines with `messages` (and `category`, which becomes the split with `--split-by-category`). Each finished
part is one file in DIR, so the same command goes on where it was stopped; `DIR/replies.npz` joins them. Only ids are stored.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .dense_decoder import DenseDecoder, is_dense
from .drafter.data import Replies
from .drafter.targets import is_bundled, open_bundled, open_model, open_tokenizer
from .generation import Decoder, Job, generate
from .library_generation import generate_by_library
from .target.corpus import read_lines
from .target.decode import BundledDecoder
from .target.model import Target

# From a part of the prompts and a seed to their replies.
Write = Callable[[list["Prompt"], int], list[list[int]]]


@dataclass(frozen=True)
class Prompt:
    """Token ids of a rendered conversation, its split and the temperature of its reply."""

    ids: tuple[int, ...]
    split: str
    temperature: float


def read_prompts(
    paths: list[Path], tokenizer: Any, longest: int, heats: tuple[float, ...], by_category: bool, seed: int
) -> list[Prompt]:
    """Prompts of at most `longest` tokens, shuffled; each takes one of the temperatures in turn."""
    found = []
    for path in paths:
        for row in map(_parse, read_lines(path)):
            turns = row["messages"]
            while turns and turns[-1]["role"] == "assistant":
                turns = turns[:-1]
            if not turns:
                continue
            ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
            if len(ids) <= longest:
                found.append((tuple(ids), row["category"] if by_category else "train"))
    order = np.random.default_rng(seed).permutation(len(found))
    return [Prompt(found[i][0], found[i][1], heats[n % len(heats)]) for n, i in enumerate(order)]


def _parse(line: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(line)
    return row


def parts(prompts: list[Prompt], size: int) -> Iterator[list[Prompt]]:
    """Consecutive parts of `size` prompts."""
    for begin in range(0, len(prompts), size):
        yield prompts[begin : begin + size]


def to_replies(prompts: list[Prompt], replies: list[list[int]], stops: tuple[int, ...], wide: bool) -> Replies:
    """One set of sequences."""
    dtype: type[np.uint16] | type[np.uint32] = np.uint32 if wide else np.uint16
    whole = [np.array([*p.ids, *r], dtype=dtype) for p, r in zip(prompts, replies, strict=True)]
    return Replies(
        np.concatenate(whole),
        np.array([len(p.ids) for p in prompts], dtype=np.int64),
        np.array([len(r) for r in replies], dtype=np.int64),
        np.array([p.temperature for p in prompts]),
        np.array([p.split for p in prompts]),
        np.array([bool(r) and r[-1] in stops for r in replies]),
    )


def writer(model: Any, stops: tuple[int, ...], rows: int, max_new: int) -> Write:
    """Generation by a captured step where a decoder knows the model, else by its library."""

    def write(prompts: list[Prompt], seed: int) -> list[list[int]]:
        jobs = [Job(prompt.ids, prompt.temperature) for prompt in prompts]
        capacity = max(len(job.prompt) for job in jobs) + max_new
        decoder = make_decoder(model, min(rows, len(jobs)), capacity)
        if decoder is not None:
            return generate(decoder, jobs, stops, max_new, seed)
        return generate_by_library(model, jobs, stops, rows, max_new, seed)

    return write


def make_decoder(model: Any, rows: int, capacity: int) -> Decoder | None:
    """The decoder that knows the model, if there is one."""
    if isinstance(model, Target):
        return BundledDecoder(model, rows, capacity)
    return DenseDecoder(model, rows, capacity) if is_dense(model) else None


def run(
    write: Write, prompts: list[Prompt], stops: tuple[int, ...], out: Path, size: int, seconds: float, wide: bool
) -> Replies:
    """Generates part after part until all are done or the time is up, then joins them in `out/replies.npz`.

    A part has `size` prompts and its own file. `wide` ids take 32 bits: for vocabularies of more than 65,536 tokens.
    """
    out.mkdir(parents=True, exist_ok=True)
    begin, tokens = time.monotonic(), 0
    for number, part in enumerate(parts(prompts, size)):
        path = out / f"part-{number:05}.npz"
        if path.exists():
            continue
        if time.monotonic() - begin > seconds:
            break
        replies = write(part, number)
        to_replies(part, replies, stops, wide).save(path)
        tokens += sum(map(len, replies))
        print(f"part {number}: {tokens} tokens, {tokens / (time.monotonic() - begin):.0f} tokens/s", flush=True)
    joined = Replies.load(*sorted(out.glob("part-*.npz")))
    joined.save(out / "replies.npz")
    return joined


def stop_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end a reply: the config's, the generation config's and the tokenizer's."""
    if isinstance(model, Target):
        return (model.config.end_of_text_id, model.config.turn_end_id)
    found: set[int] = set()
    for value in (model.config.eos_token_id, model.generation_config.eos_token_id, tokenizer.eos_token_id):
        if value is not None:
            found.update(value if isinstance(value, list) else [value])
    return tuple(sorted(found))


def mean_length(replies: Replies) -> float:
    """Mean tokens of a reply."""
    lengths: NDArray[np.int64] = replies.glen
    return float(lengths.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, help="default: the target's folder")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--rows", type=int, default=1024, help="replies that are written at the same time")
    parser.add_argument("--part", type=int, default=8192, help="prompts of a file")
    parser.add_argument("--max-new", type=int, default=384)
    parser.add_argument("--longest-prompt", type=int, default=400)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--repeat", type=int, default=1, help="replies to each prompt, for temperatures above 0")
    parser.add_argument("--split-by-category", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    model = open_bundled(args.target, args.device) if is_bundled(args.target) else open_model(args.target, args.device)
    tokenizer = open_tokenizer(args.tokenizer or args.target)
    heats = tuple(args.temperatures)
    prompts = read_prompts(args.prompts, tokenizer, args.longest_prompt, heats, args.split_by_category, args.seed)
    # Every turn through the prompts has parts, and so noise, of its own.
    prompts = prompts * args.repeat
    stops = stop_tokens(model, tokenizer)
    write = writer(model, stops, args.rows, args.max_new)
    wide = len(tokenizer) > 1 << 16
    joined = run(write, prompts, stops, args.out, args.part, args.minutes * 60, wide)
    print(f"{len(joined.plen)} replies, {mean_length(joined):.0f} tokens each, {joined.done.mean():.0%} ended")


if __name__ == "__main__":
    main()
