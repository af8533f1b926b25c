"""Turns a teacher's replies into conversations: learning from a larger model's text (sequence-level distillation).

    python -m pleach_training.target.teacher --gguf FILE --replies FILE.npz --out teacher.jsonl

Replies that were cut off or ended in a loop are left out, and so are those that name the teacher.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import decoders

from ..drafter.data import Replies
from ..gguf import read_metadata

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"


class Detokenizer:
    """Token ids to text by a GGUF file's byte-level vocabulary."""

    def __init__(self, gguf: Path) -> None:
        self._tokens: list[str] = read_metadata(gguf)["tokenizer.ggml.tokens"]
        self._decoder = decoders.ByteLevel()

    def text(self, ids: list[int]) -> str:
        """The text of `ids`, added tokens spelled out."""
        return self._decoder.decode([self._tokens[i] for i in ids])


def parse_turns(text: str) -> list[dict[str, str]]:
    """The turns of a rendered ChatML conversation; the last one may lack its end."""
    turns = []
    for part in text.split(TURN_START)[1:]:
        role, _, content = part.partition("\n")
        turns.append({"role": role, "content": content.rpartition(TURN_END)[0] or content})
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True, help="the teacher, for its vocabulary")
    parser.add_argument("--replies", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--leave-out", nargs="*", default=["SmolLM", "Hugging Face"])
    parser.add_argument("--shortest", type=int, default=8, help="tokens of a reply")
    args = parser.parse_args()
    replies, words = Replies.load(*args.replies), Detokenizer(args.gguf)
    usable = (replies.split == "train") & replies.done & ~replies.looping() & (replies.glen >= args.shortest)
    at, kept = replies.offsets, 0
    with args.out.open("w", encoding="utf-8") as file:
        for i in usable.nonzero()[0]:
            turns = parse_turns(words.text(replies.ids[at[i] : at[i + 1]].tolist()))
            turns = [turn for turn in turns if turn["role"] != "system"]
            if any(name in turns[-1]["content"] for name in args.leave_out):
                continue
            row = {"source": "teacher", "category": "teacher", "licence": "Apache-2.0", "messages": turns}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            kept += 1
    print(f"{kept} of {len(usable)} replies written")


if __name__ == "__main__":
    main()
