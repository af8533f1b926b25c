"""Prompts that a teacher invents."""

import json
import sys
from pathlib import Path

import pytest

from pleach_training.drafter.targets import open_tokenizer
from pleach_training.target import invent

LLAMA = Path(__file__).resolve().parents[2] / "fixtures/tiny-llama"


def test_the_opening_is_the_template_up_to_the_users_words() -> None:
    tokenizer = open_tokenizer(LLAMA)
    turns = [{"role": "user", "content": "one two"}]
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    assert tokenizer.decode(invent.opening(tokenizer)) == whole.split("one two")[0]


def test_only_whole_and_new_prompts_are_kept() -> None:
    assert list(invent.ended([[5, 6, 0], [5, 6], [], [7, 1]], (0, 1))) == [[5, 6], [7]]
    texts = ["What is a tree?", "Hi", " What is a tree?\n", "Why do leaves fall?"]
    assert invent.distinct(texts) == ["What is a tree?", "Why do leaves fall?"]


def test_what_is_written_are_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "invented.jsonl"
    options = ["--count", "64", "--longest", "40", "--temperature", "4", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["invent", "--target", str(LLAMA), "--out", str(out), *options])
    invent.main()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert rows and all(row["messages"][0]["role"] == "user" for row in rows)
