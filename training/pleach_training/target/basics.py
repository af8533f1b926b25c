"""Writes the small set of everyday requests that this project adds to its data, as conversations.

    python -m pleach_training.target.basics --out basics.jsonl

`data/basics_python.txt` and `basics_python_more.txt` list functions under the requests they answer, `tasks` has families of
them, and `data/basics_chat.txt` has answers under questions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from .facts import facts
from .tasks import Entry, entries

DATA = Path(__file__).resolve().parents[2] / "data"
REQUESTS = (
    "Write a python function to {}",
    "Write a Python function to {}.",
    "Write a function to {} in Python.",
    "Can you write a Python function to {}?",
    "How do I {} in Python?",
    "Implement a Python function to {}.",
    "Give me Python code to {}.",
    "python function to {}",
    "Please write a function to {}.",
    "Show me how to {} in Python.",
    "I need a Python function to {}. Can you help?",
)


def read_entries(path: Path) -> Iterator[Entry]:
    """The entries of a file: `## ask | ask`, the answer, and optionally `>> remark`."""
    for section in path.read_text(encoding="utf-8").split("## ")[1:]:
        head, body = section.split("\n", 1)
        answer, _, remark = body.partition("\n>> ")
        yield Entry(tuple(a.strip() for a in head.split("|")), answer.strip("\n"), remark.strip())


def conversations() -> Iterator[tuple[str, str, str]]:
    """Category, request and reply of every conversation."""
    written = (read_entries(DATA / name) for name in ("basics_python.txt", "basics_python_more.txt"))
    for entry in chain(*written, entries()):
        for ask in entry.asks:
            code = f"Here is a Python function to {ask}:" if entry.answer.count("class ") == 0 else "Here it is:"
            reply = f"{code}\n\n```python\n{entry.answer}\n```\n\n{entry.remark}"
            for request in REQUESTS:
                yield "code", request.format(ask), reply
    for entry in read_entries(DATA / "basics_chat.txt"):
        for ask in entry.asks:
            yield "chat", ask, entry.answer
    for ask, answer in facts():
        yield "chat", ask, answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with args.out.open("w", encoding="utf-8") as file:
        for category, request, reply in conversations():
            messages = [{"role": "user", "content": request}, {"role": "assistant", "content": reply}]
            row = {
                "source": "basics",
                "licence": "MIT OR Apache-2.0",
                "category": category,
                "messages": messages,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
