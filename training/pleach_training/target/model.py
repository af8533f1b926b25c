"""The bundled model: a Qwen3.5 hybrid with Hugging Face's parameter names, written for training.

It takes rows of packed documents. A document starts from an empty state: its first token resets the DeltaNet state, its
convolution does not look across the edge, and its attention stays inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TargetConfig
from .delta_rule import RESET, gated_delta_rule


@dataclass
class Layout:
    """What the layers need to know of a batch of packed rows, `[batch, time]`.

    `starts` marks the first token of each document; `mask` keeps attention causal and within documents, as flex
    attention's block mask on a GPU, else as booleans `[batch, 1, time, time]`; `cos`, `sin` `[time, rotary_dim]` are f32.
    Only differences of positions matter, so positions count along the row.
    """

    starts: Tensor
    mask: Any
    cos: Tensor
    sin: Tensor


class ZeroCenteredNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * (1 + weight)`, in f32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).to(x.dtype)


class GatedNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight * silu(gate)`, in f32, over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()
        return (y * F.silu(gate.float())).to(x.dtype)


class Mlp(nn.Module):
    """`down(silu(gate x) * up x)`."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Gated attention: softmax attention times `sigmoid(gate)`; per head, `q_proj` gives the query, then the gate."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self.heads, self.dim, self.rotary_dim = config.num_attention_heads, dim, config.rotary_dim
        self.q_proj = nn.Linear(hidden, 2 * self.heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, hidden, bias=False)
        self.q_norm = ZeroCenteredNorm(dim, config.rms_norm_eps)
        self.k_norm = ZeroCenteredNorm(dim, config.rms_norm_eps)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        q, gate = self.q_proj(x).unflatten(-1, (self.heads, 2 * self.dim)).chunk(2, -1)
        k = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.dim)))
        v = self.v_proj(x).unflatten(-1, (-1, self.dim))
        q, k = (rotate(y.transpose(1, 2), layout, self.rotary_dim) for y in (self.q_norm(q), k))
        out = attend(q, k, v.transpose(1, 2), layout.mask).transpose(1, 2)
        return self.o_proj((out * torch.sigmoid(gate)).flatten(2))


def rotate(x: Tensor, layout: Layout, rotary_dim: int) -> Tensor:
    """Rotates the leading `rotary_dim` dimensions of `x` `[batch, heads, time, dim]` in half-split pairs."""
    turned, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    first, second = turned.float().chunk(2, -1)
    partner = torch.cat([-second, first], -1)
    turned = (turned.float() * layout.cos + partner * layout.sin).to(x.dtype)
    return torch.cat([turned, rest], -1)


class DeltaNet(nn.Module):
    """Gated DeltaNet: short convolution, gated delta rule, gated norm."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.linear_num_value_heads
        self.in_proj_qkv = nn.Linear(hidden, config.conv_dim, bias=False)
        self.in_proj_z = nn.Linear(hidden, config.value_dim, bias=False)
        self.in_proj_a = nn.Linear(hidden, heads, bias=False)
        self.in_proj_b = nn.Linear(hidden, heads, bias=False)
        self.conv1d = nn.Conv1d(
            config.conv_dim,
            config.conv_dim,
            config.linear_conv_kernel_dim,
            groups=config.conv_dim,
            bias=False,
        )
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(inverse_softplus(log_uniform(heads, 1e-3, 1e-1)))
        self.norm = GatedNorm(config.linear_value_head_dim, config.rms_norm_eps)
        self.out_proj = nn.Linear(config.value_dim, hidden, bias=False)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        c = self.config
        mixed = self.convolve(self.in_proj_qkv(x), layout.starts)
        q, k, v = mixed.split([c.key_dim, c.key_dim, c.value_dim], -1)
        q, k = (y.unflatten(-1, (c.linear_num_key_heads, -1)) for y in (q, k))
        v = v.unflatten(-1, (c.linear_num_value_heads, -1))
        beta = torch.sigmoid(self.in_proj_b(x).float())
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        g = torch.where(layout.starts.unsqueeze(-1), torch.full_like(g, RESET), g)
        out = gated_delta_rule(q, k, v, g, beta)
        z = self.in_proj_z(x).unflatten(-1, (c.linear_num_value_heads, -1))
        return self.out_proj(self.norm(out, z).flatten(2))

    def convolve(self, x: Tensor, starts: Tensor) -> Tensor:
        """SiLU of the depthwise causal convolution; the last tap meets the current token."""
        taps = self.conv1d.weight.squeeze(1).to(x.dtype)
        total = x * taps[:, -1]
        inside = torch.ones_like(starts)
        for back in range(1, taps.shape[1]):
            inside = inside & ~shift(starts, back - 1)
            total = total + torch.where(inside.unsqueeze(-1), shift(x, back), 0) * taps[:, -1 - back]
        return F.silu(total)


def shift(x: Tensor, steps: int) -> Tensor:
    """`x` `[batch, time, ..]` delayed by `steps`, zeros (or false) first."""
    if steps == 0:
        return x
    return torch.cat([torch.zeros_like(x[:, :steps]), x[:, :-steps]], 1)


def log_uniform(size: int, low: float, high: float) -> Tensor:
    """Numbers whose logarithm is uniform."""
    return torch.exp(torch.empty(size).uniform_(torch.tensor(low).log().item(), torch.tensor(high).log().item()))


def inverse_softplus(y: Tensor) -> Tensor:
    """`x` with `softplus(x) = y`."""
    return y + torch.log(-torch.expm1(-y))


class Block(nn.Module):
    """`h = x + mixer(norm(x)); h + mlp(norm(h))`."""

    def __init__(self, config: TargetConfig, full_attention: bool) -> None:
        super().__init__()
        self.input_layernorm = ZeroCenteredNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = ZeroCenteredNorm(config.hidden_size, config.rms_norm_eps)
        if full_attention:
            self.self_attn = Attention(config)
        else:
            self.linear_attn = DeltaNet(config)
        self.mlp = Mlp(config)
        self.full_attention = full_attention

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        mixer = self.self_attn if self.full_attention else self.linear_attn
        h = x + mixer(self.input_layernorm(x), layout)
        return h + self.mlp(self.post_attention_layernorm(h))


class Mtp(nn.Module):
    """The multi-token-prediction head: one attention block over `fc [norm(embedding of t+1) ; norm(hidden of t)]`."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = ZeroCenteredNorm(hidden, eps)
        self.pre_fc_norm_hidden = ZeroCenteredNorm(hidden, eps)
        self.layers = nn.ModuleList([Block(config, full_attention=True)])
        self.norm = ZeroCenteredNorm(hidden, eps)

    def forward(self, next_embedding: Tensor, hidden: Tensor, layout: Layout) -> Tensor:
        pair = torch.cat([self.pre_fc_norm_embedding(next_embedding), self.pre_fc_norm_hidden(hidden)], -1)
        return self.norm(self.layers[0](self.fc(pair), layout))


