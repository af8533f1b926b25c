"""Shape of a DFlash drafter, and its `config.json` in z-lab's layout."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DrafterConfig:
    """A small Qwen3-style decoder that shares the target's embedding and head.

    `draft_vocab_size` tokens are scored when it is given; the file then holds the list as `draft_to_target`.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    block_size: int = 8
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    draft_vocab_size: int | None = None
    max_position_embeddings: int = 2048

    def z_lab(self) -> dict[str, Any]:
        """The published layout's `config.json`."""
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
            "dflash_config": {
                "target_layer_ids": list(self.target_layer_ids),
                "mask_token_id": self.mask_token_id,
            },
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            **({} if self.draft_vocab_size is None else {"draft_vocab_size": self.draft_vocab_size}),
            "layer_types": ["full_attention"] * self.num_hidden_layers,
            "sliding_window": None,
            "use_sliding_window": False,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "rms_norm_eps": self.rms_norm_eps,
            "max_position_embeddings": self.max_position_embeddings,
            "attention_bias": False,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        }

    def save(self, path: Path) -> None:
        """Writes the fields as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> DrafterConfig:
        """Reads what `save` wrote, or the published layout's `config.json`."""
        found = json.loads(path.read_text(encoding="utf-8"))
        found.update(found.pop("dflash_config", {}))
        named = {field.name: found[field.name] for field in fields(DrafterConfig) if field.name in found}
        return DrafterConfig(**{**named, "target_layer_ids": tuple(found["target_layer_ids"])})


def default_taps(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """Layers whose outputs feed the drafter: evenly from the second to the third last, as z-lab chooses them."""
    if num_taps == 1:
        return (num_target_layers // 2,)
    last = num_target_layers - 4
    return tuple(round(1 + i * last / (num_taps - 1)) for i in range(num_taps))
