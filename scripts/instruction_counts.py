#!/usr/bin/env python3
"""Counts the instructions of small matrix products and compares them with the limits beside this script.

Counts do not depend on the machine's load, so they catch a kernel that lost its vector instructions or an inlined
function where a timing would drown in noise. Needs valgrind; says so and succeeds without it.

    scripts/instruction_counts.py            # check
    scripts/instruction_counts.py --update   # write the counts of this build as the new limits
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMITS = pathlib.Path(__file__).with_name("instruction_counts.tsv")
# Compilers differ a little; what this guards against costs factors.
TOLERANCE = 0.10


def build() -> pathlib.Path:
    """Builds the example for release and returns its path: checks of the tests' profile would be most of what is counted."""
    command = ["cargo", "build", "--release", "-p", "pleach-kernels", "--example", "product", "--message-format", "json"]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    paths = re.findall(r'"executable":"([^"]+/examples/product)"', built.stdout)
    return pathlib.Path(paths[-1])


def count(program: pathlib.Path, format: str, rows: int) -> int:
    """Instructions of one product."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*measured*"]
    run = subprocess.run([*command, program, format, str(rows)], capture_output=True, text=True)
    collected = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or not collected:
        sys.exit(f"`{program} {format} {rows}` failed under valgrind:\n{run.stderr}")
    return int(collected[1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares instruction counts of matrix products with their limits.")
    parser.add_argument("--update", action="store_true", help="write the counts as the new limits")
    update = parser.parse_args().update
    if not shutil.which("valgrind"):
        print("valgrind is not installed: no instructions counted")
        return
    if not update and "avx2" not in pathlib.Path("/proc/cpuinfo").read_text():
        print("this machine has no AVX2: no instructions counted")
        return
    header, *lines = LIMITS.read_text().splitlines()
    limits = [(format, int(rows), int(limit)) for format, rows, limit in (line.split("\t") for line in lines)]
    program = build()
    counts = [(format, rows, limit, count(program, format, rows)) for format, rows, limit in limits]
    for format, rows, limit, found in counts:
        print(f"{format:5} {rows} rows: {found:9,} instructions, limit {limit:,}")
    if update:
        new = [f"{format}\t{rows}\t{found}" for format, rows, _, found in counts]
        LIMITS.write_text("\n".join([header, *new]) + "\n")
        return
    worse = [f"{format}, {rows} rows" for format, rows, limit, found in counts if found > limit * (1 + TOLERANCE)]
    if worse:
        sys.exit(f"more than {TOLERANCE:.0%} above the limit: {'; '.join(worse)}")


if __name__ == "__main__":
    main()
