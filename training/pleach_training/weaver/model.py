"""The Weaver network, with the parameter names of the published checkpoint.

A round has a prefix, run once: the target's final hidden state of the last committed row, then the drafter's rows 1, 2, ...
A node stands for a token at some depth (the anchor has depth 0); it sees the prefix, its ancestors and itself, and gives a
query that corrects the drafter's logits of the next depth: `logit_c = z_c + <query, head_c>`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..drafter.model import rotate


@dataclass(frozen=True)
class WeaverConfig:
    """Shape of a Weaver: `d_model` and `d_embed` are the target's widths, `d_rank` its own."""

    d_model: int
    d_embed: int
    d_rank: int = 256
    num_layers: int = 2
    num_heads: int = 4
    mlp_dim: int = 704
    max_depth: int = 7
    candidate_pool_size: int = 64
    rope_base: float = 10_000.0
    eps: float = 1e-6

    def published(self) -> dict[str, Any]:
        """The fields as the published checkpoint names them."""
        fields = asdict(self)
        fields["K"] = fields.pop("max_depth")
        fields.pop("eps")
        return {**fields, "encoder_mode": 3, "score_head": 4, "activation": "swiglu"}

    def save(self, path: Path) -> None:
        """Writes the fields as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> WeaverConfig:
        """Reads what `save` wrote, or the published layout's `weaver.json`."""
        found = json.loads(path.read_text(encoding="utf-8"))
        if "K" in found:
            found["max_depth"] = found["K"]
        return WeaverConfig(**{field.name: found[field.name] for field in fields(WeaverConfig) if field.name in found})


class BiasedNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight + bias`, in f32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.float() + self.bias.float()).to(x.dtype)


class WeaverBlock(nn.Module):
    """Pre-norm attention and SwiGLU MLP (gate rows first)."""

    def __init__(self, config: WeaverConfig) -> None:
        super().__init__()
        rank = config.d_rank
        self.heads, self.base = config.num_heads, config.rope_base
        self.norm_attn = BiasedNorm(rank, config.eps)
        self.qkv_proj = nn.Linear(rank, 3 * rank, bias=False)
        self.o_proj = nn.Linear(rank, rank, bias=False)
        self.norm_mlp = BiasedNorm(rank, config.eps)
        self.gate_up_proj = nn.Linear(rank, 2 * config.mlp_dim)
        self.down_proj = nn.Linear(config.mlp_dim, rank)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `[batch, heads, rows, dim]` of `x` `[batch, rows, rank]`, rotated."""
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv_proj(self.norm_attn(x)).chunk(3, -1))
        return rotate(q, positions, self.base), rotate(k, positions, self.base), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Adds attention `[batch, heads, rows, dim]` and MLP to the residual stream."""
        x = x + self.o_proj(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up_proj(self.norm_mlp(x)).chunk(2, -1)
        return x + self.down_proj(F.silu(gate) * up)


class Weaver(nn.Module):
    """The whole network; embedding and head are the target's."""

    def __init__(self, config: WeaverConfig) -> None:
        super().__init__()
        self.config = config
        rank = config.d_rank
        self.embed_norm = BiasedNorm(config.d_embed, config.eps)
        self.output_norm = BiasedNorm(config.d_model, config.eps)
        self.token_in = nn.Linear(config.d_embed, rank)
        self.proposal_in = nn.Linear(config.d_model, rank)
        self.blocks: Any = nn.ModuleList(WeaverBlock(config) for _ in range(config.num_layers))
        self.out_norm = BiasedNorm(rank, config.eps)
        self.lm_head_query_in = nn.Linear(rank, config.d_model, bias=False)
        # With a zero query the scores are the drafter's own: training starts from the tree of marginals.
        nn.init.zeros_(self.lm_head_query_in.weight)

    def forward(self, prefix: Tensor, tokens: Tensor) -> Tensor:
        """Queries `[batch, depths, d_model]` along one path.

        `prefix` `[batch, rows, d_model]`: target row, then drafter rows 1, ..; `tokens` `[batch, depths, d_embed]`: embedded
        tokens at depths 0, 1, ..
        """
        rows, depths = prefix.shape[1], tokens.shape[1]
        x = torch.cat([self.embed_prefix(prefix), self.embed_tokens(tokens)], 1)
        positions = torch.cat([torch.arange(rows), torch.arange(1, depths + 1)]).to(x.device)
        positions = positions.expand(len(x), -1)
        mask = torch.ones(rows + depths, rows + depths, dtype=torch.bool, device=x.device).tril()
        for block in self.blocks:
            q, k, v = block.project(x, positions)
            x = block.finish(x, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        return self.query(x[:, rows:])

    def embed_prefix(self, prefix: Tensor) -> Tensor:
        """Prefix rows at the Weaver's width."""
        return self.proposal_in(self.output_norm(prefix))

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Embedded tokens at the Weaver's width."""
        return self.token_in(self.embed_norm(tokens))

    def query(self, x: Tensor) -> Tensor:
        """Corrections at the target's width."""
        return self.lm_head_query_in(self.out_norm(x))

    def prefix_keys(self, prefix: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each block's keys and values `[batch, heads, rows, dim]` of the prefix."""
        rows = prefix.shape[1]
        positions = torch.arange(rows, device=prefix.device).expand(len(prefix), -1)
        x, kept = self.embed_prefix(prefix), []
        for i, block in enumerate(self.blocks):
            q, k, v = block.project(x, positions)
            kept.append((k, v))
            if i + 1 < len(self.blocks):
                x = block.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return kept

    def nodes(
        self, tokens: Tensor, depth: int, keys: list[tuple[Tensor, Tensor]], paths: Tensor | None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Queries `[batch, width, d_model]` of `width` nodes of one depth, and their own keys and values per block.

        `tokens` `[batch, width, d_embed]`; `keys` hold the prefix, then all earlier nodes; `paths` `[batch, width, depth]`
        says where among the earlier nodes each node's ancestors are, `None` for the root.
        """
        batch, width, _ = tokens.shape
        rows = self.config.max_depth + 1
        positions = torch.full((batch, width), depth + 1, device=tokens.device)
        x, own = self.embed_tokens(tokens), []
        for block, (k_seen, v_seen) in zip(self.blocks, keys, strict=True):
            q, k, v = block.project(x, positions)
            own.append((k, v))
            attended = _attend_paths(q, (k, v), (k_seen, v_seen), rows, paths)
            x = block.finish(x, attended)
        return self.query(x), own


def _attend_paths(
    q: Tensor, own: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], rows: int, paths: Tensor | None
) -> Tensor:
    """Attention of each node over the prefix, its ancestors and itself; `[batch, heads, width, dim]` in and out."""
    heads, width, dim = q.shape[1:]
    gathered = []
    for mine, all_seen in zip(own, seen, strict=True):
        prefix = all_seen[:, :, None, :rows].expand(-1, -1, width, -1, -1)
        parts = [prefix, mine.unsqueeze(3)]
        if paths is not None:
            index = (paths + rows).flatten(1)[:, None, :, None].expand(-1, heads, -1, dim)
            parts.insert(1, all_seen.gather(2, index).unflatten(2, (width, -1)))
        gathered.append(torch.cat(parts, 3))
    k, v = gathered
    weights = ((q.unsqueeze(3) * dim**-0.5) @ k.transpose(3, 4)).softmax(-1)
    return (weights @ v).squeeze(3)
