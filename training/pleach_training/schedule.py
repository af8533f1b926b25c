"""Learning-rate schedules that follow the clock as well as the step: a run that is given minutes ends on time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class WarmupStableDecay:
    """Linear warm-up over `warmup` steps, constant, then a decay over the last `decay_share` of the run."""

    warmup: int
    decay_share: float
    floor: float = 0.0

    def factor(self, step: int, progress: float) -> float:
        """Share of the peak rate at `step`; `progress` is the share of the run that has passed, from 0 to 1."""
        rise = min(1.0, (step + 1) / self.warmup)
        left = max(0.0, 1.0 - progress)
        fall = min(1.0, left / self.decay_share) if self.decay_share > 0 else 1.0
        return rise * (self.floor + (1.0 - self.floor) * fall)

    def is_decaying(self, progress: float) -> bool:
        """Whether the last part of the run has begun."""
        return progress > 1.0 - self.decay_share


@dataclass(frozen=True)
class WarmupCosine:
    """Linear warm-up over `warmup` steps, then half a cosine down to `floor`."""

    warmup: int
    floor: float = 0.1

    def factor(self, step: int, progress: float) -> float:
        """Share of the peak rate at `step`; `progress` is the share of the run that has passed, from 0 to 1."""
        rise = min(1.0, (step + 1) / self.warmup)
        return rise * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
