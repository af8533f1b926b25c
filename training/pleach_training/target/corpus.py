"""Reads the corpora: plain text split at a separator line, and conversations as JSON lines."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

SEPARATOR = "<|endoftext|>"


@dataclass(frozen=True)
class Message:
    """One turn: `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """A conversation and where it comes from."""

    category: str
    source: str
    messages: tuple[Message, ...]


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, decompressed if its name ends in `.zst`, with their line ends."""
    if path.suffix == ".zst":
        with pa.input_stream(str(path), compression="zstd") as stream:
            yield from io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8", newline="\n")
    else:
        with path.open(encoding="utf-8", newline="\n") as file:
            yield from file


def read_documents(path: Path) -> Iterator[str]:
    """The documents of a text file, which stand between lines that hold `<|endoftext|>` alone."""
    lines: list[str] = []
    for line in read_lines(path):
        if line.rstrip("\n") == SEPARATOR:
            yield "".join(lines)
            lines = []
        else:
            lines.append(line)
    if lines:
        yield "".join(lines)


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The conversations of a JSON-lines file."""
    for line in read_lines(path):
        row = json.loads(line)
        messages = tuple(Message(m["role"], m["content"]) for m in row["messages"])
        yield Conversation(row["category"], row.get("source", ""), messages)
