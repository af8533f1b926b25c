"""The drafter's loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def position_weights(block_size: int, gamma: float, device: torch.device) -> Tensor:
    """`exp(-(k - 1) / gamma)` for rows k = 1 .. block_size - 1: early rows decide more."""
    return torch.exp(-torch.arange(block_size - 1, device=device, dtype=torch.float32) / gamma)


def draft_loss(
    hidden: Tensor, target: Tensor, head: Tensor, labels: Tensor, weight: Tensor, kl_share: float
) -> tuple[Tensor, Tensor]:
    """Mean of `kl_share` KL(target || drafter) + the rest cross-entropy, by `weight`; and where the argmax is the label.

    `hidden`, `target` `[rows, hidden]`: the drafter's rows, and the target's hidden states that predict the same tokens.
    `head` `[draft_vocab, hidden]`; the target's distribution is renormalized on it. `labels` `[rows]` are places in the
    draft vocabulary, -1 where the true token is not in it (such rows learn from the distribution alone).
    """
    scores = F.linear(hidden, head).float()
    log_q = scores - scores.logsumexp(-1, keepdim=True)
    p = F.linear(target, head).float().softmax(-1)
    soft = -(p * log_q).sum(-1)
    known = labels >= 0
    hard = -log_q.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    loss = kl_share * soft + (1 - kl_share) * torch.where(known, hard, 0.0)
    hit = (scores.argmax(-1) == labels) & known
    return (loss * weight).sum() / weight.sum().clamp(min=1e-6), hit
