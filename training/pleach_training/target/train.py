"""Trains the bundled model from scratch, for a given number of minutes.

    python -m pleach_training.target.train --packed DIR --tokenizer DIR --out DIR --minutes 24

On several GPUs: `torchrun --nproc-per-node N -m pleach_training.target.train ..`, with the same batch and the same updates.
Stopped at any time, the same command goes on from the last checkpoint. `DIR/weights` holds the newest bf16 weights in shards,
`DIR/stable` those from before the learning rate began to fall: the place to continue from with more data or time.
"""

from __future__ import annotations

import argparse
import math
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from ..muon import set_rate, split_optimizers
from ..parallel import Company, join_company
from ..runs import Training, save_shards
from ..schedule import WarmupStableDecay
from .config import TargetConfig
from .data import AVOID, LEARN, PROMPT, Documents, Mixture, Rows, cut, fill, load_groups, plan_rows
from .groups import DECAY, STABLE
from .model import Target, make_layout
from .prefetch import Prefetcher
from .tokenizer import END_OF_TEXT, TURN_END


@dataclass(frozen=True)
class TrainConfig:
    """How to train, for `minutes` or, if given, for `steps`.

    A batch is `rows` rows of `time` tokens, those of all processes together.
    """

    minutes: float = 24.0
    steps: int | None = None
    rows: int = 64
    time: int = 2048
    lr: float = 3e-3
    weight_decay: float = 0.1
    warmup: int = 200
    decay_share: float = 0.15
    prompt_weight: float = 0.25
    mtp_weight: float = 0.2
    mtp_every: int = 4
    checkpoint_minutes: float = 2.0
    validation_minutes: float = 3.0
    seed: int = 0


@dataclass
class Batch:
    """A batch on the device: token ids, document starts, and the loss weight of each token as a label.

    A token to avoid has a weight below zero.
    """

    ids: Tensor
    starts: Tensor
    weight: Tensor


def to_batch(rows: Rows, prompt_weight: float, device: str) -> Batch:
    """Moves rows to the device; a document's first token is never a label."""
    table = np.array([0.0, prompt_weight, 1.0, -1.0], dtype=np.float32)
    assert (PROMPT, LEARN, AVOID) == (1, 2, 3)
    weight = torch.from_numpy(table[rows.role] * ~rows.starts)
    ids = torch.from_numpy(rows.ids.astype(np.int64))
    starts = torch.from_numpy(rows.starts)
    if device == "cuda":
        ids, starts, weight = (x.pin_memory().to(device, non_blocking=True) for x in (ids, starts, weight))
    return Batch(ids, starts, weight)


def weighted_loss(hidden: Tensor, embedding: Tensor, labels: Tensor, weight: Tensor, total: Tensor) -> Tensor:
    """Cross-entropy in nats by weight, over `total`; `hidden` `[n, hidden_size]`, `labels`, `weight` `[n]`.

    Where the weight is below zero the loss is `-ln(1 - p)` instead: unlikelihood (arXiv:1908.04319).
    """
    logits = F.linear(hidden, embedding.to(hidden.dtype)).float()
    losses = F.cross_entropy(logits, labels, reduction="none")
    # 1 - p = -expm1(-loss); the summand keeps the logarithm finite where p rounds to 1.
    unlikely = -torch.log(-torch.expm1(-losses - 1e-4))
    return torch.where(weight < 0, -weight * unlikely, weight * losses).sum() / total.clamp(min=1.0)


