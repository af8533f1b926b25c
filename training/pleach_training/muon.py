"""Muon for hidden matrices, AdamW for the rest.

Muon replaces a matrix's momentum by the nearest orthogonal matrix, found by five Newton-Schulz steps in bf16. Source: Keller
Jordan's description, with the update scaled by `0.2 sqrt(max(rows, columns))` so that it has AdamW's usual size
(arXiv:2502.16982, section 2.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(update: Tensor, steps: int = 5) -> Tensor:
    """About the nearest orthogonal matrices to `update` `[count, rows, columns]`; singular values end within 0.7 to 1.2."""
    a, b, c = _COEFFICIENTS
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized; matrices of one shape are done in one batch."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[tuple(parameter.shape)].append(parameter)
            for parameters in shapes.values():
                self._update(parameters, group)

    def _update(self, parameters: list[nn.Parameter], group: dict) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        momenta = [self._momentum(p) for p in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(gradients, momenta, group["momentum"])
        rows, columns = parameters[0].shape
        scale = 0.2 * max(rows, columns) ** 0.5
        updates = orthogonalize(torch.stack(nesterov)).to(parameters[0].dtype).unbind(0)
        matrices: list[Tensor] = list(parameters)
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, updates, alpha=-group["lr"] * scale)

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        return state["momentum"]


def split_optimizers(
    model: nn.Module, lr: float, weight_decay: float, embedding_lr: float | None = None
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside `model`, AdamW for its vectors, convolutions and embeddings."""
    matrices: list[nn.Parameter] = []
    embeddings: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if "embed" in name and parameter.ndim == 2:
            embeddings.append(parameter)
        else:
            (matrices if parameter.ndim == 2 else others).append(parameter)
    fused = any(p.is_cuda for p in matrices)
    groups = [
        {"params": embeddings, "lr": embedding_lr or lr, "weight_decay": 0.0},
        {"params": others, "lr": lr, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizers: list[torch.optim.Optimizer] = [Muon(matrices, lr=lr, weight_decay=weight_decay)]
    if groups:
        optimizers.append(torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=fused))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def set_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Sets every learning rate to its peak times `factor`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
