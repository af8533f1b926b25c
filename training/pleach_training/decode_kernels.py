"""Attention of one query token a sequence over a cache of fixed capacity, in Triton.

PyTorch's attention with a mask reads the whole capacity; this reads what each sequence holds, which in a batch of replies of
all lengths is less than half.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 64
_ROWS = 16  # a matrix unit's least number of rows; query heads fill as many as there are


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    q_at,
    k_at,
    v_at,
    out_at,
    lengths_at,
    scale,
    capacity,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per sequence and key head: `GROUP` query heads against the first `lengths + 1` keys, block by block."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = sequence * tl.num_programs(1) + head
    length = tl.load(lengths_at + sequence) + 1
    heads, dims, steps = tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, BLOCK)
    q_place = (place * GROUP + heads[:, None]) * DIM + dims[None, :]
    q = tl.load(q_at + q_place, mask=heads[:, None] < GROUP, other=0.0)
    highest = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS, DIM], tl.float32)
    for begin in range(0, length, BLOCK):
        inside = begin + steps < length
        cached = (place * capacity + begin + steps[:, None]) * DIM + dims[None, :]
        k = tl.load(k_at + cached, mask=inside[:, None], other=0.0)
        v = tl.load(v_at + cached, mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(inside[None, :], scores, -1e30)
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shrunk = tl.exp(highest - new_highest)
        weights = tl.exp(scores - new_highest[:, None])
        total = total * shrunk + tl.sum(weights, 1)
        mean = mean * shrunk[:, None] + tl.dot(weights.to(v.dtype), v)
        highest = new_highest
    mean = mean / total[:, None]
    tl.store(out_at + q_place, mean.to(out_at.dtype.element_ty), mask=heads[:, None] < GROUP)


def attend_cached(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    """Softmax attention `[sequences, kv_heads, group, dim]`, shaped like `q`, over the first `lengths + 1` cached places.

    `q` `[sequences, kv_heads, group, dim]` of at most 16 heads a group; `keys`, `values` `[sequences, kv_heads, capacity,
    dim]`, contiguous, `dim` a power of two; `lengths` `[sequences]`, i64.
    """
    sequences, kv_heads, group, dim = q.shape
    q, out = q.contiguous(), torch.empty_like(q, memory_format=torch.contiguous_format)
    grid = (sequences, kv_heads)
    sizes = {"GROUP": group, "DIM": dim, "ROWS": _ROWS, "BLOCK": _BLOCK}
    _attend[grid](q, keys, values, out, lengths, dim**-0.5, keys.shape[2], **sizes, num_warps=4)
    return out
