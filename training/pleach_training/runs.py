"""What every training script shares: a clock that survives restarts, a log, checkpoints written whole or not at all."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

SHARD_BYTES = 15_500_000


class Clock:
    """How far a run is: by seconds of training, those of earlier runs and of this one, or by steps if `steps` is given."""

    def __init__(self, minutes: float, elapsed_s: float = 0.0, steps: int | None = None) -> None:
        self.total_s, self.steps = minutes * 60, steps
        self._begin = time.monotonic() - elapsed_s

    @property
    def elapsed_s(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._begin

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside takes none of the run's time."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._begin += time.monotonic() - begin

    def progress(self, step: int) -> float:
        """Share of the whole run that has passed before `step`, from 0 to 1."""
        passed = self.elapsed_s / self.total_s if self.steps is None else step / self.steps
        return min(1.0, passed)


class Log:
    """Appends one JSON object a line to `log.jsonl` in a folder, and prints it."""

    def __init__(self, folder: Path, is_silent: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._is_silent = folder / "log.jsonl", is_silent

    def write(self, **fields: Any) -> None:
        """Writes one line; floats are rounded to five digits. A silent log writes nothing."""
        if self._is_silent:
            return
        rounded = {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in fields.items()}
        line = json.dumps(rounded)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Saves `state`, replacing an older checkpoint only once the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def save_arrays(path: Path, compressed: bool, **arrays: Any) -> None:
    """Writes an npz file, replacing an older one only once the new one is complete."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        (np.savez_compressed if compressed else np.savez)(file, **arrays)
    os.replace(partial, path)


def load_checkpoint(path: Path, device: str) -> dict[str, Any] | None:
    """The checkpoint at `path`, or `None` where there is none."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=False)
    return state


class Settings(Protocol):
    """The fields of a training config that say how long to train and how often to save."""

    @property
    def minutes(self) -> float: ...
    @property
    def steps(self) -> int | None: ...
    @property
    def checkpoint_minutes(self) -> float: ...


class Training:
    """Model, optimizers, step and clock of a run, saved to `checkpoint.pt` and restored from it together.

    `extra` is whatever else the run needs to go on. `write_weights` is called with every checkpoint. Of processes that train
    together only the leader saves and logs; all restore.
    """

    def __init__(
        self,
        out: Path,
        model: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        settings: Settings,
        device: str,
        write_weights: Callable[[], object],
        is_leader: bool = True,
    ) -> None:
        self._is_leader = is_leader
        self.log, self.step, self.extra = Log(out, is_silent=not is_leader), 0, {}  # type: Log, int, dict[str, Any]
        self._path, self._settings, self._write_weights = out / "checkpoint.pt", settings, write_weights
        self._model, self._optimizers = model, optimizers
        done = load_checkpoint(self._path, device)
        if done:
            model.load_state_dict(done["model"])
            for optimizer, state in zip(optimizers, done["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.step, self.extra = done["step"], done["extra"]
        self.is_resumed = done is not None
        self.clock = Clock(settings.minutes, done["elapsed_s"] if done else 0.0, settings.steps)
        self._saved_s = self.clock.elapsed_s

    @property
    def progress(self) -> float:
        """Share of the whole run that has passed, from 0 to 1."""
        return self.clock.progress(self.step)

    @property
    def is_over(self) -> bool:
        """Whether the run has had all its time or steps."""
        return self.progress >= 1.0

    def advance(self) -> None:
        """Counts a step, and saves if it is time."""
        self.step += 1
        if self._is_leader and self.clock.elapsed_s - self._saved_s > self._settings.checkpoint_minutes * 60:
            self.save()

    def save(self) -> None:
        """Saves everything."""
        state = {"model": self._model.state_dict(), "optimizers": [o.state_dict() for o in self._optimizers]}
        place = {"step": self.step, "elapsed_s": self.clock.elapsed_s, "extra": self.extra}
        save_checkpoint(self._path, {**state, **place})
        self._write_weights()
        self._saved_s = self.clock.elapsed_s


def save_shards(folder: Path, name: str, tensors: dict[str, Tensor], shard_bytes: int = SHARD_BYTES) -> list[Path]:
    """Writes tensors as `NAME-1.safetensors`, `NAME-2.safetensors`, .. of at most `shard_bytes` each."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}-*.safetensors"):
        old.unlink()
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, tensor in tensors.items():
        num_bytes = tensor.numel() * tensor.element_size()
        if size + num_bytes > shard_bytes and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][key] = tensor.detach().cpu().contiguous()
        size += num_bytes
    paths = [folder / f"{name}-{i + 1}.safetensors" for i in range(len(shards))]
    for path, shard in zip(paths, shards, strict=True):
        save_file(shard, path, metadata={"format": "pt"})
    return paths
