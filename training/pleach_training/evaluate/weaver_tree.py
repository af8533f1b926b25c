"""Trees that a Weaver scores level by level: the likeliest `width` nodes of a depth are expanded together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..weaver.model import Weaver
from ..weaver.parent import ParentScorer
from ..weaver.train import Pool
from .coupling import foresee

ABSENT = 1 << 20


@dataclass
class Tables:
    """The target's embedding, the head rows of the draft vocabulary, the token of each such row, and how tokens are drawn.

    `noise` `[anchors, depths, pool]` is that of the draws, if drafts know it.
    """

    embedding: Tensor
    head: Tensor
    draft_ids: Tensor
    temperature: float = 1.0
    noise: Tensor | None = None

    def beliefs(self, logits: Tensor, noise: Tensor | None) -> Tensor:
        """Log-beliefs `[.., pool]` that each candidate is drawn."""
        log_q = (logits / self.temperature).log_softmax(-1)
        return log_q if noise is None else foresee(log_q, noise)


def weaver_ranks(
    weaver: Weaver | ParentScorer, prefix: Tensor, anchors: Tensor, pool: Pool, tables: Tables, width: int
) -> Tensor:
    """When the tree of each anchor gains the true path's node of depth 1, 2, ..: `[anchors, depths]`, from 1.

    Nodes are taken in the order of their cumulative log-probability; `ABSENT` where the path is not in the tree. `prefix`
    `[anchors, rows, d_model]`, `anchors` token ids `[anchors]`.
    """
    depths = pool.places.shape[1]
    keys = weaver.prefix_keys(prefix)
    tokens, cumulative = anchors.unsqueeze(1), torch.zeros(len(anchors), 1, device=anchors.device)
    on_path = torch.ones_like(cumulative, dtype=torch.bool)
    paths: Tensor | None = None
    first_of_level, scores, path_scores = 0, [], []
    for depth in range(depths):
        embedded = F.embedding(tokens, tables.embedding).to(prefix.dtype)
        query, own = weaver.nodes(embedded, depth, keys, paths)
        rows = F.embedding(pool.places[:, depth], tables.head)
        logits = pool.scores[:, depth].unsqueeze(1) + (query.to(rows.dtype) @ rows.mT).float()
        noise = None if tables.noise is None else tables.noise[:, depth].unsqueeze(1)
        children = cumulative.unsqueeze(-1) + tables.beliefs(logits, noise)
        ranks = torch.arange(children.shape[-1], device=children.device)
        true_child = on_path.unsqueeze(-1) & (ranks == pool.truth[:, depth, None, None])
        kept, index = children.flatten(1).topk(min(width, children[0].numel()), -1)
        parent, rank = index // children.shape[-1], index % children.shape[-1]
        keys = [(torch.cat([k, a], 2), torch.cat([v, b], 2)) for (k, v), (a, b) in zip(keys, own, strict=True)]
        above = (first_of_level + parent).unsqueeze(-1)
        if paths is not None:
            above = torch.cat([paths.gather(1, parent.unsqueeze(-1).expand(-1, -1, depth)), above], -1)
        first_of_level += tokens.shape[1]
        paths, cumulative = above, kept
        tokens = tables.draft_ids[pool.places[:, depth].gather(1, rank)]
        on_path = true_child.flatten(1).gather(1, index)
        scores.append(kept)
        path_scores.append(torch.where(on_path, kept, -torch.inf).amax(-1))
    every = torch.cat(scores, 1)
    return torch.stack([_rank(every, score) for score in path_scores], 1)


def _rank(every: Tensor, score: Tensor) -> Tensor:
    """One more than the number of nodes that are likelier than the path's; `ABSENT` where it is not in the tree."""
    ahead = (every > score.unsqueeze(-1)).sum(-1) + 1
    return torch.where(score.isinf(), ABSENT, ahead)
