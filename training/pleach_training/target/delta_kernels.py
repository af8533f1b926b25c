"""The gated delta rule through `fla`'s Triton kernels, as one operator that `torch.compile` does not look into."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

CHUNK = 64


@functools.cache
def available() -> bool:
    """Whether the kernels are installed; `PLEACH_DELTA_RULE=torch` turns them off."""
    if os.environ.get("PLEACH_DELTA_RULE") == "torch" or importlib.util.find_spec("fla") is None:
        return False
    thin_autotuning(int(os.environ.get("PLEACH_AUTOTUNE", "2")))
    return True


def thin_autotuning(keep: int) -> None:
    """Lets each Triton kernel try `keep` configurations only: compiling dozens takes longer than they save here."""
    from triton.runtime import autotuner

    original = autotuner.Autotuner.__init__

    def thin(self, fn, arg_names, configs, *rest, **named):  # type: ignore[no-untyped-def]
        step = max(1, len(configs) // keep)
        original(self, fn, arg_names, configs[step // 2 :: step][:keep], *rest, **named)

    autotuner.Autotuner.__init__ = thin  # type: ignore[method-assign]


@torch.library.custom_op("pleach::delta_rule_forward", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_fwd

    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    sums, out, inverse, *_ = chunk_gated_delta_rule_fwd(
        q, k, v, g, beta, scale=q.shape[-1] ** -0.5, initial_state=None, output_final_state=False
    )
    return out, sums, inverse


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    inverse = k.new_empty(*k.shape[:3], CHUNK)
    return v.new_empty(v.shape), g.new_empty(g.shape), inverse


@torch.library.custom_op("pleach::delta_rule_backward", mutates_args=())
def _backward(
    q: Tensor, k: Tensor, v: Tensor, sums: Tensor, beta: Tensor, inverse: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_bwd

    q, k, v, beta, grad = (x.contiguous() for x in (q, k, v, beta, grad))
    dq, dk, dv, dbeta, dg, *_ = chunk_gated_delta_rule_bwd(
        q, k, v, sums, beta, inverse, scale=q.shape[-1] ** -0.5, initial_state=None, do=grad, dht=None
    )
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dg.to(sums.dtype), dbeta.to(beta.dtype)


@_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, sums: Tensor, beta: Tensor, inverse: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return tuple(x.new_empty(x.shape) for x in (q, k, v, sums, beta))  # type: ignore[return-value]


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, _, beta = inputs
    _, sums, inverse = output
    ctx.save_for_backward(q, k, v, sums, beta, inverse)


def _gradients(ctx, grad, _sums, _inverse):  # type: ignore[no-untyped-def]
    q, k, v, sums, beta, inverse = ctx.saved_tensors
    dq, dk, dv, dg, dbeta = _backward(q, k, v, sums, beta, inverse, grad)
    return dq, dk, dv, dg, dbeta


_forward.register_autograd(_gradients, setup_context=_save)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Outputs of the rule, shaped like `v`; `q` and `k` L2-normalized, `g` and `beta` f32."""
    out: Tensor = _forward(q, k, v, g, beta)[0]
    return out
