"""Answers to prompts by Pleach, unedited, as a page; and the share of Python answers that parse.

python -m pleach_training.evaluate.answers --model PATH --pleach BINARY --prompts FILE.jsonl .. --out DIR
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

from ..target.corpus import read_lines

_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def answer(binary: Path, model: Path, messages: list[dict[str, str]], length: int, temperature: float) -> dict[str, Any]:
    """What `pleach run --json` says; seed 0."""
    asked = ["run", str(model), "--messages", "-", "--json", "--seed", "0"]
    limits = ["--temperature", str(temperature), "--max-tokens", str(length)]
    out = subprocess.run(
        [str(binary), *asked, *limits], input=json.dumps(messages), capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(out.stdout)
    return found


def python_of(text: str) -> str | None:
    """The Python of an answer: its first code block, or the whole of it if it begins like code; `None` if there is none."""
    block = _FENCE.search(text)
    if block:
        return block.group(1)
    begins = ("def ", "import ", "from ", "class ", "@")
    return text if text.lstrip().startswith(begins) else None


def parses(code: str) -> bool:
    """Whether Python can parse it."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pleach", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--shown", type=int, default=3, help="answers of each file on the page")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    page, counts = [], {}
    for path in args.prompts:
        rows = [json.loads(line) for line in read_lines(path)]
        found = [answer(args.pleach, args.model, row["messages"], args.length, args.temperature) for row in rows]
        code = [python_of(each["text"]) for each in found]
        counts[path.stem] = {
            "answers": len(found),
            "ended": sum(each["finish_reason"] == "stop" for each in found),
            "with_python": sum(each is not None for each in code),
            "parse": sum(each is not None and parses(each) for each in code),
        }
        for row, each in list(zip(rows, found, strict=True))[: args.shown]:
            page.append(f"### {row['id']}\n\n> " + row["messages"][-1]["content"].replace("\n", "\n> "))
            page.append(each["text"])
        print(path.stem, json.dumps(counts[path.stem]), flush=True)
    (args.out / "answers.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
    (args.out / "answers.json").write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
