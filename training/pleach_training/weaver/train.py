"""Trains a Weaver on a frozen drafter, for a given number of minutes.

python -m pleach_training.weaver.train --target PATH --drafter DIR --replies FILE.npz --out DIR --minutes 5
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from ..drafter.data import Parts, Replies, Store, fill_batch, pack_rows, sample_anchors
from ..drafter.features import Features
from ..drafter.targets import open_features
from ..drafter.train import (
    STORE_GB,
    Block,
    DraftTrainConfig,
    DraftTrainer,
    load_drafter,
    make_parts,
    refuse_shape,
    split_replies,
)
from ..muon import set_rate, split_optimizers
from ..runs import Training
from ..schedule import WarmupStableDecay
from .model import Weaver, WeaverConfig
from .parent import ParentScorer


@dataclass(frozen=True)
class WeaverTrainConfig:
    """How to train, for `minutes` or, if given, for `steps`.

    A batch is `rows` packed rows of `context` tokens with `blocks` anchors each.
    """

    minutes: float = 5.0
    steps: int | None = None
    rows: int = 32
    context: int = 1024
    blocks: int = 128
    lr: float = 2e-3
    weight_decay: float = 0.05
    warmup: int = 100
    decay_share: float = 0.6
    gamma: float = 6.0
    checkpoint_minutes: float = 2.0
    seed: int = 0


@dataclass
class Pool:
    """Candidates of each depth: the drafter's likeliest tokens.

    `places` `[anchors, depths, pool]` in the draft vocabulary, `scores` the drafter's logits, `target` the target's logits
    of the same tokens, `truth` `[anchors, depths]` the true token's rank, -1 where it is not listed.
    """

    places: Tensor
    scores: Tensor
    target: Tensor
    truth: Tensor


def make_pool(hidden: Tensor, block: Block, head: Tensor, size: int) -> Pool:
    """The pool of drafter rows `hidden` `[anchors, depths, d_model]`; `block` has the target's rows and labels."""
    anchors, depths, _ = hidden.shape
    scores, places = F.linear(hidden, head).float().topk(size, -1)
    target_rows = block.target.view(anchors, depths, -1)
    target = F.linear(target_rows, head).float().gather(-1, places)
    found = places == block.labels.view(anchors, depths, 1)
    truth = torch.where(found.any(-1), found.int().argmax(-1), -1)
    return Pool(places, scores, target, truth)


def make_scorer(shape: WeaverConfig) -> Weaver | ParentScorer:
    """A Weaver, or for a shape without layers a scorer that sees no path."""
    return Weaver(shape) if shape.num_layers > 0 else ParentScorer(shape)


