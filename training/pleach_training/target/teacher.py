"""Turns a teacher's replies into conversations: learning from a larger model's text (sequence-level distillation).

    python -m pleach_training.target.teacher --gguf FILE --replies FILE.npz --out teacher.jsonl

Replies that were cut off or ended in a loop are left out, and so are those that name the teacher, that refuse, that ask for a
translation or JSON, which this teacher cannot write, and those with Python that does not parse.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from tokenizers import decoders

from ..drafter.data import Replies
from ..evaluate.answers import parses, python_of
from ..gguf import read_metadata

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
LEFT_OUT = (
    "SmolLM",
    "Hugging Face",
    "I'm sorry",
    "I apologize",
    "as an AI",
    "As an AI",
    "AI assistant",
    "Alex",
    "[Your",
    "misunderstanding",
)
UNFIT = re.compile(r"translat|json|^[A-D]\. ", re.IGNORECASE | re.MULTILINE)


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


def is_fit(turns: list[dict[str, str]], left_out: tuple[str, ...]) -> bool:
    """Whether a conversation is worth learning from."""
    asked, reply = turns[0]["content"], turns[-1]["content"]
    if len(turns) != 2 or UNFIT.search(asked) or any(words in reply for words in left_out):
        return False
    code = python_of(reply)
    return code is None or parses(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True, help="the teacher, for its vocabulary")
    parser.add_argument("--replies", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--leave-out", nargs="*", default=list(LEFT_OUT))
    parser.add_argument("--held-out", type=Path, help="a file for one conversation in a hundred")
    parser.add_argument("--shortest", type=int, default=8, help="tokens of a reply")
    args = parser.parse_args()
    replies, words = Replies.load(*args.replies), Detokenizer(args.gguf)
    usable = (replies.split == "train") & replies.done & ~replies.looping() & (replies.glen >= args.shortest)
    at, kept = replies.offsets, 0
    held = args.held_out.open("w", encoding="utf-8") if args.held_out else None
    with args.out.open("w", encoding="utf-8") as file:
        for i in usable.nonzero()[0]:
            turns = parse_turns(words.text(replies.ids[at[i] : at[i + 1]].tolist()))
            turns = [turn for turn in turns if turn["role"] != "system"]
            if not is_fit(turns, tuple(args.leave_out)):
                continue
            row = {"source": "teacher", "category": "teacher", "licence": "Apache-2.0", "messages": turns}
            kept += 1
            target = held if held and kept % 100 == 0 else file
            target.write(json.dumps(row, ensure_ascii=False) + "\n")
    if held:
        held.close()
    print(f"{kept} of {len(usable)} replies written")


if __name__ == "__main__":
    main()
