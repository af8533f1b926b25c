"""A scorer that knows a node's own token only, not its path: TreeFlash's approximation (arXiv:2606.03819), to compare with.

It corrects the drafter's logits by a query as a Weaver does, `logit_c = z_c + <query, head_c>`, but the query comes from one
SwiGLU of the node's token and the drafter's row that proposes its children. All queries of a tree can be had at once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .model import BiasedNorm, WeaverConfig


class ParentScorer(nn.Module):
    """The network, with a Weaver's interface; `mlp_dim` is its inner width, `d_rank` and `num_heads` mean nothing to it."""

    def __init__(self, config: WeaverConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_norm = BiasedNorm(config.d_embed, config.eps)
        self.output_norm = BiasedNorm(config.d_model, config.eps)
        self.gate_up_proj = nn.Linear(config.d_embed + config.d_model, 2 * config.mlp_dim)
        self.down_proj = nn.Linear(config.mlp_dim, config.d_model, bias=False)
        nn.init.zeros_(self.down_proj.weight)

    def forward(self, prefix: Tensor, tokens: Tensor) -> Tensor:
        """Queries `[batch, depths, d_model]` along one path; arguments as a Weaver takes them."""
        return self._query(tokens, prefix[:, 1 : 1 + tokens.shape[1]])

    def prefix_keys(self, prefix: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The prefix itself, where a Weaver has keys and values."""
        return [(prefix.unsqueeze(1), prefix.unsqueeze(1))]

    def nodes(
        self, tokens: Tensor, depth: int, keys: list[tuple[Tensor, Tensor]], paths: Tensor | None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Queries `[batch, width, d_model]` of nodes of one depth; it keeps nothing of them."""
        row = keys[0][0][:, 0, depth + 1]
        nothing = tokens.new_empty(len(tokens), 1, 0, row.shape[-1])
        return self._query(tokens, row.unsqueeze(1).expand(-1, tokens.shape[1], -1)), [(nothing, nothing)]

    def _query(self, tokens: Tensor, rows: Tensor) -> Tensor:
        pair = torch.cat([self.embed_norm(tokens), self.output_norm(rows)], -1)
        gate, up = self.gate_up_proj(pair).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)
