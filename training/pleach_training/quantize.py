"""Group quantization as MLX stores it: `value = code * scale + bias`, one scale and one bias per group along a row."""

from __future__ import annotations

import torch
from torch import Tensor


def quantize_affine(weight: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes packed into u32 words (first code lowest), bf16 scales and biases of a matrix `[rows, columns]`.

    The larger end of a group's range is met exactly and zero is a code, as in MLX.
    """
    columns = weight.shape[1]
    if columns % group_size:
        raise ValueError(f"a row has {columns} elements, which groups of {group_size} do not fill")
    groups = weight.float().unflatten(1, (-1, group_size))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    levels = 2**bits - 1
    from_low = low.abs() > high.abs()
    scale = ((high - low) / levels).clamp(min=1e-7)
    scale = torch.where(from_low, scale, -scale)
    edge = torch.where(from_low, low, high)
    zero = (edge / scale).round()
    scale = torch.where(zero != 0, edge / zero, scale).bfloat16().float()
    bias = torch.where(zero != 0, edge, torch.zeros_like(edge)).bfloat16().float()
    codes = ((groups - bias) / scale).round().clamp(0, levels).to(torch.int64).flatten(1)
    return _pack(codes, bits), scale.squeeze(-1).bfloat16(), bias.squeeze(-1).bfloat16()


def dequantize_affine(codes: Tensor, scales: Tensor, biases: Tensor, bits: int) -> Tensor:
    """The f32 matrix that `quantize_affine` stored."""
    per_word = 32 // bits
    words = codes.view(torch.int32).long() & 0xFFFFFFFF
    shifts = torch.arange(per_word) * bits
    values = ((words.unsqueeze(-1) >> shifts) & (2**bits - 1)).flatten(1).float()
    groups = values.unflatten(1, (scales.shape[1], -1))
    return (groups * scales.float().unsqueeze(-1) + biases.float().unsqueeze(-1)).flatten(1)


def _pack(codes: Tensor, bits: int) -> Tensor:
    per_word = 32 // bits
    shifts = torch.arange(per_word) * bits
    words = (codes.unflatten(1, (-1, per_word)) << shifts).sum(-1)
    signed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return signed.contiguous().view(torch.uint32)
