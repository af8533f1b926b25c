"""Batched generation by a model's own library, for models that no decoder of ours knows. Slow: many small kernels a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from .generation import Job


def generate_by_library(
    model: Any, jobs: Sequence[Job], stops: tuple[int, ...], rows: int, max_new: int, seed: int
) -> list[list[int]]:
    """The reply to each job, stop token included; `rows` of similar prompt length at a time."""
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    order = sorted(range(len(jobs)), key=lambda i: len(jobs[i].prompt))
    replies: list[list[int]] = [[] for _ in jobs]
    for at in range(0, len(order), rows):
        chosen = order[at : at + rows]
        for i, reply in zip(chosen, _batch(model, [jobs[i] for i in chosen], stops, max_new, generator), strict=True):
            replies[i] = reply
    return replies


@torch.no_grad()
def _batch(
    model: Any, prompts: Sequence[Job], stops: tuple[int, ...], max_new: int, generator: torch.Generator
) -> list[list[int]]:
    """Replies to all prompts in one batch, stop token included; rows that have ended leave the batch."""
    device = next(model.parameters()).device
    longest = max(len(p.prompt) for p in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):
        ids[i, longest - len(prompt.prompt) :] = torch.tensor(prompt.prompt)
        mask[i, longest - len(prompt.prompt) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    heat = torch.tensor([p.temperature for p in prompts], device=device).unsqueeze(1)
    stop_ids = torch.tensor(stops, device=device)
    rows = torch.arange(len(prompts), device=device)
    replies = torch.full((len(prompts), max_new), -1, dtype=torch.long, device=device)
    cache = DynamicCache(config=model.config)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for step in range(max_new):
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        chosen = choose(out.logits[:, -1].float(), heat, generator)
        replies[rows, step] = chosen
        going = ~torch.isin(chosen, stop_ids)
        # Leaving costs a copy of the cache, so rows leave in groups.
        if step % 32 == 31:
            going = (replies[rows].unsqueeze(-1) != stop_ids).all(-1).all(-1)
            if not going.any():
                break
            if not going.all():
                keep = going.nonzero().flatten()
                keep_rows(cache, keep)
                rows, mask, heat, chosen, positions = (x[keep] for x in (rows, mask, heat, chosen, positions))
        ids = chosen.unsqueeze(1)
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
        positions = positions[:, -1:] + 1
    return [_until_stop(reply, stops) for reply in replies.tolist()]


def keep_rows(cache: Any, rows: Tensor) -> None:
    """Keeps some sequences of a cache; layers with a recurrent state have no method for that."""
    for layer in cache.layers:
        if hasattr(layer, "batch_select_indices"):
            layer.batch_select_indices(rows)
            continue
        for states in (layer.conv_states, layer.recurrent_states):
            for name in states:
                states[name] = states[name][rows]


def choose(logits: Tensor, heat: Tensor, generator: torch.Generator) -> Tensor:
    """Greedy where the temperature is 0, else a draw by Gumbel-max."""
    uniform = torch.rand(logits.shape, device=logits.device, generator=generator).clamp(min=1e-20)
    noise = -torch.log(-torch.log(uniform))
    return (logits + heat * noise).argmax(-1)


def _until_stop(reply: list[int], stops: tuple[int, ...]) -> list[int]:
    for i, token in enumerate(reply):
        if token in stops:
            return reply[: i + 1]
        if token < 0:
            return reply[:i]
    return reply
