"""Training one model on several GPUs: each process takes its share of a batch, and all make the same update.

Started by `torchrun --nproc-per-node N -m pleach_training.target.train ..`; started alone, a process is its own company.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Company:
    """This process among the `size` that train together."""

    rank: int = 0
    size: int = 1

    @property
    def is_leader(self) -> bool:
        """Whether this process writes logs and checkpoints."""
        return self.rank == 0

    def mean(self, value: Tensor) -> Tensor:
        """The mean of `value` over all processes, without a gradient."""
        if self.size == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)
        return total / self.size

    def agree(self, value: float) -> float:
        """The leader's `value`; the GPU is not waited for."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0)
        return float(shared)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces every gradient by its mean over all processes, in one transfer."""
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        pieces = flat.split([g.numel() for g in gradients])
        torch._foreach_copy_(gradients, [piece.view_as(g) for piece, g in zip(pieces, gradients, strict=True)])


def join_company(device: str) -> Company:
    """The company that `torchrun` started this process in; a process of its own without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Company()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    return Company(dist.get_rank(), size)