class Trainer:
    """Model, optimizers and loss of one run."""

    def __init__(self, shape: TargetConfig, config: TrainConfig, device: str, company: Company | None = None) -> None:
        torch.manual_seed(config.seed)
        self.shape, self.config, self.device, self.company = shape, config, device, company or Company()
        self.model = Target(shape).to(device)
        self.optimizers = split_optimizers(self.model, config.lr, config.weight_decay)
        self.loss = weighted_loss
        if device == "cuda":
            self.loss = torch.compile(weighted_loss)
            for block in [*self.model.model.layers, *self.model.mtp.layers]:
                block.compile(dynamic=False)

    def losses(self, batch: Batch, with_mtp: bool, company: Company | None = None) -> tuple[Tensor, Tensor | None]:
        """Cross-entropy of the trunk, and of the MTP head where it is asked for.

        Those of a company's batches have the same weight for every token: their mean is the loss of the joint batch.
        """
        company = company or Company()
        precision = torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else nullcontext()
        with precision:
            layout = make_layout(self.shape, batch.starts)
            hidden, ahead = self.model(batch.ids, layout, with_mtp)
            main = self._shifted(hidden, batch, 1, company)
            return main, None if ahead is None else self._shifted(ahead, batch, 2, company)

    def _shifted(self, hidden: Tensor, batch: Batch, steps: int, company: Company) -> Tensor:
        labels = batch.ids.roll(-steps, 1)
        weight = batch.weight.roll(-steps, 1).clone()
        weight[:, -steps:] = 0
        if steps == 2:
            # The head ahead only guesses what the trunk writes: it has nothing to avoid.
            weight = weight.clamp(min=0) * ~batch.starts.roll(-1, 1)
        embedding = self.model.model.embed_tokens.weight
        total = company.mean(weight.abs().sum())
        return self.loss(hidden.flatten(0, 1), embedding, labels.flatten(), weight.flatten(), total)

    def step(self, batch: Batch, step: int, factor: float) -> tuple[Tensor, Tensor | None]:
        """One update; returns the losses."""
        set_rate(self.optimizers, factor)
        main, ahead = self.losses(batch, step % self.config.mtp_every == 0, self.company)
        (main if ahead is None else main + self.config.mtp_weight * ahead).backward()
        self.company.average_gradients(self.model.parameters())
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return main.detach(), None if ahead is None else ahead.detach()

    @torch.no_grad()
    def validate(self, groups: dict[str, Documents], padding_id: int) -> dict[str, float]:
        """Cross-entropy in nats of learned tokens per group, over at most one process's batch each."""
        found, size = {}, self.config.rows // self.company.size
        for name, documents in groups.items():
            rng = np.random.default_rng(0)
            planned = plan_rows(cut(documents, self.config.time, rng), self.config.time)[:size]
            rows = fill(documents, planned, self.config.time, padding_id)
            missing = size - len(planned)
            edge = ((0, missing), (0, 0))
            rows = Rows(np.pad(rows.ids, edge), np.pad(rows.role, edge), np.pad(rows.starts, edge))
            found[name] = float(self.losses(to_batch(rows, 0.0, self.device), False)[0])
        return found

    def weights(self) -> dict[str, Tensor]:
        """The parameters in bf16 under Hugging Face's names; decay and gated norms stay f32, as Qwen3.5 stores them."""
        exact = ("A_log", "linear_attn.norm.weight")
        state = self.model.state_dict()
        return {k: v.float() if k.endswith(exact) else v.bfloat16() for k, v in state.items()}


def train(
    shape: TargetConfig,
    config: TrainConfig,
    groups: dict[str, Documents],
    validation: dict[str, Documents],
    out: Path,
    device: str,
    begin: Path | None = None,
    company: Company | None = None,
) -> Trainer:
    """Trains for `config.minutes`, from `out/checkpoint.pt`, else from the shards in `begin`, else from scratch."""
    company = company or Company()
    if config.rows % company.size != 0:
        raise ValueError(f"{config.rows} rows are no multiple of {company.size} processes: change --rows")
    trainer = Trainer(shape, config, device, company)
    mixture = Mixture(groups, config.time, shape.end_of_text_id, config.seed)
    run = Training(
        out,
        trainer.model,
        trainer.optimizers,
        config,
        device,
        lambda: save_shards(out / "weights", "model", trainer.weights()),
        is_leader=company.is_leader,
    )
    if run.is_resumed:
        mixture.restore(run.extra["mixture"])
    else:
        run.extra = {"mixture": mixture.state(), "tokens": 0, "is_decaying": False}
        if begin is not None:
            load_weights(trainer.model, begin)
    schedule = WarmupStableDecay(config.warmup, config.decay_share)
    report, validated_s = Report(run), run.clock.elapsed_s
    batches = Prefetcher(mixture, config.rows, company, (STABLE, DECAY), bool(run.extra["is_decaying"]))
    for rows, drawn in batches:
        progress = company.agree(run.progress)
        if progress >= 1.0:
            break
        if schedule.is_decaying(progress) and not run.extra["is_decaying"]:
            run.extra["is_decaying"] = True
            batches.decay()
            if company.is_leader:
                save_shards(out / "stable", "model", trainer.weights())
        batch = to_batch(rows, 0.0 if run.extra["is_decaying"] else config.prompt_weight, device)
        main, ahead = trainer.step(batch, run.step, schedule.factor(run.step, progress))
        run.extra.update(mixture=drawn, tokens=run.extra["tokens"] + rows.ids.size * company.size)
        run.advance()
        if run.step % 50 == 1 or run.step == 10:
            report.write(main, ahead)
        if company.is_leader and run.clock.elapsed_s - validated_s > config.validation_minutes * 60:
            found = trainer.validate(validation, shape.end_of_text_id)
            run.log.write(step=run.step, tokens=run.extra["tokens"], validation=found)
            validated_s = run.clock.elapsed_s
    batches.close()
    if company.is_leader:
        run.save()
        final = trainer.validate(validation, shape.end_of_text_id)
        epochs = run.extra["mixture"]["epoch"]
        run.log.write(step=run.step, tokens=run.extra["tokens"], s=run.clock.elapsed_s, epochs=epochs, final=final)
    return trainer


