"""Attention of one query token a sequence over its cached keys: a kernel on a GPU, PyTorch's elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def attend_cache(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    """Softmax attention, shaped like `q` `[sequences, kv_heads, group, dim]`, over the first `lengths + 1` cached places.

    `keys`, `values` `[sequences, kv_heads, capacity, dim]`; `lengths` `[sequences]`.
    """
    group, dim = q.shape[2:]
    if q.is_cuda and group <= 16 and dim in (16, 32, 64, 128):
        from .decode_kernels import attend_cached

        return attend_cached(q, keys, values, lengths)
    seen = torch.arange(keys.shape[2], device=q.device) <= lengths.unsqueeze(1)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None, None])
