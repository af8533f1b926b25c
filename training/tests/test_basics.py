"""The everyday requests are well formed: every function parses and has its own name."""

import ast

from pleach_training.target.basics import DATA, conversations, read_entries
from pleach_training.target.prompts import chat_prompts
from pleach_training.target.tasks import entries


def test_every_function_parses() -> None:
    names = []
    for entry in read_entries(DATA / "basics_python.txt"):
        tree = ast.parse(entry.answer)
        names.append(next(n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)))
        assert entry.remark, entry.asks
    assert len(names) == len(set(names)) > 60


def test_every_family_member_runs() -> None:
    for entry in (*entries(), *read_entries(DATA / "basics_python_more.txt")):
        exec(compile(entry.answer, entry.asks[0], "exec"), {})
        assert entry.remark, entry.asks


def test_prompts_agree_with_their_topics() -> None:
    prompts = set(chat_prompts())
    assert {"What is the moon?", "What are dolphins?", "How does gravity work?", "How do bees work?"} <= prompts


def test_the_request_of_the_readme_is_answered() -> None:
    replies = {request: reply for _, request, reply in conversations()}
    assert "def merge_sorted" in replies["Write a python function to merge two sorted lists"]
