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

    autotuner.Autotuner.__init__ = thin


def chunk_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    h: Tensor,
    dh: Tensor,
    w: Tensor,
    g: Tensor,
    dv: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `q`, `k`, `w` and of the running decay, given those of outputs, states and new values.

    Stands in for `fla`'s `chunk_bwd_dqkwg`, which Triton 3.4 to 3.7.0 compiles wrongly for Hopper. `q`, `k`, `w` and the
    new values `v` are `[batch, time, heads, dim]`, `time` a multiple of 64; `h`, `dh` `[batch, chunks, heads, key, value]`
    are the states that each chunk begins with and the gradients of those that it ends with; `g` `[batch, time, heads]` is
    the running log2 decay in each chunk.
    """
    q, k, v, do, dv = (_tiles(x) for x in (q, k, v, do, dv))
    sums = _tiles(g.unsqueeze(-1)).squeeze(-1)
    last = sums[..., -1:]
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = torch.exp2((sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(~lower, -torch.inf))

    h, dh = h.to(q.dtype), dh.to(q.dtype)
    to_state = torch.exp2(last - sums).unsqueeze(-1)
    dk_state = (v @ dh.mT).float() * to_state
    dq_state = (do @ h.mT).float() * torch.exp2(sums).unsqueeze(-1) * scale
    dw = -(dv @ h.mT)
    ds = ((do @ v.mT).float() * decay * scale).to(q.dtype)
    dq = dq_state + (ds @ k).float()
    dk = dk_state + (ds.mT @ q).float()

    dg = (dq * q.float()).sum(-1) - (dk * k.float()).sum(-1)
    kept = (h.float() * dh.float()).sum((-1, -2)) * torch.exp2(last.squeeze(-1))
    at_end = kept + (dk_state * k.float()).sum((-1, -2))
    dg = torch.cat([dg[..., :-1], (dg[..., -1] + at_end).unsqueeze(-1)], -1)
    dq, dk, dw = (_rows(x).to(q.dtype) for x in (dq, dk, dw))
    return dq, dk, dw, _rows(dg.unsqueeze(-1)).squeeze(-1)


def _tiles(x: Tensor) -> Tensor:
    """`[batch, time, heads, dim]` to `[batch, chunks, heads, CHUNK, dim]`."""
    return x.unflatten(1, (-1, CHUNK)).transpose(2, 3).contiguous()


def _rows(x: Tensor) -> Tensor:
    """The inverse of `_tiles`."""
    return x.transpose(2, 3).flatten(1, 2).contiguous()


@functools.cache
def _rule():  # type: ignore[no-untyped-def]
    """`fla`'s module of the chunked rule, with `chunk_gradients` in place of its faulty kernel."""
    from fla.ops.gated_delta_rule import chunk as rule

    compiled = torch.compile(chunk_gradients, dynamic=False)

    def gradients(q, k, v, do, h, dh, w, g, dv, scale, **_unused):  # type: ignore[no-untyped-def]
        return compiled(q, k, v, do, h, dh, w, g, dv, scale)

    rule.chunk_bwd_dqkwg = gradients
    return rule


@torch.library.custom_op("pleach::delta_rule_forward", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    sums, out, inverse, *_ = _rule().chunk_gated_delta_rule_fwd(
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
    q, k, v, beta, grad = (x.contiguous() for x in (q, k, v, beta, grad))
    dq, dk, dv, dbeta, dg, *_ = _rule().chunk_gated_delta_rule_bwd(
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
