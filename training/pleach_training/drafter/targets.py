"""Opens a target by path: a GGUF Llama, the bundled model as trained or as shipped, or any Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ..export import read_quantized, read_shards
from ..gguf import load_llama, load_tokenizer
from ..target.config import TargetConfig
from ..target.model import Target
from .features import BundledFeatures, Features, HuggingFaceFeatures


def open_model(path: Path, device: str) -> Any:
    """The target as a Hugging Face model, frozen, in bf16 on a GPU."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if path.suffix == ".gguf":
        model: Any = load_llama(path)
    elif is_quantized(path):
        model = load_quantized(path)
    else:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    return model.to(device=device, dtype=dtype).eval().requires_grad_(False)


def open_tokenizer(path: Path) -> Any:
    """The tokenizer, with its chat template, of a folder or a GGUF file."""
    return load_tokenizer(path) if path.suffix == ".gguf" else AutoTokenizer.from_pretrained(path)


def load_quantized(folder: Path) -> Any:
    """The bundled model as shipped, as the library's model with its unpacked weights in f32."""
    config, state = read_quantized(folder)
    shape = AutoConfig.for_model(**config)
    model: Any = AutoModelForCausalLM.from_config(shape).float()
    # The library has no prediction head, and the head is the embedding.
    missing, unexpected = model.load_state_dict({k: v for k, v in state.items() if not k.startswith("mtp.")}, strict=False)
    if unexpected or missing not in ([], ["lm_head.weight"]):
        raise ValueError(f"{folder}: tensors {missing} are missing and {unexpected} not known: export the model again")
    model.generation_config.eos_token_id = config["eos_token_id"]
    return model


def open_features(path: Path, device: str) -> Features:
    """The target's features; the bundled model has a network of its own."""
    if is_bundled(path):
        return BundledFeatures(open_bundled(path, device))
    return HuggingFaceFeatures(open_model(path, device))


def is_bundled(path: Path) -> bool:
    """Whether `path` is a folder that `target.train` wrote, or one that `export target --bits` made of it."""
    return (path / "shape.json").exists() or is_quantized(path)


def is_quantized(path: Path) -> bool:
    """Whether `path` is a folder that `export target --bits` wrote."""
    file = path / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return "quantization" in config and config.get("model_type") == "qwen3_5_text"


def open_bundled(path: Path, device: str) -> Target:
    """The bundled model's training network, frozen, in f32."""
    if is_quantized(path):
        config, state = read_quantized(path)
        shape = TargetConfig.from_hugging_face(config)
    else:
        shape, state = TargetConfig.load(path / "shape.json"), read_shards(path / "weights")
    model = Target(shape)
    model.load_state_dict(state)
    return model.to(device).eval().requires_grad_(False)
