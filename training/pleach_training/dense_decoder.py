"""A decoder for dense Hugging Face models with Llama's blocks: Llama, Qwen2, Qwen3 and their like."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .decode_attention import attend_cache


def is_dense(model: Any) -> bool:
    """Whether `DenseDecoder` knows the model's blocks."""
    return getattr(model.config, "model_type", "") in ("llama", "qwen2", "qwen3")


class DenseDecoder:
    """Keys and values `[rows, kv_heads, capacity, head_dim]` of every layer; see `generation.Decoder`."""

    def __init__(self, model: Any, rows: int, capacity: int) -> None:
        config, embedding = model.config, model.get_input_embeddings().weight
        self.model, self.capacity = model, capacity
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        device = embedding.device
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        shape = (config.num_hidden_layers, rows, self.kv_heads, capacity, self.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=embedding.dtype, device=device) for _ in range(2))

    @torch.no_grad()
    def step(self) -> Tensor:
        """Appends `tokens`; logits `[rows, vocab]` of what follows, f32."""
        trunk = self.model.model
        x = trunk.embed_tokens(self.tokens)
        rope = trunk.rotary_emb
        angles = self.lengths.unsqueeze(1).float() * rope.inv_freq.float()
        cos, sin = (angles.cos() * rope.attention_scaling, angles.sin() * rope.attention_scaling)
        for layer, keys, values in zip(trunk.layers, self.keys, self.values, strict=True):
            x = x + self._attend(layer.self_attn, layer.input_layernorm(x), keys, values, (cos, sin))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        self.lengths.add_(1)
        logits: Tensor = self.model.lm_head(trunk.norm(x))
        return logits.float()

    def _attend(self, mixer: nn.Module, x: Tensor, keys: Tensor, values: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        m: Any = mixer
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)) for p in (m.q_proj, m.k_proj, m.v_proj))
        if hasattr(m, "q_norm"):
            q, k = m.q_norm(q), m.k_norm(k)
        q, k = _rotate(q, *turn), _rotate(k, *turn)
        place = self.lengths.view(-1, 1, 1, 1).expand(-1, self.kv_heads, 1, self.head_dim)
        keys.scatter_(2, place, k.unsqueeze(2))
        values.scatter_(2, place, v.unsqueeze(2))
        # Query heads of one key head stand as its rows, so no key is repeated.
        grouped = q.unflatten(1, (self.kv_heads, -1))
        out: Tensor = m.o_proj(attend_cache(grouped, keys, values, self.lengths).flatten(1))
        return out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates `x` `[rows, heads, dim]` by half-split pairs; `cos`, `sin` `[rows, dim / 2]`."""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
