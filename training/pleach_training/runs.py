"""What every training script shares: a clock that survives restarts, a log, checkpoints written whole or not at all."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

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

    def progress(self, step: int) -> float:
        """Share of the whole run that has passed before `step`, from 0 to 1."""
        passed = self.elapsed_s / self.total_s if self.steps is None else step / self.steps
        return min(1.0, passed)


class Log:
    """Appends one JSON object a line to `log.jsonl` in a folder, and prints it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "log.jsonl"

    def write(self, **fields: Any) -> None:
        """Writes one line; floats are rounded to five digits."""
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


def load_checkpoint(path: Path, device: str) -> dict[str, Any] | None:
    """The checkpoint at `path`, or `None` where there is none."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=False)
    return state


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
