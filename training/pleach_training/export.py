"""Writes trained weights in the layouts that inference engines read.

python -m pleach_training.export target --run DIR --tokenizer DIR --out DIR [--bits 8]
python -m pleach_training.export unpack --run DIR --out DIR
python -m pleach_training.export drafter --run DIR --out DIR
python -m pleach_training.export weaver --run DIR --out DIR
python -m pleach_training.export mirai-weaver --run DIR --out DIR
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .drafter.config import DrafterConfig
from .quantize import dequantize_affine, quantize_affine
from .target.config import TargetConfig
from .weaver.model import WeaverConfig

# Small matrices that decide decay and write strength stay in full precision.
_EXACT = ("in_proj_a.weight", "in_proj_b.weight")


def read_shards(folder: Path) -> dict[str, Tensor]:
    """All tensors of the safetensors files in `folder`."""
    state: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        state.update(load_file(path))
    if not state:
        raise FileNotFoundError(f"no *.safetensors in {folder}: point at a folder of weights")
    return state


def quantize_state(state: dict[str, Tensor], bits: int, group_size: int) -> dict[str, Tensor]:
    """Every large matrix as `NAME.weight` (codes), `NAME.scales`, `NAME.biases`; the rest as it is."""
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if tensor.ndim == 2 and name.endswith(".weight") and not name.endswith(_EXACT):
            stem = name.removesuffix(".weight")
            out[name], out[f"{stem}.scales"], out[f"{stem}.biases"] = quantize_affine(tensor, bits, group_size)
        else:
            out[name] = tensor
    return out


def unpack_state(state: dict[str, Tensor], bits: int) -> dict[str, Tensor]:
    """What `quantize_state` was given, as far as its codes tell; matrices in f32."""
    stems = {name.removesuffix(".scales") for name in state if name.endswith(".scales")}
    out = {}
    for name, tensor in state.items():
        stem = name.rpartition(".")[0]
        if stem not in stems:
            out[name] = tensor
        elif name.endswith(".weight"):
            parts = (tensor, state[f"{stem}.scales"], state[f"{stem}.biases"])
            out[name] = dequantize_affine(*parts, bits)
    return out


def read_quantized(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config without its quantization, and unpacked tensors, of a folder that `export_target` quantized."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    bits = config.pop("quantization")["bits"]
    return config, unpack_state(load_file(folder / "model.safetensors"), bits)


def unpack_target(folder: Path, out: Path) -> None:
    """Writes a folder in MLX's group quantization as the bf16 checkpoint that `transformers` loads."""
    config, state = read_quantized(folder)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(folder / name, out / name)
    state = {name: tensor.bfloat16() if tensor.ndim == 2 else tensor for name, tensor in state.items()}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def export_target(run: Path, tokenizer: Path, out: Path, bits: int | None, group_size: int) -> None:
    """Writes the bundled model as `Qwen3_5ForCausalLM`: in bf16, or with `bits` in MLX's group quantization."""
    shape = TargetConfig.load(run / "shape.json")
    state = read_shards(run / "weights")
    config = shape.hugging_face()
    if bits is not None:
        state = quantize_state(state, bits, group_size)
        skipped = {n.removesuffix(".weight"): False for n in state if n.endswith(_EXACT)}
        config["quantization"] = {"bits": bits, "group_size": group_size, "mode": "affine", **skipped}
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config)
    stops = [shape.turn_end_id, shape.end_of_text_id]
    write_json(out / "generation_config.json", {"eos_token_id": stops, "pad_token_id": shape.end_of_text_id})
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, out / name)
    save_file({k: v.contiguous() for k, v in state.items()}, out / "model.safetensors", metadata={"format": "pt"})


