"""The gated delta rule over whole sequences, in chunks.

Per value head, with state `S` [key, value]:

    S' = exp(g_t) S_{t-1}      S_t = S' + k_t (beta_t (v_t - S'^T k_t))^T      o_t = S_t^T q_t

Source: arXiv:2412.06464. `chunked` is plain PyTorch and runs anywhere; on a GPU with `fla` installed, `gated_delta_rule`
uses its Triton kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from . import delta_kernels

CHUNK = 64
# A log decay that empties the state: the first token of a document gets it. exp(-40) is 4e-18.
RESET = -40.0


def l2_normalize(x: Tensor) -> Tensor:
    """`x / sqrt(sum x^2 + 1e-6)` over the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Outputs `[batch, time, heads, value_dim]` f32 of the rule, from a zero state.

    `q`, `k` `[batch, time, heads, key_dim]`, L2-normalized, `q` unscaled; `v` `[batch, time, heads, value_dim]`; log decay
    `g` and `beta` `[batch, time, heads]`. All in f32. Every exponent is a difference that is at most zero.
    """
    time, key_dim = q.shape[1], q.shape[-1]
    pad = -time % CHUNK
    q, k, v = (_to_chunks(F.pad(x, (0, 0, 0, 0, 0, pad))) for x in (q * key_dim**-0.5, k, v))
    g, beta = (_to_chunks(F.pad(x, (0, 0, 0, pad)).unsqueeze(-1)).squeeze(-1) for x in (g, beta))

    total = g.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, -torch.inf).exp()
    identity = torch.eye(CHUNK, dtype=q.dtype, device=q.device)
    mixing = (beta.unsqueeze(-1) * (k @ k.mT) * decay).tril(-1) + identity
    grown = total.exp().unsqueeze(-1)
    solved = torch.linalg.solve_triangular(
        mixing, beta.unsqueeze(-1) * torch.cat([v, grown * k], -1), upper=False, unitriangular=True
    )
    u, w = solved.split([v.shape[-1], key_dim], -1)
    within = (q @ k.mT) * decay
    to_end = (total[..., -1:] - total).exp().unsqueeze(-1) * k

    state = torch.zeros(*q.shape[:2], key_dim, v.shape[-1], dtype=q.dtype, device=q.device)
    outputs = []
    for c in range(q.shape[2]):
        new = u[:, :, c] - w[:, :, c] @ state
        outputs.append((grown[:, :, c] * q[:, :, c]) @ state + within[:, :, c] @ new)
        state = grown[:, :, c, -1:] * state + to_end[:, :, c].mT @ new
    out = torch.stack(outputs, 2).flatten(2, 3)[:, :, :time]
    return out.transpose(1, 2)


def _to_chunks(x: Tensor) -> Tensor:
    """`[batch, time, heads, dim]` to `[batch, heads, chunks, CHUNK, dim]`."""
    return x.transpose(1, 2).unflatten(2, (-1, CHUNK))


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Outputs of the rule, `[batch, time, value_heads, value_dim]`, in the dtype of `v`.

    Shapes as in `chunked`, but `q` and `k` are not normalized yet and may have fewer heads than `v`: value head `h` then
    uses key head `h // (value_heads / key_heads)`.
    """
    repeats = v.shape[2] // q.shape[2]
    q, k = (l2_normalize(x.float()) for x in (q, k))
    if repeats > 1:
        q, k = (x.repeat_interleave(repeats, dim=2) for x in (q, k))
    if q.is_cuda and delta_kernels.available():
        return delta_kernels.delta_rule(q.to(v.dtype), k.to(v.dtype), v, g.float(), beta.float())
    return _untraced(q, k, v.float(), g.float(), beta.float()).to(v.dtype)


# Dozens of unrolled steps would take minutes to compile.
_untraced = torch.compiler.disable(chunked)
