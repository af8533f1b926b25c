"""Rounds of drafting and verifying, replayed over texts that the target wrote itself.

The target's text decides what is accepted, so the loop needs no further pass of the target: a round at an anchor commits the
true path's nodes that its tree holds, and one token more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Tally:
    """Tokens and passes of some replies."""

    tokens: int = 0
    passes: int = 0

    @property
    def tokens_per_pass(self) -> float:
        """Mean tokens that a pass of the target commits."""
        return self.tokens / max(1, self.passes)

    def add(self, accepted: NDArray[np.int64]) -> None:
        """Replays one reply; `accepted[i]` is how many tokens after reply token `i` a round there gains.

        The first round's anchor is the first token, which the prompt's own pass gave.
        """
        at = 0
        while at + 1 < len(accepted):
            gained = min(int(accepted[at]) + 1, len(accepted) - 1 - at)
            self.tokens += gained
            self.passes += 1
            at += gained


def depth_within(ranks: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """How deep the true path goes in trees of `budget` rows, root included: `ranks` `[.., depths]` count from 1."""
    return np.cumprod(ranks <= budget - 1, axis=-1).sum(-1)
