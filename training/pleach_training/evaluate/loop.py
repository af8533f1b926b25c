"""The loop of drafting and verifying itself, slow and obvious: what replayed rounds must agree with."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from ..drafter.features import Features
from ..drafter.model import block_mask
from ..drafter.train import DraftTrainer
from .tree import marginal_nodes


@dataclass
class Answer:
    """A reply, and how many passes of the target it took after the prompt's."""

    ids: list[int]
    passes: int


def plain(features: Features, prompt: list[int], length: int) -> Answer:
    """Greedy decoding, one token a pass."""
    ids = list(prompt)
    for _ in range(length):
        ids.append(_choice(features, ids))
    return Answer(ids[len(prompt) :], length - 1)


def speculate(features: Features, draft: DraftTrainer, prompt: list[int], length: int, budget: int) -> Answer:
    """The same text by trees of `budget` rows, root included."""
    ids = [*prompt, _choice(features, prompt)]
    passes = 0
    while len(ids) < len(prompt) + length:
        nodes = set(map(tuple, draft_tree(features, draft, ids, budget)))
        path: tuple[int, ...] = ()
        while True:
            chosen = _choice(features, [*ids, *path])
            path = (*path, chosen)
            if path not in nodes:
                break
        ids.extend(path)
        passes += 1
    return Answer(ids[len(prompt) : len(prompt) + length], passes)


@torch.no_grad()
def draft_tree(features: Features, draft: DraftTrainer, ids: list[int], budget: int) -> list[list[int]]:
    """The nodes of one round's tree as paths of token ids; the last of `ids` is the anchor."""
    size, device = draft.shape.block_size, draft.device
    anchor = torch.tensor([[len(ids) - 1]], device=device)
    taps, _ = features.run(torch.tensor([ids[:-1]], device=device), draft.shape.target_layer_ids)
    positions = anchor + torch.arange(size, device=device)
    mask = block_mask(torch.zeros_like(anchor), anchor, size, taps.shape[1])
    embedded = draft.embed(torch.tensor([[ids[-1]]], device=device))
    hidden = draft.model(taps.to(embedded.dtype), embedded, positions, mask)[0, 1:]
    scores = F.linear(hidden, draft.head.to(hidden.dtype)).float().log_softmax(-1)
    best = scores.topk(min(budget, scores.shape[-1]), -1)
    tokens = draft.draft_ids[best.indices].tolist()
    paths = islice(marginal_nodes(best.values.tolist()), budget - 1)
    return [[tokens[depth][place] for depth, place in enumerate(path)] for path in paths]


@torch.no_grad()
def _choice(features: Features, ids: list[int]) -> int:
    """The target's likeliest next token."""
    _, hidden = features.run(torch.tensor([ids], device=features.head.device), (0,))
    logits: Tensor = F.linear(hidden[0, -1], features.head.to(hidden.dtype))
    return int(logits.argmax())
