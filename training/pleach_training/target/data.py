"""Tokenizes the corpora into one file per group, and packs documents into rows.

python -m pleach_training.target.data --data DATA --tokenizer DIR --out DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ..runs import save_arrays
from .corpus import Conversation, read_conversations, read_documents
from .groups import DEFAULT_MAX_EPOCHS, MAX_EPOCHS, group_of
from .tokenizer import END_OF_TEXT, TURN_END, TURN_START

# What the loss makes of a token: nothing, part of a prompt, something to learn, or something not to write again.
PADDING, PROMPT, LEARN, AVOID = 0, 1, 2, 3


@dataclass
class Documents:
    """Documents end to end: `ids` u16, what each token is to the loss (`role`, u8), and `num_documents + 1` offsets."""

    ids: NDArray[np.uint16]
    role: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    def save(self, path: Path) -> None:
        """Writes an npz file, whole or not at all."""
        save_arrays(path, False, ids=self.ids, role=self.role, offsets=self.offsets)

    @staticmethod
    def load(path: Path) -> Documents:
        """Reads what `save` wrote."""
        arrays = dict(np.load(path))
        return Documents(arrays["ids"], arrays["role"], arrays["offsets"])

    @staticmethod
    def joined(parts: list[Documents]) -> Documents:
        """One `Documents` of several."""
        if len(parts) == 1:
            return parts[0]
        before = np.cumsum([0, *(part.offsets[-1] for part in parts[:-1])])
        offsets = [part.offsets[1:] + shift for part, shift in zip(parts, before, strict=True)]
        return Documents(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.role for part in parts]),
            np.concatenate([np.zeros(1, dtype=np.int64), *offsets]).astype(np.int64),
        )

    @staticmethod
    def join(parts: list[tuple[NDArray[np.uint16], NDArray[np.uint8]]]) -> Documents:
        """One `Documents` of (ids, role) pairs."""
        lengths = [len(ids) for ids, _ in parts]
        return Documents(
            np.concatenate([ids for ids, _ in parts]),
            np.concatenate([role for _, role in parts]),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        )


@dataclass(frozen=True)
class Piece:
    """A text and what it is to the loss."""

    text: str
    role: int


def chat_pieces(conversation: Conversation) -> list[Piece]:
    """A conversation as the chat template renders it; assistants' words and their end are to be learned."""
    pieces = []
    for message in conversation.messages:
        pieces.append(Piece(f"{TURN_START}{message.role}\n", PROMPT))
        learned = LEARN if message.role == "assistant" else PROMPT
        pieces.append(Piece(message.content.strip() + TURN_END, learned))
        pieces.append(Piece("\n", PROMPT))
    return pieces


def text_pieces(document: str) -> list[Piece]:
    """A document and its end, all of it to be learned."""
    return [Piece(document + END_OF_TEXT, LEARN)]


def tokenize(documents: Iterable[list[Piece]], tokenizer: Tokenizer, batch: int = 4096) -> Documents:
    """Encodes the pieces of each document one by one, as added tokens stand between them."""
    parts = []
    documents = iter(documents)
    while block := list(islice(documents, batch)):
        flat = [piece for pieces in block for piece in pieces]
        encoded = iter(tokenizer.encode_batch_fast([p.text for p in flat], add_special_tokens=False))
        for pieces in block:
            ids = [np.array(next(encoded).ids, dtype=np.uint16) for _ in pieces]
            role = [np.full(len(i), p.role, dtype=np.uint8) for i, p in zip(ids, pieces, strict=True)]
            parts.append((np.concatenate(ids), np.concatenate(role)))
    return Documents.join(parts)


