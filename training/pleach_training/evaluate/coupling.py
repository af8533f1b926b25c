"""Drafts for sampled text that know the noise of the draw, as an engine with keyed noise has them.

Above temperature 0 the token at a position is the argmax of `log p + G`, and a drafter that knows `G` orders its guesses by
`softmax(log q + G)`. A recorded reply does not hold its noise, but its posterior is known: given which token won, the largest
perturbed score has a Gumbel distribution, and the others are Gumbel variables below it (arXiv:1411.0030, section 4).

The engine divides `log q + G` by 1.5; here the noise is believed fully.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Mean of standard Gumbel noise: what the noise of tokens outside the candidates is taken for.
MEAN_NOISE = 0.5772157


def gumbel(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Standard Gumbel noise, f32 on the generator's device."""
    uniform = torch.rand(shape, generator=generator, device=generator.device).clamp(1e-12, 1 - 1e-7)
    return -torch.log(-torch.log(uniform))


def posterior_noise(log_p: Tensor, drawn: Tensor, generator: torch.Generator) -> Tensor:
    """Noise `[.., candidates]` of tokens with log-probabilities `log_p`, given which one was drawn.

    `drawn` `[..]` is the winner's place among the candidates, -1 if it is none of them.
    """
    highest = gumbel(drawn.shape, generator).unsqueeze(-1)
    free = log_p + gumbel(log_p.shape, generator)
    below = -torch.logaddexp(-highest, -free)
    places = torch.arange(log_p.shape[-1], device=log_p.device)
    scores = torch.where(places == drawn.unsqueeze(-1), highest, below)
    return scores - log_p


def foresee(log_q: Tensor, noise: Tensor) -> Tensor:
    """Log-beliefs `[.., candidates]` that each candidate is drawn: `ln softmax(log q + G)`, all others as one more token."""
    left = (1.0 - log_q.exp().sum(-1, keepdim=True)).clamp(min=1e-9).log() + MEAN_NOISE
    scores = log_q + noise
    return scores - torch.logsumexp(torch.cat([scores, left], -1), -1, keepdim=True)