def export_drafter(run: Path, out: Path) -> None:
    """Writes a DFlash drafter in z-lab's layout: `config.json` and `model.safetensors`.

    A draft vocabulary is the tensor `draft_to_target` `[draft_vocab_size]`, i32: the token of each scored row.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", DrafterConfig.load(run / "shape.json").z_lab())
    state = {k: v.contiguous() for k, v in load_file(run / "drafter.safetensors").items()}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})


# Mirai's names of the Weaver's parts.
_MIRAI = {
    "embed_norm": "embedding_norm",
    "output_norm": "hidden_state_norm",
    "token_in": "embedding_projection",
    "proposal_in": "hidden_state_projection",
    "norm_attn": "pre_attention_norm",
    "qkv_proj": "qkv_projection",
    "o_proj": "out_projection",
    "norm_mlp": "pre_mlp_norm",
    "gate_up_proj": "mlp.up_projection",
    "down_proj": "mlp.down_projection",
    "out_norm": "output_norm",
    "lm_head_query_in": "query_projection",
}


def mirai_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A Weaver's tensors under Mirai's names: norms have `scales` and `biases`, the up rows of the MLP come first."""
    out = {}
    for name, tensor in state.items():
        *parts, leaf = name.split(".")
        if parts[-1] == "gate_up_proj":
            tensor = torch.cat(tensor.chunk(2)[::-1])
        leaf = {"weight": "weights", "bias": "biases"}[leaf]
        if "norm" in parts[-1]:
            leaf = leaf.replace("weights", "scales")
        parts[0] = "layers" if parts[0] == "blocks" else _MIRAI[parts[0]]
        parts[1:] = [_MIRAI.get(part, part) for part in parts[1:]]
        out["speculator.weaver." + ".".join([*parts, leaf])] = tensor.contiguous()
    return out


def export_weaver(run: Path, out: Path) -> None:
    """Writes a Weaver in the plain layout, `weaver.json` and `weaver.safetensors`; see also `mirai_state`."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "weaver.json", WeaverConfig.load(run / "shape.json").published())
    state = {k: v.contiguous() for k, v in load_file(run / "weaver.safetensors").items()}
    save_file(state, out / "weaver.safetensors", metadata={"format": "pt"})


def export_mirai_weaver(run: Path, out: Path) -> None:
    """Writes a Weaver under Mirai's names: `weaver_config` in `config.json`, tensors in `model.safetensors`."""
    shape = WeaverConfig.load(run / "shape.json")
    out.mkdir(parents=True, exist_ok=True)
    config = {
        "model_dim": shape.d_rank,
        "target_model_dim": shape.d_model,
        "target_embedding_dim": shape.d_embed,
        "num_layers": shape.num_layers,
        "num_heads": shape.num_heads,
        "hidden_dim": shape.mlp_dim,
        "max_depth": shape.max_depth,
        "candidate_pool_size": shape.candidate_pool_size,
        "norm_config": {"epsilon": shape.eps},
        "rope_config": {
            "base": shape.rope_base,
            "head_dim": shape.d_rank // shape.num_heads,
            "max_sequence_length": shape.max_depth + 1,
        },
    }
    write_json(out / "config.json", {"speculator_config": {"weaver_config": config}})
    save_file(
        mirai_state(load_file(run / "weaver.safetensors")),
        out / "model.safetensors",
        metadata={"format": "pt"},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["target", "unpack", "drafter", "weaver", "mirai-weaver"])
    parser.add_argument("--run", type=Path, required=True, help="the folder that a training script wrote")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bits", type=int, choices=[4, 8])
    parser.add_argument("--group-size", type=int, default=64, choices=[32, 64, 128])
    args = parser.parse_args()
    if args.what == "target":
        export_target(args.run, args.tokenizer, args.out, args.bits, args.group_size)
    elif args.what == "unpack":
        unpack_target(args.run, args.out)
    elif args.what == "drafter":
        export_drafter(args.run, args.out)
    elif args.what == "weaver":
        export_weaver(args.run, args.out)
    else:
        export_mirai_weaver(args.run, args.out)


if __name__ == "__main__":
    main()