def prepare(data: Path, tokenizer: Tokenizer, out: Path, names: Iterable[str], extra: Iterable[Path], part: str = "") -> None:
    """Writes `GROUP.npz` and `GROUP.val.npz` for the corpora `names` (code, text, instruct) found in `data`.

    The files `extra` hold more conversations, each of a group of its own, for validation if their name has `_val` in it. They
    become `GROUP.PART.npz` if a part is named, so that a group can be made of several files.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        for suffix in ("", "_val"):
            if name in ("code", "text"):
                path = data / f"{name}{suffix}.txt.zst"
                texts = (text_pieces(d) for d in read_documents(path) if d.strip())
                _write(tokenize(texts, tokenizer), out, f"{name}_raw", suffix)
            else:
                conversations = read_conversations(data / f"{name}{suffix}.jsonl.zst")
                for group, rows in _grouped(conversations).items():
                    _write(tokenize(map(chat_pieces, rows), tokenizer), out, group, suffix)
    for path in extra:
        suffix = "_val" if "_val" in path.name else ""
        for group, rows in _grouped(read_conversations(path)).items():
            _write(tokenize(map(chat_pieces, rows), tokenizer), out, group, suffix, part)


def _grouped(conversations: Iterator[Conversation]) -> dict[str, list[Conversation]]:
    groups: dict[str, list[Conversation]] = {}
    for conversation in conversations:
        groups.setdefault(group_of(conversation), []).append(conversation)
    return groups


def _write(documents: Documents, out: Path, group: str, suffix: str, part: str = "") -> None:
    name = group + suffix.replace("_", ".") + (f".{part}" if part else "")
    documents.save(out / f"{name}.npz")
    learned = int((documents.role == LEARN).sum())
    count = len(documents.offsets) - 1
    print(f"{name}: {count} documents, {len(documents.ids)} tokens, {learned} learned", flush=True)


@dataclass
class Rows:
    """Packed rows, `[rows, time]`: `ids` u16, `role` u8, `starts` bool (first tokens of documents)."""

    ids: NDArray[np.uint16]
    role: NDArray[np.uint8]
    starts: NDArray[np.bool_]

    def part(self, rank: int, size: int) -> Rows:
        """Every `size`th row, from row `rank` on."""
        return Rows(self.ids[rank::size], self.role[rank::size], self.starts[rank::size])


def cut(documents: Documents, time: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Spans of at most `time` tokens, in random order.

    A raw document longer than that becomes several; of a conversation only the beginning is kept, since the rest would
    lack its question.
    """
    spans = []
    for begin, end in zip(documents.offsets[:-1].tolist(), documents.offsets[1:].tolist(), strict=True):
        if documents.role[begin] == PROMPT:
            spans.append((begin, min(end, begin + time)))
        else:
            spans.extend((at, min(at + time, end)) for at in range(begin, end, time))
    rng.shuffle(spans)
    return spans


def plan_rows(spans: list[tuple[int, int]], time: int, num_open: int = 48) -> list[list[tuple[int, int]]]:
    """Rows of spans, each at most `time` tokens: a span goes to the fullest of the open rows that has room for it."""
    rows: list[list[tuple[int, int]]] = []
    open_rows: list[list[tuple[int, int]]] = [[] for _ in range(num_open)]
    room = np.full(num_open, time)
    for span in spans:
        length = span[1] - span[0]
        fitting = np.where(room >= length, room, time + 1)
        slot = int(fitting.argmin())
        if fitting[slot] > time:
            slot = int(room.argmin())
            rows.append(open_rows[slot])
            open_rows[slot], room[slot] = [], time
        open_rows[slot].append(span)
        room[slot] -= length
    rows.extend(row for row in open_rows if row)
    return rows


def fill(documents: Documents, rows: list[list[tuple[int, int]]], time: int, padding_id: int) -> Rows:
    """The tokens of planned rows; what a row has left over is padding, a document of its own."""
    ids = np.full((len(rows), time), padding_id, dtype=np.uint16)
    role = np.full((len(rows), time), PADDING, dtype=np.uint8)
    starts = np.zeros((len(rows), time), dtype=np.bool_)
    for i, row in enumerate(rows):
        at = 0
        for begin, end in row:
            ids[i, at : at + end - begin] = documents.ids[begin:end]
            role[i, at : at + end - begin] = documents.role[begin:end]
            starts[i, at] = True
            at += end - begin
        if at < time:
            starts[i, at] = True
    return Rows(ids, role, starts)


