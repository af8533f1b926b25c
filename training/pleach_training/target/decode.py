"""A decoder for the bundled model: fixed-size states that a captured step can update in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..decode_attention import attend_cache
from .config import TargetConfig
from .delta_rule import l2_normalize
from .model import Attention, DeltaNet, Target, compute_dtype


@dataclass
class LayerState:
    """What a layer remembers of `rows` sequences.

    DeltaNet: `first` is the recurrent state `[rows, value_heads, key_dim, value_dim]` f32, `second` the last inputs of the
    convolution `[rows, kernel - 1, conv_dim]`. Attention: keys and values `[rows, kv_heads, capacity, head_dim]`.
    """

    first: Tensor
    second: Tensor


class BundledDecoder:
    """States of a batch of sequences, and a step over them; see `generation.Decoder`."""

    def __init__(self, model: Target, rows: int, capacity: int) -> None:
        self.model, self.config = model, model.config
        self.blocks: Any = model.model.layers
        self.device = model.model.embed_tokens.weight.device
        self.capacity = capacity
        self.tokens = torch.zeros(rows, dtype=torch.long, device=self.device)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=self.device)
        self.layers = [self._state(layer, rows) for layer in range(self.config.num_hidden_layers)]
        half = self.config.rotary_dim // 2
        steps = torch.arange(half, device=self.device, dtype=torch.float32)
        self.frequencies = self.config.rope_theta ** (-steps / half)

    def _state(self, layer: int, rows: int) -> LayerState:
        c: TargetConfig = self.config
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        if c.is_full_attention(layer):
            shape = (rows, c.num_key_value_heads, self.capacity, c.head_dim)
            return LayerState(*(torch.zeros(shape, dtype=dtype, device=self.device) for _ in range(2)))
        state = (rows, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim)
        window = (rows, c.linear_conv_kernel_dim - 1, c.conv_dim)
        return LayerState(torch.zeros(state, device=self.device), torch.zeros(window, dtype=dtype, device=self.device))

    @torch.no_grad()
    def step(self) -> Tensor:
        """Appends `tokens` to the sequences; logits `[rows, vocab]` of what follows, f32. Changes states in place."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            x = self.model.model.embed_tokens(self.tokens).to(compute_dtype(self.tokens))
            for block, state in zip(self.blocks, self.layers, strict=True):
                normed = block.input_layernorm(x)
                if block.full_attention:
                    x = x + self._attend(block.self_attn, normed, state)
                else:
                    x = x + self._recur(block.linear_attn, normed, state)
                x = x + block.mlp(block.post_attention_layernorm(x))
            logits = self.model.logits(self.model.model.norm(x)).float()
        self.lengths.add_(1)
        return logits

    def _attend(self, mixer: Attention, x: Tensor, state: LayerState) -> Tensor:
        q, gate = mixer.q_proj(x).unflatten(-1, (mixer.heads, 2 * mixer.dim)).chunk(2, -1)
        k = mixer.k_norm(mixer.k_proj(x).unflatten(-1, (-1, mixer.dim)))
        v = mixer.v_proj(x).unflatten(-1, (-1, mixer.dim))
        q, k = self._rotate(mixer.q_norm(q)), self._rotate(k)
        place = self.lengths.view(-1, 1, 1, 1).expand(-1, k.shape[1], 1, k.shape[2])
        state.first.scatter_(2, place, k.unsqueeze(2).to(state.first.dtype))
        state.second.scatter_(2, place, v.unsqueeze(2).to(state.second.dtype))
        grouped = q.unflatten(1, (k.shape[1], -1)).to(state.first.dtype)
        out = attend_cache(grouped, state.first, state.second, self.lengths)
        return mixer.o_proj((out.flatten(1, 2) * torch.sigmoid(gate)).flatten(1))

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotates `x` `[rows, heads, dim]` at each row's position."""
        angles = (self.lengths.unsqueeze(1).float() * self.frequencies).unsqueeze(1)
        size = self.config.rotary_dim
        a, b = x[..., :size].float().chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
        return torch.cat([turned, x[..., size:]], -1)

    def _recur(self, mixer: DeltaNet, x: Tensor, state: LayerState) -> Tensor:
        c = self.config
        new = mixer.in_proj_qkv(x)
        is_fresh = self.lengths == 0
        state.first.masked_fill_(is_fresh[:, None, None, None], 0)
        state.second.masked_fill_(is_fresh[:, None, None], 0)
        window = torch.cat([state.second, new.unsqueeze(1).to(state.second.dtype)], 1)
        state.second.copy_(window[:, 1:])
        taps = mixer.conv1d.weight.squeeze(1).T.to(window.dtype)
        q, k, v = F.silu((window * taps).sum(1)).split([c.key_dim, c.key_dim, c.value_dim], -1)
        repeats = c.linear_num_value_heads // c.linear_num_key_heads
        q, k = (y.float().unflatten(-1, (c.linear_num_key_heads, -1)) for y in (q, k))
        q, k = (l2_normalize(y).repeat_interleave(repeats, dim=1) for y in (q, k))
        v = v.float().unflatten(-1, (c.linear_num_value_heads, -1))
        beta = torch.sigmoid(mixer.in_proj_b(x).float()).unsqueeze(-1)
        g = -mixer.A_log.float().exp() * F.softplus(mixer.in_proj_a(x).float() + mixer.dt_bias.float())
        kept = state.first * g.exp()[..., None, None]
        write = beta * (v - torch.einsum("bhkv,bhk->bhv", kept, k))
        state.first.copy_(kept + k.unsqueeze(-1) * write.unsqueeze(-2))
        out = torch.einsum("bhkv,bhk->bhv", state.first, q) * c.linear_key_head_dim**-0.5
        z = mixer.in_proj_z(x).unflatten(-1, (c.linear_num_value_heads, -1))
        return mixer.out_proj(mixer.norm(out.to(x.dtype), z).flatten(1))
