"""What a drafter reads of its target: taps, final hidden states, embedding and head, of any causal language model."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ..target.config import TargetConfig
from ..target.model import Target, compute_dtype, make_layout


class Features(Protocol):
    """A frozen target."""

    embedding: Tensor  # [vocab, hidden]
    head: Tensor  # [vocab, hidden]
    hidden_size: int
    num_layers: int
    length_step: int  # lengths are rounded up to it

    def run(self, ids: Tensor, taps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Taps `[batch, time, num_taps * hidden]` and final-normed hidden states `[batch, time, hidden]`, bf16 on a GPU.

        Rows of `ids` are sequences from their beginning; what follows a shorter one's end is ignored by the caller.
        """


class HuggingFaceFeatures:
    """A Hugging Face causal language model."""

    length_step = 64

    def __init__(self, model: Any) -> None:
        self.model = model
        self.embedding = model.get_input_embeddings().weight.detach()
        self.head = model.get_output_embeddings().weight.detach()
        config = model.config.get_text_config()
        self.hidden_size, self.num_layers = config.hidden_size, config.num_hidden_layers

    @torch.no_grad()
    def run(self, ids: Tensor, taps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        out = self.model.base_model(input_ids=ids, output_hidden_states=True, use_cache=False)
        return torch.cat([out.hidden_states[tap + 1] for tap in taps], -1), out.last_hidden_state


class BundledFeatures:
    """The bundled model's own training network: its chunked kernels are faster than the library's fallback."""

    # Compiled blocks are compiled for each length, so there are few.
    length_step = 512

    def __init__(self, model: Target) -> None:
        self.model = model
        self.config: TargetConfig = model.config
        if next(model.parameters()).is_cuda:
            for block in model.model.layers:
                block.compile(dynamic=False)
        self.embedding = self.head = model.model.embed_tokens.weight.detach()
        self.hidden_size, self.num_layers = self.config.hidden_size, self.config.num_hidden_layers

    @torch.no_grad()
    def run(self, ids: Tensor, taps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        starts = torch.zeros_like(ids, dtype=torch.bool)
        starts[:, 0] = True
        trunk, kept = self.model.model, []
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            layout = make_layout(self.config, starts)
            x = F.embedding(ids, self.embedding).to(compute_dtype(ids))
            for i, layer in enumerate(trunk.layers):
                x = layer(x, layout)
                if i in taps:
                    kept.append(x)
            return torch.cat(kept, -1), trunk.norm(x)