class Report:
    """Writes losses and the speed since the last report."""

    def __init__(self, run: Training) -> None:
        self._run, self._tokens, self._s = run, run.extra["tokens"], run.clock.elapsed_s

    def write(self, main: Tensor, ahead: Tensor | None) -> None:
        """Logs a step's losses; a loss that is not finite ends the run."""
        run, loss, now = self._run, float(main), self._run.clock.elapsed_s
        tokens = run.extra["tokens"]
        rate = (tokens - self._tokens) / max(1e-9, now - self._s)
        self._tokens, self._s = tokens, now
        mtp = {} if ahead is None else {"mtp": float(ahead)}
        run.log.write(step=run.step, tokens=tokens, s=now, loss=loss, **mtp, tokens_per_s=rate)
        if not math.isfinite(loss):
            raise FloatingPointError(f"loss is {loss} at step {run.step}: lower --lr or go on from an older checkpoint")


def load_weights(model: nn.Module, folder: Path) -> None:
    """Loads every safetensors shard in `folder` into `model`."""
    state: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        state.update(load_file(path))
    model.load_state_dict(state)


def shape_for(tokenizer: Tokenizer, base: TargetConfig) -> TargetConfig:
    """`base` with the tokenizer's size and end tokens."""
    ids = {
        "end_of_text_id": tokenizer.token_to_id(END_OF_TEXT),
        "turn_end_id": tokenizer.token_to_id(TURN_END),
    }
    return TargetConfig(**{**asdict(base), **ids, "vocab_size": tokenizer.get_vocab_size()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packed", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", type=Path, help="a JSON file of TargetConfig's fields")
    parser.add_argument("--begin", type=Path, help="a folder of shards to start from, such as an earlier `stable`")
    parser.add_argument("--minutes", type=float, default=TrainConfig.minutes)
    parser.add_argument("--steps", type=int, help="train for so many steps instead of minutes")
    parser.add_argument("--rows", type=int, default=TrainConfig.rows)
    parser.add_argument("--time", type=int, default=TrainConfig.time)
    parser.add_argument("--lr", type=float, default=TrainConfig.lr)
    parser.add_argument("--warmup", type=int, default=TrainConfig.warmup, help="steps until the full learning rate")
    parser.add_argument("--decay-share", type=float, default=TrainConfig.decay_share)
    parser.add_argument("--seed", type=int, default=TrainConfig.seed)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    shape = shape_for(tokenizer, TargetConfig.load(args.shape) if args.shape else TargetConfig())
    config = TrainConfig(
        minutes=args.minutes,
        steps=args.steps,
        rows=args.rows,
        time=args.time,
        lr=args.lr,
        warmup=args.warmup,
        decay_share=args.decay_share,
        seed=args.seed,
    )
    company = join_company(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    shape.save(args.out / "shape.json")
    groups, validation = load_groups(args.packed), load_groups(args.packed, ".val")
    train(shape, config, groups, validation, args.out, args.device, args.begin, company)


if __name__ == "__main__":
    main()
