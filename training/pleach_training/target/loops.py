"""Makes a target unlearn its own repetition loops: packs replies that end in one, the repeated tokens marked to be avoided.

    python -m pleach_training.target.loops --replies FILE.npz .. --out PACKED/loops.npz

Training that finds the file in its folder of packed data lowers the probability of those tokens (unlikelihood training on a
model's own text, arXiv:1908.04319), while the other groups keep the rest of the model where it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..drafter.data import Replies, loop_period
from .data import AVOID, PROMPT, Documents


def first_repeat(reply: NDArray, period: int) -> int:
    """Where the loop with `period` that ends `reply` begins to repeat: the second time of its first token."""
    differs = np.flatnonzero(reply[period:] != reply[:-period])
    return period + (int(differs[-1]) + 1 if len(differs) else 0)


def marked(ids: NDArray, prompt: int, longest: int) -> tuple[NDArray[np.uint16], NDArray[np.uint8]] | None:
    """A sequence up to `longest` repeated tokens, and its roles; `None` if its reply does not loop."""
    reply = ids[prompt:]
    period = loop_period(reply)
    if period is None:
        return None
    begin = prompt + first_repeat(reply, period)
    kept = ids[: begin + longest].astype(np.uint16)
    role = np.where(np.arange(len(kept)) < begin, PROMPT, AVOID).astype(np.uint8)
    return kept, role


def pack(replies: Replies, longest: int) -> Documents:
    """The replies that loop."""
    at = replies.offsets
    found = [marked(replies.ids[at[i] : at[i + 1]], int(replies.plen[i]), longest) for i in range(len(replies.plen))]
    return Documents.join([each for each in found if each is not None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--replies", type=Path, nargs="+", required=True, help="of the target itself, greedy ones most of all"
    )
    parser.add_argument("--longest", type=int, default=96, help="repeated tokens of a reply that are avoided")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    documents = pack(Replies.load(*args.replies), args.longest)
    documents.save(args.out)
    avoided = int((documents.role == AVOID).sum())
    print(f"{len(documents.offsets) - 1} replies loop, {avoided} tokens to avoid")


if __name__ == "__main__":
    main()
