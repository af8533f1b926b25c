"""The everyday requests are well formed: every function parses and has its own name."""

import ast

from pleach_training.target.basics import DATA, conversations, read_entries


def test_every_function_parses() -> None:
    names = []
    for entry in read_entries(DATA / "basics_python.txt"):
        tree = ast.parse(entry.answer)
        names.append(next(n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)))
        assert entry.remark, entry.asks
    assert len(names) == len(set(names)) > 60


def test_the_request_of_the_readme_is_answered() -> None:
    replies = {request: reply for _, request, reply in conversations()}
    assert "def merge_sorted" in replies["Write a python function to merge two sorted lists"]
