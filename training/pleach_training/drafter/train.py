"""Trains a DFlash drafter on a target's own replies, for a given number of minutes.

    python -m pleach_training.drafter.train --target PATH --replies FILE.npz --out DIR --minutes 10

Stopped at any time, the same command goes on from the last checkpoint; with more minutes it goes on where it ended, where
replies take several parts with the part whose turn it then is.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from ..muon import set_rate, split_optimizers
from ..runs import Training
from ..schedule import WarmupStableDecay
from .config import DrafterConfig, default_taps
from .data import (
    AnchorBatch,
    Parts,
    Replies,
    Store,
    fill_batch,
    frequent_tokens,
    pack_rows,
    sample_anchors,
)
from .features import Features
from .loss import draft_loss, position_weights
from .model import Drafter, block_mask
from .targets import open_features

# Gigabytes of features on the device, unless a command says otherwise: the rest of 80 is the step's.
STORE_GB = 56.0


@dataclass(frozen=True)
class DraftTrainConfig:
    """How to train, for `minutes` or, if given, for `steps`.

    A batch is `rows` packed rows of `context` tokens with `blocks` anchors each.
    """

    minutes: float = 10.0
    steps: int | None = None
    rows: int = 32
    context: int = 1024
    blocks: int = 128
    lr: float = 3e-3
    weight_decay: float = 0.1
    warmup: int = 200
    decay_share: float = 0.5
    gamma: float = 4.0
    kl_share: float = 0.8
    checkpoint_minutes: float = 2.0
    seed: int = 0


@dataclass
class Block:
    """What the network and the loss take of an anchor batch."""

    taps: Tensor
    embedded: Tensor
    positions: Tensor
    mask: object
    target: Tensor
    labels: Tensor
    weight: Tensor


class DraftTrainer:
    """Drafter, optimizers and loss of one run."""

    def __init__(
        self,
        shape: DrafterConfig,
        config: DraftTrainConfig,
        features: Features,
        draft_ids: Tensor | None,
        device: str,
    ) -> None:
        torch.manual_seed(config.seed)
        self.shape, self.config, self.device = shape, config, device
        self.model = Drafter(shape).to(device)
        self.optimizers = split_optimizers(self.model, config.lr, config.weight_decay)
        self.features, self.embedding = features, features.embedding
        self.draft_ids = torch.arange(shape.vocab_size) if draft_ids is None else draft_ids
        self.draft_ids = self.draft_ids.to(device)
        self.head = features.head[self.draft_ids].to(torch.bfloat16 if device == "cuda" else torch.float32)
        self.places = torch.full((shape.vocab_size,), -1, dtype=torch.long, device=device)
        self.places[self.draft_ids] = torch.arange(len(self.draft_ids), device=device)
        self.loss = self._loss
        if device == "cuda":
            self.loss = torch.compile(self._loss, dynamic=False)

    def block(self, store: Store, batch: AnchorBatch) -> Block:
        """Gathers features, embedded rows, labels and weights."""
        size = self.shape.block_size
        steps = torch.arange(1, size, device=self.device)
        last = len(store.ids) - 1
        flat = (batch.flat.unsqueeze(-1) + steps).clamp(max=last)
        inside = steps <= batch.left.unsqueeze(-1)
        weight = inside * position_weights(size, self.config.gamma, steps.device)
        positions = batch.anchors.unsqueeze(-1) + torch.arange(size, device=self.device)
        return Block(
            store.taps[batch.index],
            self.embed(store.ids[batch.flat]),
            positions.flatten(1),
            block_mask(batch.begins, batch.anchors, size, batch.index.shape[1]),
            store.hidden[flat - 1].flatten(0, 2),
            self.places[store.ids[flat]].flatten(),
            weight.flatten(),
        )

    def embed(self, anchor_ids: Tensor) -> Tensor:
        """Embedded block rows `[rows, blocks * block_size, hidden]`: anchor, then masks."""
        dtype = self.head.dtype
        anchors = F.embedding(anchor_ids, self.embedding).to(dtype).unsqueeze(2)
        mask = self.embedding[self.shape.mask_token_id].to(dtype)
        masks = mask.expand(*anchor_ids.shape, self.shape.block_size - 1, -1)
        return torch.cat([anchors, masks], 2).flatten(1, 2)

    def rows(self, block: Block) -> Tensor:
        """Drafter hidden states `[anchors, block_size, hidden]` of a batch."""
        hidden = self.model(block.taps, block.embedded, block.positions, block.mask)
        return hidden.unflatten(1, (-1, self.shape.block_size)).flatten(0, 1)

    def _loss(self, block: Block) -> tuple[Tensor, Tensor]:
        hidden = self.rows(block)[:, 1:].flatten(0, 1)
        return draft_loss(
            hidden.to(self.head.dtype),
            block.target,
            self.head,
            block.labels,
            block.weight,
            self.config.kl_share,
        )

    def precision(self):  # type: ignore[no-untyped-def]
        """bf16 on a GPU, full precision elsewhere."""
        return torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else nullcontext()

    def step(self, store: Store, batch: AnchorBatch, factor: float) -> Tensor:
        """One update; returns the loss."""
        set_rate(self.optimizers, factor)
        block = self.block(store, batch)
        with self.precision():
            loss, _ = self.loss(block)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, store: Store, rows: int = 256) -> dict[str, list[float] | float]:
        """Loss on held-out anchors, and the share of rows 1, 2, .. whose argmax is the token of the text."""
        index, begins = pack_rows(store, self.config.context, np.random.default_rng(0))
        torch.manual_seed(0)
        rows_of_block = self.shape.block_size - 1
        hits, counts = torch.zeros(2, rows_of_block, dtype=torch.float64, device=self.device).unbind(0)
        losses = []
        for at in range(0, min(rows, len(index)), self.config.rows):
            chunk = fill_batch(index[at:], begins[at:], self.config.rows, self.device)
            block = self.block(store, sample_anchors(store, *chunk, self.config.blocks))
            with self.precision():
                loss, hit = self.loss(block)
            valid = (block.weight > 0).view(-1, rows_of_block)
            hits = hits + (hit.view_as(valid) & valid).sum(0).double()
            counts = counts + valid.sum(0).double()
            losses.append(float(loss))
        share = hits / counts.clamp(min=1)
        return {"loss": float(np.mean(losses)), "rows": [round(x, 4) for x in share.tolist()]}

    def save_weights(self, folder: Path) -> None:
        """Writes shape, bf16 weights and the draft vocabulary."""
        folder.mkdir(parents=True, exist_ok=True)
        self.shape.save(folder / "shape.json")
        state = {k: v.detach().bfloat16().cpu().contiguous() for k, v in self.model.state_dict().items()}
        if self.shape.draft_vocab_size is not None:
            state["draft_to_target"] = self.draft_ids.to(torch.int32).cpu()
        save_file(state, folder / "drafter.safetensors", metadata={"format": "pt"})


def load_drafter(folder: Path, device: str) -> tuple[Drafter, Tensor | None]:
    """The drafter and draft vocabulary that `save_weights` wrote, or `export drafter`."""
    is_run = (folder / "shape.json").exists()
    shape = DrafterConfig.load(folder / ("shape.json" if is_run else "config.json"))
    state = load_file(folder / ("drafter.safetensors" if is_run else "model.safetensors"))
    draft_ids = state.pop("draft_to_target", None)
    model = Drafter(shape)
    model.load_state_dict(state)
    return model.to(device), None if draft_ids is None else draft_ids.long()


def train(trainer: DraftTrainer, parts: Parts, held_out: Store, out: Path) -> None:
    """Trains for `config.minutes`, going on from `out/checkpoint.pt` if it is there."""
    config = trainer.config
    run = Training(out, trainer.model, trainer.optimizers, config, trainer.device, lambda: trainer.save_weights(out))
    schedule = WarmupStableDecay(config.warmup, config.decay_share, floor=0.01)
    torch.manual_seed(config.seed + run.step)
    for store, index, begins in parts.batches(config.context, config.rows, config.seed, trainer.device, run):
        batch = sample_anchors(store, index, begins, config.blocks)
        loss = trainer.step(store, batch, schedule.factor(run.step, run.progress))
        run.advance()
        if run.step % 200 == 0:
            run.log.write(step=run.step, s=run.clock.elapsed_s, loss=float(loss))
        if run.step % 2000 == 0:
            run.log.write(step=run.step, held_out=trainer.accuracy(held_out), train=trainer.accuracy(store))
    run.save()
    run.log.write(step=run.step, s=run.clock.elapsed_s, held_out=trainer.accuracy(held_out))


def split_replies(replies: Replies, seed: int, share: float = 0.01) -> tuple[Replies, Replies]:
    """Training replies (loops left out) and held-out ones of the same kind.

    All replies to a prompt are on the same side, whichever others are given with them; one prompt is held out at least.
    """
    usable = (replies.split == "train") & ~replies.looping() & (replies.glen >= 4)
    places = replies.prompt_shares(seed)
    held = usable & (places <= max(share, places[usable].min(initial=1.0)))
    return replies.select(usable & ~held), replies.select(held)


# Options that say what a drafter looks like.
SHAPE_OPTIONS = (
    "mask_id",
    "draft_vocab",
    "layers",
    "intermediate",
    "heads",
    "kv_heads",
    "head_dim",
    "taps",
    "block",
    "rope_theta",
)


def refuse_shape(parser: argparse.ArgumentParser, args: argparse.Namespace, options: tuple[str, ...]) -> None:
    """Ends with an error if `--start-from` is given and one of `options`, which would have no effect."""
    given = [name for name in options if getattr(args, name) != parser.get_default(name)]
    if args.start_from is not None and given:
        named = ", ".join("--" + name.replace("_", "-") for name in given)
        parser.error(f"{named}: --start-from keeps the shape of what it starts from; leave one of the two out")


def check_fit(shape: DrafterConfig, features: Features) -> None:
    """Refuses a drafter that was made for a target of another shape."""
    fields = {
        "hidden_size": (shape.hidden_size, features.hidden_size),
        "vocab_size": (shape.vocab_size, features.embedding.shape[0]),
        "num_target_layers": (shape.num_target_layers, features.num_layers),
    }
    for name, (found, expected) in fields.items():
        if found != expected:
            raise ValueError(f"the drafter's {name} is {found}, but the target has {expected}: it was made for another model")


def make_parts(
    replies: Replies, held: Replies, features: Features, taps: tuple[int, ...], store_gb: float, seed: int, device: str
) -> tuple[Parts, Store]:
    """Training replies in parts whose features take at most `store_gb` gigabytes, and the store of held-out ones."""

    def build(part: Replies) -> Store:
        return Store.build(part, features, taps, device)

    held_out = build(held)
    token_bytes = sum(x.shape[1] * x.element_size() for x in (held_out.taps, held_out.hidden))
    return Parts.of(replies, int(store_gb * 1e9 / token_bytes), seed, build), held_out


def shape_for(features: Features, args: argparse.Namespace, theta: float, draft_size: int | None) -> DrafterConfig:
    """The drafter's shape for a target."""
    return DrafterConfig(
        hidden_size=features.hidden_size,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        head_dim=args.head_dim,
        vocab_size=features.embedding.shape[0],
        num_target_layers=features.num_layers,
        target_layer_ids=default_taps(features.num_layers, args.taps),
        mask_token_id=args.mask_id,
        block_size=args.block,
        rope_theta=theta,
        draft_vocab_size=draft_size,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--replies", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start-from", type=Path, help="a trained drafter; its shape and draft vocabulary stay")
    parser.add_argument("--mask-id", type=int, help="a token id that no text holds; needed without --start-from")
    parser.add_argument("--stop-ids", type=int, nargs="*", default=[], help="kept in any draft vocabulary")
    parser.add_argument("--minutes", type=float, default=DraftTrainConfig.minutes)
    parser.add_argument("--steps", type=int, help="train for so many steps instead of minutes")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--intermediate", type=int, default=1152)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--taps", type=int, default=4)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--rope-theta", type=float, default=10_000.0)
    parser.add_argument("--draft-vocab", type=int, default=0, help="0 for the whole vocabulary")
    parser.add_argument("--lr", type=float, default=DraftTrainConfig.lr)
    parser.add_argument("--rows", type=int, default=DraftTrainConfig.rows)
    parser.add_argument("--context", type=int, default=DraftTrainConfig.context)
    parser.add_argument("--blocks", type=int, default=DraftTrainConfig.blocks)
    parser.add_argument("--store-gb", type=float, default=STORE_GB, help="GB of features that the device holds at once")
    parser.add_argument("--kl-share", type=float, default=DraftTrainConfig.kl_share)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.start_from is None and args.mask_id is None:
        parser.error("--mask-id is needed to train from the beginning; --start-from DIR has the mask of that drafter")
    refuse_shape(parser, args, SHAPE_OPTIONS)
    torch.set_float32_matmul_precision("high")
    features = open_features(args.target, args.device)
    replies, held = split_replies(Replies.load(*args.replies), args.seed)
    start, draft_ids = (None, None) if args.start_from is None else load_drafter(args.start_from, args.device)
    if start is None and args.draft_vocab:
        always = (*args.stop_ids, 0)
        draft_ids = torch.from_numpy(frequent_tokens(replies, args.draft_vocab, always))
    shape = shape_for(features, args, args.rope_theta, args.draft_vocab or None)
    if start is not None:
        shape = start.config
        check_fit(shape, features)
    config = DraftTrainConfig(
        minutes=args.minutes,
        steps=args.steps,
        rows=args.rows,
        context=args.context,
        blocks=args.blocks,
        lr=args.lr,
        kl_share=args.kl_share,
        seed=args.seed,
    )
    trainer = DraftTrainer(shape, config, features, draft_ids, args.device)
    if start is not None:
        trainer.model.load_state_dict(start.state_dict())
    parts, held_out = make_parts(replies, held, features, shape.target_layer_ids, args.store_gb, args.seed, args.device)
    train(trainer, parts, held_out, args.out)


if __name__ == "__main__":
    main()
