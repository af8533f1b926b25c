#!/usr/bin/env python3
"""Runs the lines for `curl` of a document against a server: each must succeed.

    documented.py BASE DOCUMENT
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

BASE, DOCUMENT = sys.argv[1], Path(sys.argv[2])
WRITTEN = "http://127.0.0.1:8000"


def commands(text: str) -> list[str]:
    """The commands that begin with `curl` in blocks of shell. Lines that go on begin with a blank."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = re.sub(r"(\\)?\n[ \t]+", " ", "\n".join(blocks)).splitlines()
    return [line for line in lines if line.startswith("curl ")]


def main() -> None:
    found = commands(DOCUMENT.read_text(encoding="utf-8"))
    failed = 0
    for command in found:
        command = command.replace(WRITTEN, BASE).replace("curl ", "curl --silent --show-error --fail-with-body --max-time 120 ", 1)
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        if done.returncode or not done.stdout or '"error":{' in done.stdout:
            failed += 1
            print(f"failed  {command}\n{done.stdout[-500:]}{done.stderr[-500:]}")
    print(f"{len(found) - failed} passed, {failed} failed")
    raise SystemExit(1 if failed or not found else 0)


main()
