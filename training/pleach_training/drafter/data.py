"""A target's own replies, their features in device memory, and batches of anchors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..runs import Training, save_arrays
from ..target.data import plan_rows
from .features import Features

FIELDS = ("ids", "plen", "glen", "temp", "split", "done")


@dataclass
class Replies:
    """Sequences end to end: `ids`; per sequence prompt length, reply length, temperature, split, whether it ended."""

    ids: NDArray[np.uint16] | NDArray[np.uint32]
    plen: NDArray[np.int64]
    glen: NDArray[np.int64]
    temp: NDArray[np.float64]
    split: NDArray[np.str_]
    done: NDArray[np.bool_]

    @staticmethod
    def load(*paths: Path) -> Replies:
        """Reads and joins npz files."""
        parts = [dict(np.load(path)) for path in paths]
        joined: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in FIELDS}
        return Replies(**joined)

    def save(self, path: Path) -> None:
        """Writes a compressed npz file, whole or not at all."""
        save_arrays(path, True, **{name: getattr(self, name) for name in FIELDS})

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each sequence begins, and the end."""
        return np.concatenate([[0], np.cumsum(self.plen + self.glen)]).astype(np.int64)

    def select(self, keep: NDArray[np.bool_]) -> Replies:
        """The sequences where `keep` is true."""
        at = self.offsets
        ids = [self.ids[at[i] : at[i + 1]] for i in np.flatnonzero(keep)]
        kept: dict[str, Any] = {name: getattr(self, name)[keep] for name in FIELDS[1:]}
        joined: Any = np.concatenate(ids) if ids else self.ids[:0]
        return Replies(joined, **kept)

    def looping(self) -> NDArray[np.bool_]:
        """Whether each reply ends in a repetition loop."""
        at = self.offsets
        periods = [loop_period(self.ids[at[i] + self.plen[i] : at[i + 1]]) for i in range(len(self.plen))]
        return np.array([period is not None for period in periods], dtype=bool)

    def prompt_shares(self, seed: int) -> NDArray[np.float64]:
        """A number from 0 to 1 for each sequence, by a hash of its prompt and `seed` alone."""
        at, salt = self.offsets, seed.to_bytes(8, "little")
        found = np.empty(len(self.plen))
        for i, (begin, length) in enumerate(zip(at[:-1], self.plen, strict=True)):
            prompt = self.ids[begin : begin + length].astype("<u4").tobytes()
            found[i] = int.from_bytes(hashlib.blake2b(prompt, digest_size=8, salt=salt).digest(), "little") / 2**64
        return found


def loop_period(reply: NDArray, longest: int = 64, least: int = 48) -> int | None:
    """The period up to `longest` with which the last `least` tokens or more repeat, at least three times."""
    for period in range(1, longest + 1):
        tail = max(least, 3 * period)
        if tail > len(reply):
            break
        end = reply[-tail:]
        if (end[period:] == end[:-period]).all():
            return period
    return None


def frequent_tokens(replies: Replies, size: int, always: tuple[int, ...]) -> NDArray[np.int64]:
    """The `size` most frequent reply tokens in order of their id, with `always` among them."""
    at = replies.offsets
    counts = np.zeros(int(replies.ids.max()) + 1, dtype=np.int64)
    for i in range(len(replies.plen)):
        reply = replies.ids[at[i] + replies.plen[i] : at[i + 1]]
        counts += np.bincount(reply, minlength=len(counts))
    for token in always:
        counts[token] = counts.sum() + 1
    return np.sort(np.argsort(-counts, kind="stable")[:size])


