"""What drafter and Weaver propose at every anchor of some replies."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ..drafter.data import Store, pack_rows, take_anchors
from ..drafter.train import Block, DraftTrainer
from ..weaver.model import Weaver
from ..weaver.parent import ParentScorer
from ..weaver.train import Pool, make_pool
from .coupling import foresee, posterior_noise
from .weaver_tree import Tables, weaver_ranks


@dataclass
class Rounds:
    """By anchor: flat token number, then per depth the true token's place among the candidates (-1 if not listed), the
    candidates' log-probabilities, and for a Weaver the ranks in its tree and in its chain, the true path's argmax hits and
    the probability it gives to its first choice.
    """

    flat: NDArray[np.int64]
    truth: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    tree: NDArray[np.int64] | None
    chain: NDArray[np.int64] | None
    hits: NDArray[np.bool_] | None
    confidence: NDArray[np.float32] | None


@torch.no_grad()
def all_rounds(
    draft: DraftTrainer,
    store: Store,
    weaver: Weaver | ParentScorer | None,
    pool_size: int,
    width: int,
    temperature: float = 0.0,
) -> Rounds:
    """Drafts at every place of `store` where an anchor may stand.

    With a `temperature` the replies were drawn at it, and drafts know the noise of the draws; see `coupling`.
    """
    config, device = draft.config, draft.device
    index, begins = (torch.from_numpy(x).to(device) for x in pack_rows(store, config.context, None))
    left = torch.where(index >= 0, store.left[index.clamp(min=0)], 0)
    heat = Heat(temperature, torch.Generator(device).manual_seed(0)) if temperature > 0 else None
    found: list[tuple[Tensor, ...]] = []
    for row in range(len(index)):
        places = left[row].nonzero().flatten()
        for part in places.split(config.blocks):
            padded = F.pad(part, (0, config.blocks - len(part)), value=int(part[0])).unsqueeze(0)
            with draft.precision():
                batch = take_anchors(index[row : row + 1], begins[row : row + 1], left[row : row + 1], padded)
                proposed = _propose(draft, store, batch, weaver, pool_size, width, heat)
            found.append(tuple(x[: len(part)].cpu() for x in (batch.flat[0], *proposed)))
    columns = [torch.cat(column).numpy() for column in zip(*found, strict=True)]
    return Rounds(*columns, *([None] * (7 - len(columns))))


@dataclass
class Heat:
    """A temperature and where its noise comes from."""

    temperature: float
    generator: torch.Generator

    def noise(self, draft: DraftTrainer, block: Block, pool: Pool) -> Tensor:
        """Noise of the candidates `[anchors, depths, pool]`, given what was drawn at each depth of the true path."""
        head = draft.features.head.to(block.target.dtype)
        total = (F.linear(block.target, head).float() / self.temperature).logsumexp(-1)
        log_p = pool.target / self.temperature - total.view(*pool.truth.shape, 1)
        return posterior_noise(log_p, pool.truth, self.generator)


def _propose(draft, store, batch, weaver, pool_size, width, heat):  # type: ignore[no-untyped-def]
    block = draft.block(store, batch)
    hidden = draft.rows(block)[:, 1:].to(draft.head.dtype)
    pool = make_pool(hidden, block, draft.head, pool_size)
    temperature = heat.temperature if heat else 1.0
    total = (F.linear(hidden, draft.head).float() / temperature).logsumexp(-1, keepdim=True)
    log_q = pool.scores / temperature - total
    noise = None
    if heat:
        noise = heat.noise(draft, block, pool)
        log_q, order = foresee(log_q, noise).sort(-1, descending=True)
        noise, pool = noise.gather(-1, order), reordered(pool, order)
    inside = block.weight.view_as(pool.truth) > 0
    pool = replace(pool, truth=torch.where(inside, pool.truth, -1))
    proposed = [pool.truth, log_q]
    if weaver is None:
        return proposed
    flat = batch.flat.flatten()
    prefix = torch.cat([store.hidden[flat - 1].unsqueeze(1).to(hidden.dtype), hidden], 1)
    tables = Tables(draft.embedding, draft.head, draft.draft_ids, temperature, noise)
    anchors = store.ids[flat]
    for beam in (width, 1):
        proposed.append(weaver_ranks(weaver, prefix, anchors, pool, tables, beam))
    path = (flat.unsqueeze(-1) + torch.arange(hidden.shape[1], device=flat.device)).clamp(max=len(store.ids) - 1)
    query = weaver(prefix, F.embedding(store.ids[path], draft.embedding).to(hidden.dtype)).to(hidden.dtype)
    rows = F.embedding(pool.places, draft.head)
    scores = tables.beliefs(pool.scores + (rows @ query.unsqueeze(-1)).squeeze(-1).float(), noise)
    best = scores.exp().max(-1)
    return [*proposed, (best.indices == pool.truth) & inside, best.values]


def reordered(pool: Pool, order: Tensor) -> Pool:
    """The pool with its candidates in another order `[anchors, depths, pool]`."""
    new_place = order.argsort(-1)
    truth = new_place.gather(-1, pool.truth.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    places, scores, target = (x.gather(-1, order) for x in (pool.places, pool.scores, pool.target))
    return Pool(places, scores, target, torch.where(pool.truth >= 0, truth, -1))
