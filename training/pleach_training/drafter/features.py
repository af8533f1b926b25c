"""What a drafter reads of its target: taps, final hidden states, embedding and head, of any causal language model."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ..target.config import TargetConfig
from ..target.model import Target, make_layout


class Features(Protocol):
    """A frozen target."""

    embedding: Tensor  # [vocab, hidden]
    head: Tensor  # [vocab, hidden]
    hidden_size: int
    num_layers: int

    def run(self, ids: Tensor, taps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Taps `[batch, time, num_taps * hidden]` and final-normed hidden states `[batch, time, hidden]`, bf16 on a GPU.

        Rows of `ids` are sequences from their beginning; what follows a shorter one's end is ignored by the caller.
        """


class HuggingFaceFeatures:
    """A Hugging Face causal language model."""

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
        outputs: dict[int, Tensor] = {}
        hooks = [
            self.model.model.layers[tap].register_forward_hook(
                lambda _module, _inputs, out, tap=tap: outputs.__setitem__(tap, out)
            )
            for tap in taps
        ]
        try:
            with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
                hidden, _ = self.model(ids, make_layout(self.config, starts), with_mtp=False)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([outputs[tap] for tap in taps], -1), hidden