@dataclass
class Store:
    """Every token of some replies on the device: ids, taps, final hidden states, and where anchors may stand.

    `left` counts the reply tokens that follow a token in its sequence; 0 where no anchor may stand. An anchor is the last
    committed token, so the first one is the reply's first token.
    """

    ids: Tensor
    taps: Tensor
    hidden: Tensor
    left: Tensor
    offsets: NDArray[np.int64]

    def release(self) -> None:
        """Gives the memory back, whoever holds the store."""
        for name in ("ids", "taps", "hidden", "left"):
            setattr(self, name, torch.empty(0))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @staticmethod
    def build(replies: Replies, features: Features, taps: tuple[int, ...], device: str, rows: int = 64) -> Store:
        """Runs the target once over all sequences, similar lengths together."""
        at = replies.offsets
        total = int(at[-1])
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        ids = torch.from_numpy(replies.ids.astype(np.int64)).to(device)
        kept = torch.empty(total, len(taps) * features.hidden_size, dtype=dtype, device=device)
        hidden = torch.empty(total, features.hidden_size, dtype=dtype, device=device)
        lengths = replies.plen + replies.glen
        order = np.argsort(lengths, kind="stable")
        for begin in range(0, len(order), rows):
            chosen = order[begin : begin + rows]
            # Every batch has as many rows as the first: the last one repeats a sequence.
            chosen = np.pad(chosen, (0, min(rows, len(order)) - len(chosen)), mode="edge")
            longest = -(-int(lengths[chosen].max()) // features.length_step) * features.length_step
            index, inside = gather_index(at, lengths, chosen, longest, device)
            out, last = features.run(torch.where(inside, ids[index], 0), taps)
            kept[index[inside]] = out[inside].to(dtype)
            hidden[index[inside]] = last[inside].to(dtype)
        left = np.zeros(total, dtype=np.int64)
        for i in range(len(lengths)):
            begin, end = at[i] + replies.plen[i], at[i + 1]
            left[begin:end] = np.arange(end - begin - 1, -1, -1)
        return Store(ids, kept, hidden, torch.from_numpy(left).to(device), at)


def gather_index(at: NDArray, lengths: NDArray, chosen: NDArray, longest: int, device: str) -> tuple[Tensor, Tensor]:
    """Flat token index `[sequences, longest]` and whether it is inside its sequence."""
    steps = np.arange(longest)
    inside = steps[None] < lengths[chosen][:, None]
    index = np.where(inside, at[chosen][:, None] + steps[None], 0)
    return torch.from_numpy(index).to(device), torch.from_numpy(inside).to(device)


@dataclass
class AnchorBatch:
    """Anchors in packed rows of context.

    `index` `[rows, context]` are flat token numbers; `anchors`, `begins` `[rows, blocks]` are places in the row; `flat`
    `[rows, blocks]` are the anchors' flat token numbers; `left` `[rows, blocks]` counts the tokens after each anchor, 0
    where a block stands for nothing.
    """

    index: Tensor
    anchors: Tensor
    begins: Tensor
    flat: Tensor
    left: Tensor


def pack_rows(store: Store, context: int, rng: np.random.Generator | None) -> tuple[NDArray, NDArray]:
    """Rows of whole sequences: flat token numbers (-1 is padding) and each token's sequence start in its row."""
    spans = list(zip(store.offsets[:-1].tolist(), store.offsets[1:].tolist(), strict=True))
    too_long = max(end - begin for begin, end in spans)
    if too_long > context:
        raise ValueError(f"a sequence has {too_long} tokens, a row of context only {context}: raise --context")
    if rng is not None:
        rng.shuffle(spans)
    plan = plan_rows(spans, context)
    index = np.full((len(plan), context), -1, dtype=np.int64)
    begins = np.zeros((len(plan), context), dtype=np.int64)
    for i, row in enumerate(plan):
        at = 0
        for begin, end in row:
            index[i, at : at + end - begin] = np.arange(begin, end)
            begins[i, at : at + end - begin] = at
            at += end - begin
    return index, begins


def sample_anchors(store: Store, index: Tensor, begins: Tensor, blocks: int) -> AnchorBatch:
    """`blocks` random anchors in each row, without repetition."""
    left = torch.where(index >= 0, store.left[index.clamp(min=0)], 0)
    chance = torch.rand(left.shape, device=left.device).masked_fill(left == 0, -1.0)
    anchors = chance.topk(blocks, dim=1).indices
    return take_anchors(index, begins, left, anchors)


def take_anchors(index: Tensor, begins: Tensor, left: Tensor, anchors: Tensor) -> AnchorBatch:
    """The batch of given anchors `[rows, blocks]`."""
    clamped = index.clamp(min=0)
    return AnchorBatch(clamped, anchors, begins.gather(1, anchors), clamped.gather(1, anchors), left.gather(1, anchors))


def endless_rows(
    store: Store, context: int, rows: int, seed: int, device: str, skip: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Packed rows `(index, begins)` for ever, packed anew in each epoch; the first `skip` batches are left out."""
    epoch = 0
    while True:
        index, begins = pack_rows(store, context, np.random.default_rng([seed, epoch]))
        order = np.random.default_rng([seed, epoch, 1]).permutation(len(index))
        num_batches = max(1, len(index) // rows)
        for batch in range(num_batches):
            if skip > 0:
                skip -= 1
                continue
            chosen = order[batch * rows : (batch + 1) * rows]
            yield fill_batch(index[chosen], begins[chosen], rows, device)
        epoch += 1


@dataclass(frozen=True)
class Parts:
    """Replies in parts of which the device holds one at a time, and how a part becomes a store."""

    parts: Sequence[Replies]
    build: Callable[[Replies], Store]

    @staticmethod
    def of(replies: Replies, most_tokens: int, seed: int, build: Callable[[Replies], Store]) -> Parts:
        """Random parts of about equal size, of at most `most_tokens` tokens each; one part if that is enough for all."""
        lengths = replies.plen + replies.glen
        total, longest = int(lengths.sum()), int(lengths.max(initial=0))
        if total <= most_tokens:
            return Parts([replies], build)
        if most_tokens < 4 * longest:
            raise ValueError(
                f"the device may hold the features of {most_tokens} tokens, and one sequence has {longest}: raise --store-gb"
            )
        num_parts = -(-total // (most_tokens - longest))
        order = np.random.default_rng(seed).permutation(len(lengths))
        # A part ends with the sequence that reaches its share of the tokens.
        which = np.empty(len(lengths), dtype=np.int64)
        passed = lengths[order].cumsum() - lengths[order]
        which[order] = passed * num_parts // total
        return Parts([replies.select(which == part) for part in np.unique(which)], build)

    def batches(
        self, context: int, rows: int, seed: int, device: str, run: Training
    ) -> Iterator[tuple[Store, Tensor, Tensor]]:
        """A store with packed rows of it, until the run is over.

        Every part has an equal share of the run, one after the other. Reading a part takes none of the run's time.
        """

        def place() -> int:
            return min(int(run.progress * len(self.parts)), len(self.parts) - 1)

        while not run.is_over:
            part = place()
            with run.clock.paused():
                store = self.build(self.parts[part])
            # A run that goes on with a single part goes on where it was.
            skip = run.step if len(self.parts) == 1 else 0
            for index, begins in endless_rows(store, context, rows, seed + run.step - skip, device, skip):
                yield store, index, begins
                if run.is_over or place() != part:
                    break
            # The device has no room for two, and whoever took batches may still have this one.
            store.release()


def fill_batch(index: NDArray, begins: NDArray, rows: int, device: str) -> tuple[Tensor, Tensor]:
    """The first `rows` packed rows on the device; empty rows stand in for missing ones, so that shapes never change."""
    missing = max(0, rows - len(index))
    index = np.pad(index, ((0, missing), (0, 0)), constant_values=-1)[:rows]
    begins = np.pad(begins, ((0, missing), (0, 0)))[:rows]
    return torch.from_numpy(index).to(device), torch.from_numpy(begins).to(device)
