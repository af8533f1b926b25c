"""Opens a target by path: a GGUF Llama, a folder of the bundled model's run, or any Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..gguf import load_llama, load_tokenizer
from ..target.config import TargetConfig
from ..target.model import Target
from ..target.train import load_weights
from .features import BundledFeatures, Features, HuggingFaceFeatures


def open_model(path: Path, device: str) -> Any:
    """The target as a Hugging Face model, frozen, in bf16 on a GPU."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if path.suffix == ".gguf":
        model: Any = load_llama(path)
    else:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    return model.to(device=device, dtype=dtype).eval().requires_grad_(False)


def open_tokenizer(path: Path) -> Any:
    """The tokenizer, with its chat template, of a folder or a GGUF file."""
    return load_tokenizer(path) if path.suffix == ".gguf" else AutoTokenizer.from_pretrained(path)


def open_features(path: Path, device: str) -> Features:
    """The target's features; a folder with `shape.json` and `weights` is a run of `target.train`."""
    if is_run(path):
        return BundledFeatures(open_run(path, device))
    return HuggingFaceFeatures(open_model(path, device))


def is_run(path: Path) -> bool:
    """Whether `path` is a folder that `target.train` wrote."""
    return (path / "shape.json").exists()


def open_run(path: Path, device: str) -> Target:
    """The bundled model's training network, frozen, in f32."""
    model = Target(TargetConfig.load(path / "shape.json"))
    load_weights(model, path / "weights")
    return model.to(device).eval().requires_grad_(False)