class WeaverTrainer:
    """Weaver, frozen drafter, optimizers and loss of one run."""

    def __init__(self, shape: WeaverConfig, config: WeaverTrainConfig, draft: DraftTrainer) -> None:
        torch.manual_seed(config.seed)
        self.shape, self.config, self.draft, self.device = shape, config, draft, draft.device
        self.model = make_scorer(shape).to(self.device)
        self.optimizers = split_optimizers(self.model, config.lr, config.weight_decay)
        self.pool, self.loss = self._pool, self._loss
        if self.device == "cuda":
            self.pool = torch.compile(self._pool, dynamic=False)
            self.loss = torch.compile(self._loss, dynamic=False)

    @torch.no_grad()
    def _pool(self, block: Block) -> tuple[Tensor, Pool]:
        hidden = self.draft.rows(block)[:, 1:].to(self.draft.head.dtype)
        return hidden, make_pool(hidden, block, self.draft.head, self.shape.candidate_pool_size)

    def _loss(self, prefix: Tensor, tokens: Tensor, pool: Pool, weight: Tensor) -> tuple[Tensor, Tensor]:
        query = self.model(prefix, tokens)
        rows = F.embedding(pool.places, self.draft.head)
        scores = pool.scores + (rows @ query.to(rows.dtype).unsqueeze(-1)).squeeze(-1).float()
        log_q = scores.log_softmax(-1)
        loss = -(pool.target.softmax(-1) * log_q).sum(-1)
        weight = weight.view_as(loss) * (pool.truth >= 0)
        hit = scores.argmax(-1) == pool.truth
        return (loss * weight).sum() / weight.sum().clamp(min=1e-6), hit

    def inputs(self, store: Store, index: Tensor, begins: Tensor) -> tuple[Tensor, Tensor, Pool, Tensor]:
        """Prefix, embedded path tokens, pool and weights of random anchors."""
        batch = sample_anchors(store, index, begins, self.config.blocks)
        block = self.draft.block(store, batch)
        hidden, pool = self.pool(block)
        flat = batch.flat.flatten()
        first = store.hidden[(flat - 1).clamp(min=0)].unsqueeze(1)
        prefix = torch.cat([first.to(hidden.dtype), hidden], 1)
        steps = torch.arange(self.shape.max_depth, device=self.device)
        path = (flat.unsqueeze(-1) + steps).clamp(max=len(store.ids) - 1)
        tokens = F.embedding(store.ids[path], self.draft.embedding).to(hidden.dtype)
        return prefix, tokens, pool, block.weight

    def step(self, store: Store, index: Tensor, begins: Tensor, factor: float) -> Tensor:
        """One update; returns the loss."""
        set_rate(self.optimizers, factor)
        with self.draft.precision():
            loss, _ = self.loss(*self.inputs(store, index, begins))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, store: Store) -> dict[str, list[float] | float]:
        """On held-out anchors: loss, per depth recall of the pool, and top-1 of the drafter and of the Weaver in it."""
        index, begins = pack_rows(store, self.config.context, np.random.default_rng(0))
        torch.manual_seed(0)
        with self.draft.precision():
            inputs = self.inputs(store, *fill_batch(index, begins, self.config.rows, self.device))
            loss, hit = self.loss(*inputs)
        pool, weight = inputs[2], inputs[3]
        valid = weight.view_as(pool.truth) > 0
        count = valid.sum(0).clamp(min=1)

        def shares(what: Tensor) -> list[float]:
            return [round(x, 4) for x in ((what & valid).sum(0) / count).tolist()]

        recall, first = pool.truth >= 0, pool.truth == 0
        return {
            "loss": float(loss),
            "recall": shares(recall),
            "drafter": shares(first),
            "weaver": shares(hit),
        }

    def save_weights(self, folder: Path) -> None:
        """Writes shape and bf16 weights."""
        folder.mkdir(parents=True, exist_ok=True)
        self.shape.save(folder / "shape.json")
        state = {k: v.detach().bfloat16().cpu().contiguous() for k, v in self.model.state_dict().items()}
        save_file(state, folder / "weaver.safetensors", metadata={"format": "pt"})


def load_weaver(folder: Path, device: str) -> Weaver | ParentScorer:
    """The Weaver that `save_weights` wrote, or `export weaver`."""
    run = folder / "shape.json"
    model = make_scorer(WeaverConfig.load(run if run.exists() else folder / "weaver.json"))
    model.load_state_dict(load_file(folder / "weaver.safetensors"))
    return model.to(device)


def train(trainer: WeaverTrainer, parts: Parts, held_out: Store, out: Path) -> None:
    """Trains for `config.minutes`, going on from `out/checkpoint.pt` if it is there."""
    config = trainer.config
    run = Training(out, trainer.model, trainer.optimizers, config, trainer.device, lambda: trainer.save_weights(out))
    schedule = WarmupStableDecay(config.warmup, config.decay_share, floor=0.01)
    run.log.write(step=run.step, held_out=trainer.accuracy(held_out))
    torch.manual_seed(config.seed + run.step)
    for store, index, begins in parts.batches(config.context, config.rows, config.seed, trainer.device, run):
        loss = trainer.step(store, index, begins, schedule.factor(run.step, run.progress))
        run.advance()
        if run.step % 200 == 0:
            run.log.write(step=run.step, s=run.clock.elapsed_s, loss=float(loss))
        if run.step % 2000 == 0:
            run.log.write(step=run.step, held_out=trainer.accuracy(held_out))
    run.save()
    run.log.write(step=run.step, s=run.clock.elapsed_s, held_out=trainer.accuracy(held_out))


