"""Batched generation with one captured step: rows that end take the next prompt at once.

A library's own loop launches hundreds of small kernels a token and waits for the longest reply of a batch. Here a step is one
CUDA graph over sequences of any length, and prompts are read by the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# Steps between two looks at which rows have ended; each look waits for the GPU.
INTERVAL = 24


class Decoder(Protocol):
    """Sequences that advance together, one token a step.

    `tokens` and `lengths` `[rows]` are each sequence's next input and how many tokens it holds; a row of length 0 starts from
    an empty state whatever it held before.
    """

    tokens: Tensor
    lengths: Tensor
    capacity: int

    def step(self) -> Tensor:
        """Appends `tokens`; logits `[rows, vocab]` of what follows, f32. Changes states and lengths in place."""


@dataclass(frozen=True)
class Job:
    """A prompt and the temperature of its reply."""

    prompt: tuple[int, ...]
    temperature: float


class Slots:
    """What each row of a decoder works on, on the device: prompt, written tokens, temperature, whether it has ended."""

    def __init__(self, decoder: Decoder, stops: Sequence[int], max_new: int) -> None:
        rows, device = len(decoder.tokens), decoder.tokens.device
        self.decoder, self.max_new = decoder, max_new
        self.stops = torch.tensor(stops, device=device)
        self.written = torch.zeros(rows, decoder.capacity, dtype=torch.long, device=device)
        self.prompt_lengths = torch.ones(rows, dtype=torch.long, device=device)
        self.heat = torch.zeros(rows, 1, device=device)
        self.ended = torch.ones(rows, dtype=torch.bool, device=device)

    def advance(self) -> None:
        """One step of every row. A row whose prompt is not used up takes its next token, others draw one by Gumbel-max."""
        decoder = self.decoder
        logits = decoder.step()
        # The negative logarithm of exponential noise is Gumbel noise; in place, as these arrays are the largest there are.
        noise = torch.empty_like(logits).exponential_().clamp_(min=1e-30).log_()
        chosen = noise.mul_(-self.heat).add_(logits).argmax(-1)
        at = decoder.lengths.clamp(max=decoder.capacity - 1)
        given = self.written.gather(1, at.unsqueeze(1)).squeeze(1)
        is_reply = at >= self.prompt_lengths
        token = torch.where(is_reply, chosen, given)
        # An ended row writes nothing more.
        self.written.scatter_(1, at.unsqueeze(1), torch.where(self.ended, given, token).unsqueeze(1))
        stopped = (token.unsqueeze(1) == self.stops).any(1) & is_reply
        full = at + 1 >= (self.prompt_lengths + self.max_new).clamp(max=decoder.capacity)
        self.ended.logical_or_(stopped | full)
        decoder.tokens.copy_(token)
        decoder.lengths.copy_(at)

    def load(self, rows: Sequence[int], jobs: Sequence[Job]) -> None:
        """Puts a prompt in each of `rows`, in a few transfers however many there are."""
        prompts = torch.zeros(len(rows), self.written.shape[1], dtype=torch.long)
        for i, job in enumerate(jobs):
            prompts[i, : len(job.prompt)] = torch.tensor(job.prompt)
        device = self.written.device
        index, given = torch.tensor(rows, device=device), prompts.to(device)
        self.written[index] = given
        self.prompt_lengths[index] = torch.tensor([len(job.prompt) for job in jobs], device=device)
        self.heat[index] = torch.tensor([[job.temperature] for job in jobs], device=device)
        self.decoder.tokens[index] = given[:, 0]
        self.decoder.lengths[index] = 0
        self.ended[index] = False


def captured(advance: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """`advance` as one CUDA graph; without a GPU, as it is. Runs it a few times, so load rows afterwards."""
    if device.type != "cuda":
        return advance
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            advance()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        advance()
    return graph.replay


@torch.no_grad()
def generate(decoder: Decoder, jobs: Sequence[Job], stops: Sequence[int], max_new: int, seed: int) -> list[list[int]]:
    """The reply to each job, stop token included, at most `max_new` tokens."""
    longest = max(len(job.prompt) for job in jobs)
    if longest >= decoder.capacity:
        raise ValueError(f"a prompt has {longest} tokens, a row holds {decoder.capacity}: raise the capacity")
    torch.manual_seed(seed)
    slots = Slots(decoder, stops, max_new)
    step = captured(slots.advance, decoder.tokens.device)
    decoder.lengths.zero_()
    slots.ended.fill_(True)
    replies: list[list[int]] = [[] for _ in jobs]
    # Longest prompts first: the batch then empties evenly.
    waiting = sorted(range(len(jobs)), key=lambda i: len(jobs[i].prompt))
    working: dict[int, int] = {}
    while True:
        ended = slots.ended.nonzero().flatten()
        for row, written in zip(ended.tolist(), slots.written[ended].tolist(), strict=True):
            if row in working:
                job = working.pop(row)
                replies[job] = _reply(written, len(jobs[job].prompt), max_new, stops)
        free = ended.tolist()[: len(waiting)]
        if free:
            given = [waiting.pop() for _ in free]
            working.update(zip(free, given, strict=True))
            slots.load(free, [jobs[i] for i in given])
        if not working:
            return replies
        for _ in range(INTERVAL):
            step()


def _reply(written: list[int], begin: int, max_new: int, stops: Sequence[int]) -> list[int]:
    reply = written[begin : begin + max_new]
    for i, token in enumerate(reply):
        if token in stops:
            return reply[: i + 1]
    return reply