class Mixture:
    """Endless rows drawn from groups by share, each group shuffled and packed anew in every epoch.

    `state` holds all it takes to go on from the same place.
    """

    def __init__(self, groups: dict[str, Documents], time: int, padding_id: int, seed: int) -> None:
        self.groups, self.time, self.padding_id, self.seed = groups, time, padding_id, seed
        self.epoch = dict.fromkeys(groups, 0)
        self.cursor = dict.fromkeys(groups, 0)
        self.drawn = 0
        self._plans: dict[str, list[list[tuple[int, int]]]] = {}

    def state(self) -> dict[str, object]:
        """A copy of where each group stands."""
        return {"epoch": dict(self.epoch), "cursor": dict(self.cursor), "drawn": self.drawn}

    def restore(self, state: dict) -> None:
        """Continues from a `state`; groups that it does not know start from their beginning."""
        self.epoch.update(state["epoch"])
        self.cursor.update(state["cursor"])
        self.drawn = state["drawn"]
        self._plans.clear()

    def draw(self, num_rows: int, shares: dict[str, float]) -> Rows:
        """`num_rows` rows; groups that are missing or were read often enough leave their share to the others."""
        present = {name: share for name, share in shares.items() if name in self.groups and share > 0}
        fresh = {name: share for name, share in present.items() if self.epoch[name] < max_epochs(name)}
        present = fresh or present
        rng = np.random.default_rng([self.seed, self.drawn])
        self.drawn += 1
        weights = np.array(list(present.values()))
        names = rng.choice(list(present), size=num_rows, p=weights / weights.sum())
        parts = [fill(self.groups[n], [self._next(n)], self.time, self.padding_id) for n in names.tolist()]
        return Rows(
            np.concatenate([p.ids for p in parts]),
            np.concatenate([p.role for p in parts]),
            np.concatenate([p.starts for p in parts]),
        )

    def _next(self, name: str) -> list[tuple[int, int]]:
        if name not in self._plans:
            self._plans[name] = self._plan(name)
        if self.cursor[name] >= len(self._plans[name]):
            self.epoch[name] += 1
            self.cursor[name] = 0
            self._plans[name] = self._plan(name)
        row = self._plans[name][self.cursor[name]]
        self.cursor[name] += 1
        return row

    def _plan(self, name: str) -> list[list[tuple[int, int]]]:
        order = sorted(self.groups).index(name)
        rng = np.random.default_rng([self.seed, order, self.epoch[name]])
        rows = plan_rows(cut(self.groups[name], self.time, rng), self.time)
        rng.shuffle(rows)
        return rows


def max_epochs(group: str) -> int:
    """How often a group may be read."""
    return MAX_EPOCHS.get(group, DEFAULT_MAX_EPOCHS)


def load_groups(folder: Path, suffix: str = "") -> dict[str, Documents]:
    """The groups in `folder`, their parts joined: training data, or with suffix `.val` validation data."""
    found: dict[str, list[Documents]] = {}
    for path in sorted(folder.glob("*.npz")):
        group, *labels = path.name.split(".")[:-1]
        if ("val" in labels) == bool(suffix):
            found.setdefault(group, []).append(Documents.load(path))
    return {group: Documents.joined(parts) for group, parts in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--names", default="code,text,instruct")
    parser.add_argument("--extra", type=Path, nargs="*", default=[], help="such as basics.jsonl and teacher.jsonl")
    parser.add_argument("--part", default="", help="a label for the files of `--extra`")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    names = [name for name in args.names.split(",") if name]
    prepare(args.data, tokenizer, args.out, names, args.extra, args.part)


if __name__ == "__main__":
    main()