def frozen_drafter(folder: Path, features: Features, config: WeaverTrainConfig, device: str) -> DraftTrainer:
    """A trained drafter with the target's embedding and head."""
    model, draft_ids = load_drafter(folder, device)
    draft = DraftTrainer(
        model.config,
        DraftTrainConfig(rows=config.rows, context=config.context, blocks=config.blocks, gamma=config.gamma),
        features,
        draft_ids,
        device,
    )
    draft.model.load_state_dict(model.state_dict())
    draft.model.requires_grad_(False)
    return draft


def check_fit(start: WeaverConfig, fresh: WeaverConfig) -> None:
    """Refuses a Weaver whose widths or depth are not those that one for this target and drafter has."""
    for name in ("d_model", "d_embed", "max_depth"):
        found, expected = getattr(start, name), getattr(fresh, name)
        if found != expected:
            raise ValueError(f"the Weaver's {name} is {found}, not {expected}: it was made for another target or drafter")


def shape_for(draft: DraftTrainer, features: Features, args: argparse.Namespace) -> WeaverConfig:
    """The Weaver's shape for a target and its drafter."""
    return WeaverConfig(
        d_model=features.hidden_size,
        d_embed=features.embedding.shape[1],
        d_rank=args.rank,
        num_layers=args.layers,
        num_heads=args.heads,
        mlp_dim=args.mlp,
        max_depth=draft.shape.block_size - 1,
        candidate_pool_size=args.pool,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--replies", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start-from", type=Path, help="a trained Weaver, whose shape stays")
    parser.add_argument("--minutes", type=float, default=WeaverTrainConfig.minutes)
    parser.add_argument("--steps", type=int, help="train for so many steps instead of minutes")
    parser.add_argument("--rank", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2, help="0 for a scorer that sees a node's token, not its path")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--mlp", type=int, default=704)
    parser.add_argument("--pool", type=int, default=64)
    parser.add_argument("--lr", type=float, default=WeaverTrainConfig.lr)
    parser.add_argument("--rows", type=int, default=WeaverTrainConfig.rows)
    parser.add_argument("--context", type=int, default=WeaverTrainConfig.context)
    parser.add_argument("--blocks", type=int, default=WeaverTrainConfig.blocks)
    parser.add_argument("--store-gb", type=float, default=STORE_GB, help="GB of features that the device holds at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    refuse_shape(parser, args, ("rank", "layers", "heads", "mlp", "pool"))
    torch.set_float32_matmul_precision("high")
    config = WeaverTrainConfig(
        minutes=args.minutes,
        steps=args.steps,
        rows=args.rows,
        context=args.context,
        blocks=args.blocks,
        lr=args.lr,
        seed=args.seed,
    )
    features = open_features(args.target, args.device)
    draft = frozen_drafter(args.drafter, features, config, args.device)
    start = None if args.start_from is None else load_weaver(args.start_from, args.device)
    shape = shape_for(draft, features, args)
    if start is not None:
        check_fit(start.config, shape)
        shape = start.config
    replies, held = split_replies(Replies.load(*args.replies), args.seed)
    trainer = WeaverTrainer(shape, config, draft)
    if start is not None:
        trainer.model.load_state_dict(start.state_dict())
    taps = draft.shape.target_layer_ids
    parts, held_out = make_parts(replies, held, features, taps, args.store_gb, args.seed, args.device)
    train(trainer, parts, held_out, args.out)


if __name__ == "__main__":
    main()
