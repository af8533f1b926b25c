"""Generates a target's own replies: the text that its drafter learns from.

    python -m pleach_training.replies --target PATH --tokenizer DIR --prompts FILE.jsonl --out DIR --minutes 5

Prompts are JSON lines with `messages` (and `category`, which becomes the split with `--split-by-category`). Each finished
batch is one file in DIR, so the same command goes on where it was stopped; `DIR/replies.npz` joins them. Only ids are stored.
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
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache

from .drafter.data import Replies
from .drafter.targets import is_run, open_model, open_run
from .target import decode
from .target.corpus import read_lines
from .target.model import Target


@dataclass(frozen=True)
class Prompt:
    """Token ids of a rendered conversation, its split and the temperature of its reply."""

    ids: tuple[int, ...]
    split: str
    temperature: float


# From a batch of prompts and a seed to their replies.
Write = Callable[[list["Prompt"], int], list[list[int]]]


@torch.no_grad()
def generate(
    model: Any, prompts: list[Prompt], stops: tuple[int, ...], max_new: int, generator: torch.Generator
) -> list[list[int]]:
    """Replies to all prompts in one batch, stop token included; rows that have ended leave the batch."""
    device = next(model.parameters()).device
    longest = max(len(p.ids) for p in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):
        ids[i, longest - len(prompt.ids) :] = torch.tensor(prompt.ids)
        mask[i, longest - len(prompt.ids) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    heat = torch.tensor([p.temperature for p in prompts], device=device).unsqueeze(1)
    stop_ids = torch.tensor(stops, device=device)
    rows = torch.arange(len(prompts), device=device)
    replies = torch.full((len(prompts), max_new), -1, dtype=torch.long, device=device)
    cache = DynamicCache(config=model.config)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for step in range(max_new):
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        chosen = choose(out.logits[:, -1].float(), heat, generator)
        replies[rows, step] = chosen
        going = ~torch.isin(chosen, stop_ids)
        # Leaving costs a copy of the cache, so rows leave in groups.
        if step % 32 == 31:
            going = (replies[rows].unsqueeze(-1) != stop_ids).all(-1).all(-1)
            if not going.any():
                break
            if not going.all():
                keep = going.nonzero().flatten()
                keep_rows(cache, keep)
                rows, mask, heat, chosen, positions = (x[keep] for x in (rows, mask, heat, chosen, positions))
        ids = chosen.unsqueeze(1)
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
        positions = positions[:, -1:] + 1
    return [_until_stop(reply, stops) for reply in replies.tolist()]


def keep_rows(cache: Any, rows: Tensor) -> None:
    """Keeps some sequences of a cache; layers with a recurrent state have no method for that."""
    for layer in cache.layers:
        if hasattr(layer, "batch_select_indices"):
            layer.batch_select_indices(rows)
            continue
        for states in (layer.conv_states, layer.recurrent_states):
            for name in states:
                states[name] = states[name][rows]


def choose(logits: Tensor, heat: Tensor, generator: torch.Generator) -> Tensor:
    """Greedy where the temperature is 0, else a draw by Gumbel-max."""
    uniform = torch.rand(logits.shape, device=logits.device, generator=generator).clamp(min=1e-20)
    noise = -torch.log(-torch.log(uniform))
    return (logits + heat * noise).argmax(-1)


def _until_stop(reply: list[int], stops: tuple[int, ...]) -> list[int]:
    for i, token in enumerate(reply):
        if token in stops:
            return reply[: i + 1]
        if token < 0:
            return reply[:i]
    return reply


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


def batches(prompts: list[Prompt], size: int) -> Iterator[list[Prompt]]:
    """Batches of similar prompt length; the order of batches is the order of the shuffled prompts."""
    group = 16 * size
    for begin in range(0, len(prompts), group):
        part = sorted(prompts[begin : begin + group], key=lambda p: len(p.ids))
        for at in range(0, len(part), size):
            yield part[at : at + size]


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


def write_with(model: Any, stops: tuple[int, ...], max_new: int) -> Write:
    """Generation by a Hugging Face model, or faster by the bundled model's own step."""
    if isinstance(model, Target):

        def write(batch: list[Prompt], seed: int) -> list[list[int]]:
            heats = [p.temperature for p in batch]
            return decode.generate(model, [list(p.ids) for p in batch], heats, stops, max_new, seed)

        return write
    device = next(model.parameters()).device
    return lambda batch, seed: generate(model, batch, stops, max_new, torch.Generator(device).manual_seed(seed))


def run(
    write: Write, prompts: list[Prompt], stops: tuple[int, ...], out: Path, size: int, seconds: float, wide: bool
) -> Replies:
    """Generates batch after batch until all are done or the time is up, then joins them in `out/replies.npz`.

    `wide` ids take 32 bits: for vocabularies of more than 65,536 tokens.
    """
    out.mkdir(parents=True, exist_ok=True)
    begin, tokens = time.monotonic(), 0
    for number, batch in enumerate(batches(prompts, size)):
        path = out / f"batch-{number:05}.npz"
        if path.exists():
            continue
        if time.monotonic() - begin > seconds:
            break
        replies = write(batch, number)
        to_replies(batch, replies, stops, wide).save(path)
        tokens += sum(map(len, replies))
        print(f"batch {number}: {tokens} tokens, {tokens / (time.monotonic() - begin):.0f} tokens/s", flush=True)
    joined = Replies.load(*sorted(out.glob("batch-*.npz")))
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
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--max-new", type=int, default=384)
    parser.add_argument("--longest-prompt", type=int, default=400)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--split-by-category", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    model = open_run(args.target, args.device) if is_run(args.target) else open_model(args.target, args.device)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer or args.target)
    heats = tuple(args.temperatures)
    prompts = read_prompts(args.prompts, tokenizer, args.longest_prompt, heats, args.split_by_category, args.seed)
    stops = stop_tokens(model, tokenizer)
    write = write_with(model, stops, args.max_new)
    wide = len(tokenizer) > 1 << 16
    joined = run(write, prompts, stops, args.out, args.batch, args.minutes * 60, wide)
    print(f"{len(joined.plen)} replies, {mean_length(joined):.0f} tokens each, {joined.done.mean():.0%} ended")


if __name__ == "__main__":
    main()
