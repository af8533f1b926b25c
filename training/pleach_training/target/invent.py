"""Lets a teacher invent prompts: a chat model, given the beginning of a user's turn, goes on with a question of its own.

    python -m pleach_training.target.invent --target PATH --count 16384 --out invented.jsonl

Such prompts are many and different, and of the kind that the teacher answers best. Source: arXiv:2406.08464.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..drafter.targets import open_model, open_tokenizer
from ..replies import Prompt, stop_tokens, writer

_MARK = "MARK"


def opening(tokenizer: Any) -> list[int]:
    """The ids of a conversation up to where the user's first words would stand."""
    turns = [{"role": "user", "content": _MARK}]
    text: str = tokenizer.apply_chat_template(turns, add_generation_prompt=False, tokenize=False)
    ids: list[int] = tokenizer(text.split(_MARK)[0], add_special_tokens=False).input_ids
    return ids


def ended(replies: Iterable[list[int]], stops: tuple[int, ...]) -> Iterator[list[int]]:
    """The replies that ended by themselves, without their end."""
    return (reply[:-1] for reply in replies if reply and reply[-1] in stops)


def distinct(texts: Iterable[str], least: int = 12) -> list[str]:
    """Each text once, in order, those of fewer than `least` characters left out."""
    stripped = (text.strip() for text in texts)
    return list(dict.fromkeys(text for text in stripped if len(text) >= least))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="the teacher, a chat model")
    parser.add_argument("--count", type=int, default=16384, help="attempts; some are too long or come twice")
    parser.add_argument("--longest", type=int, default=96, help="tokens of a prompt")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    model, tokenizer = open_model(args.target, args.device), open_tokenizer(args.target)
    stops = stop_tokens(model, tokenizer)
    begin = Prompt(tuple(opening(tokenizer)), "train", args.temperature)
    replies = writer(model, stops, args.rows, args.longest)([begin] * args.count, args.seed)
    found = distinct(tokenizer.decode(ids, skip_special_tokens=True) for ids in ended(replies, stops))
    with args.out.open("w", encoding="utf-8") as file:
        for text in found:
            row = {"category": "chat", "messages": [{"role": "user", "content": text}]}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{len(found)} prompts of {args.count} attempts")


if __name__ == "__main__":
    main()