class Trunk(nn.Module):
    """Embedding, blocks and final norm: the parameters under `model.` in a checkpoint."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, config.is_full_attention(i)) for i in range(config.num_hidden_layers))
        self.norm = ZeroCenteredNorm(config.hidden_size, config.rms_norm_eps)


class Target(nn.Module):
    """The whole model; `state_dict` has the names of a Hugging Face checkpoint (tied head, so no `lm_head`)."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.mtp = Mtp(config)
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        depth = (2 * self.config.num_hidden_layers) ** 0.5
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.Linear | nn.Embedding) and name == "weight":
                nn.init.normal_(parameter, std=0.02)
        for child in ("o_proj", "down_proj", "out_proj"):
            if isinstance(getattr(module, child, None), nn.Linear):
                nn.init.normal_(getattr(module, child).weight, std=0.02 / depth)

    def forward(self, ids: Tensor, layout: Layout, with_mtp: bool = True) -> tuple[Tensor, Tensor | None]:
        """Final-normed hidden states of the trunk and, if asked for, of the MTP head, `[batch, time, hidden]` each.

        Row `t` of the second stands for token `t + 2`; its last row of each document means nothing.
        """
        x = F.embedding(ids, self.model.embed_tokens.weight).to(compute_dtype(ids))
        embedded = x
        for layer in self.model.layers:
            x = layer(x, layout)
        hidden: Tensor = self.model.norm(x)
        if not with_mtp:
            return hidden, None
        following = torch.cat([embedded[:, 1:], embedded[:, :1]], 1)
        return hidden, self.mtp(following, hidden, layout)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, in the dtype of `hidden`."""
        return F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))


def compute_dtype(like: Tensor) -> torch.dtype:
    """bf16 under autocast, f32 otherwise."""
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32


def rope_table(config: TargetConfig, time: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[time, rotary_dim]`, f32, of plain rotary embedding (three equal mRoPE positions)."""
    half = config.rotary_dim // 2
    frequencies = config.rope_theta ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angles = torch.arange(time, device=device, dtype=torch.float32).unsqueeze(-1) * frequencies
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def make_layout(config: TargetConfig, starts: Tensor) -> Layout:
    """The layout of packed rows whose documents begin where `starts` `[batch, time]` is true."""
    cos, sin = rope_table(config, starts.shape[1], starts.device)
    documents = starts.cumsum(1)
    mask = _block_mask(documents) if starts.is_cuda else _dense_mask(documents)
    return Layout(starts, mask, cos, sin)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """Softmax attention `[batch, heads, time, dim]` within documents; keys and values may have fewer heads."""
    if isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    from torch.nn.attention.flex_attention import flex_attention

    out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    assert isinstance(out, Tensor)
    return out


def _dense_mask(documents: Tensor) -> Tensor:
    time = documents.shape[1]
    causal = torch.ones(time, time, dtype=torch.bool, device=documents.device).tril()
    return (documents.unsqueeze(-1) == documents.unsqueeze(-2)).unsqueeze(1) & causal


_COMPILED: dict[str, Any] = {}


def _block_mask(documents: Tensor) -> Any:
    """Which tiles of 128 queries and keys meet: causal, within documents."""
    from torch.nn.attention.flex_attention import create_block_mask

    if "mask" not in _COMPILED:
        _COMPILED["mask"] = torch.compile(create_block_mask)

    def within(b: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (documents[b, q] == documents[b, k])

    batch, time = documents.shape
    return _COMPILED["mask"](within, batch, None, time, time, device=documents.device)
