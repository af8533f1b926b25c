"""Draws loss curves of runs from their logs.

python -m pleach_training.plot --out curves.png "drafter=DIR/log.jsonl" "Weaver=DIR/log.jsonl"
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def read_curve(path: Path) -> tuple[list[int], list[float]]:
    """Steps and losses of a log."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    points = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    return [step for step, _ in points], [loss for _, loss in points]


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("runs", nargs="+", help="NAME=LOG")
    args = parser.parse_args()
    figure, axes = pyplot.subplots(1, len(args.runs), figsize=(4.5 * len(args.runs), 3), squeeze=False)
    for axis, run in zip(axes[0], args.runs, strict=True):
        name, _, path = run.partition("=")
        axis.plot(*read_curve(Path(path)), linewidth=0.8)
        axis.set(title=name, xlabel="step", ylabel="training loss (nats)")
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(args.out, dpi=90)


if __name__ == "__main__":
    main()
