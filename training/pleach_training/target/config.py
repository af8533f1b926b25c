"""Shape of the bundled model, and its `config.json` as `Qwen3_5ForCausalLM` reads it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

ATTENTION_INTERVAL = 4


@dataclass(frozen=True)
class TargetConfig:
    """Shape of a Qwen3.5 hybrid: three Gated DeltaNet layers, then one gated attention layer."""

    vocab_size: int = 12288
    hidden_size: int = 384
    intermediate_size: int = 1024
    num_hidden_layers: int = 12
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 64
    linear_num_key_heads: int = 6
    linear_num_value_heads: int = 6
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    partial_rotary_factor: float = 0.25
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    end_of_text_id: int = 0
    turn_end_id: int = 0

    @property
    def key_dim(self) -> int:
        """Width of all DeltaNet keys of a token."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """Width of all DeltaNet values of a token."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution: queries, keys and values."""
        return 2 * self.key_dim + self.value_dim

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of a head that are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    def is_full_attention(self, layer: int) -> bool:
        """Whether `layer` is gated attention rather than DeltaNet."""
        return (layer + 1) % ATTENTION_INTERVAL == 0

    def hugging_face(self) -> dict[str, Any]:
        """The `config.json` of a text-only Qwen3.5 checkpoint."""
        layers = range(self.num_hidden_layers)
        third = self.rotary_dim // 2 // 3
        sections = [self.rotary_dim // 2 - 2 * third, third, third]
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "full_attention_interval": ATTENTION_INTERVAL,
            "layer_types": ["full_attention" if self.is_full_attention(i) else "linear_attention" for i in layers],
            "linear_conv_kernel_dim": self.linear_conv_kernel_dim,
            "linear_key_head_dim": self.linear_key_head_dim,
            "linear_value_head_dim": self.linear_value_head_dim,
            "linear_num_key_heads": self.linear_num_key_heads,
            "linear_num_value_heads": self.linear_num_value_heads,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": self.max_position_embeddings,
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
            "rms_norm_eps": self.rms_norm_eps,
            "partial_rotary_factor": self.partial_rotary_factor,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.partial_rotary_factor,
                "mrope_interleaved": True,
                "mrope_section": sections,
            },
            "tie_word_embeddings": True,
            "use_cache": True,
            "initializer_range": 0.02,
            "bos_token_id": None,
            "pad_token_id": self.end_of_text_id,
            "eos_token_id": [self.turn_end_id, self.end_of_text_id],
            "dtype": "bfloat16",
        }

    @staticmethod
    def from_hugging_face(config: dict[str, Any]) -> TargetConfig:
        """The shape whose `config.json` is `config`."""
        named = {field.name: config[field.name] for field in fields(TargetConfig) if field.name in config}
        ends = {"end_of_text_id": config["pad_token_id"], "turn_end_id": config["eos_token_id"][0]}
        return TargetConfig(**named, **ends, rope_theta=config["rope_parameters"]["rope_theta"])

    def save(self, path: Path) -> None:
        """Writes the fields as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> TargetConfig:
        """Reads what `save` wrote."""
        return TargetConfig(**json.loads(path.read_text(encoding="utf-8")))
