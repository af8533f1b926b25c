"""The DFlash network, with the parameter names of z-lab's files.

Context features `c = hidden_norm(fc(taps))` enter every layer as keys and values; the rows of a block `[anchor, mask, ..]`
attend to the context before the anchor and to each other. Row `k` predicts the token at its own position, `anchor + k`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import DrafterConfig


class RmsNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight`, in f32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.float()).to(x.dtype)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of `x` `[batch, heads, rows, dim]` at `positions` `[batch, rows]`, half-split pairs."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = (positions.unsqueeze(-1).float() * frequencies).unsqueeze(1)
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class DrafterAttention(nn.Module):
    """Grouped-query attention of block rows over `[context ; block]`."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self.dim, self.theta = dim, config.rope_theta
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * dim, hidden, bias=False)
        self.q_norm = RmsNorm(dim, config.rms_norm_eps)
        self.k_norm = RmsNorm(dim, config.rms_norm_eps)

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, mask: Any) -> Tensor:
        both = torch.cat([context, x], 1)
        places = torch.arange(context.shape[1], device=x.device).expand(x.shape[0], -1)
        q = self._heads(self.q_proj(x), self.q_norm)
        k = self._heads(self.k_proj(both), self.k_norm)
        v = self.v_proj(both).unflatten(-1, (-1, self.dim)).transpose(1, 2)
        q = rotate(q, positions, self.theta)
        k = rotate(k, torch.cat([places, positions], 1), self.theta)
        return self.o_proj(attend(q, k, v, mask).transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor, norm: RmsNorm) -> Tensor:
        return norm(x.unflatten(-1, (-1, self.dim))).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """Softmax attention `[batch, heads, rows, dim]` under a boolean mask or flex attention's block mask."""
    if isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    from torch.nn.attention.flex_attention import flex_attention

    out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    assert isinstance(out, Tensor)
    return out


class DrafterMlp(nn.Module):
    """`down(silu(gate x) * up x)`."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DrafterLayer(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DrafterAttention(config)
        self.mlp = DrafterMlp(config)

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, mask: Any) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, positions, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """The whole drafter; embedding and head are the target's."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DrafterLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, taps: Tensor, block: Tensor, positions: Tensor, mask: Any) -> Tensor:
        """Final-normed hidden states `[batch, rows, hidden]` of block rows.

        `taps` `[batch, context, num_taps * hidden]` stand at positions 0, 1, ..; `block` `[batch, rows, hidden]` are the
        embedded rows of all blocks, at `positions` `[batch, rows]`; `mask` says what each row sees of `[context ; rows]`.
        """
        context = self.hidden_norm(self.fc(taps))
        x = block
        for layer in self.layers:
            x = layer(x, context, positions, mask)
        return self.norm(x)


_COMPILED: dict[str, Any] = {}


def block_mask(begins: Tensor, anchors: Tensor, block_size: int, context: int) -> Any:
    """What block rows see: context from `begins` to before `anchors` (`[batch, blocks]` each), and their own block.

    Flex attention's block mask on a GPU, else booleans `[batch, 1, blocks * block_size, context + blocks * block_size]`.
    """
    batch, blocks = anchors.shape
    rows = blocks * block_size

    def sees(b: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        own = q // block_size
        before = (k < anchors[b, own]) & (k >= begins[b, own])
        return (before & (k < context)) | ((k - context) // block_size == own) & (k >= context)

    if anchors.is_cuda:
        from torch.nn.attention.flex_attention import create_block_mask

        if "mask" not in _COMPILED:
            _COMPILED["mask"] = torch.compile(create_block_mask)
        return _COMPILED["mask"](sees, batch, None, rows, context + rows, device=anchors.device)
    b = torch.arange(batch).view(-1, 1, 1)
    q = torch.arange(rows).view(1, -1, 1)
    return sees(b, b, q, torch.arange(context + rows).view(1, 1, -1)).unsqueeze(1)
