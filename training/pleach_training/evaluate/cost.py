"""What it costs on a CPU to score the trees of one drafter by different scorers, in milliseconds a tree.

    python -m pleach_training.evaluate.cost --target DIR --weavers DIR DIR .. --depths 7 --width 8

Takes the scorers in turns, on random states of the target's size. PyTorch's overhead for each operation is in the result:
it is larger than in an engine that records a pass once. `macs` counts multiplications alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from ..drafter.targets import open_features
from ..weaver.model import Weaver
from ..weaver.parent import ParentScorer
from ..weaver.train import Pool, load_weaver
from .weaver_tree import Tables, weaver_ranks


def random_round(tables: Tables, depths: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Pool]:
    """A prefix, an anchor and a pool of one round."""
    vocabulary, width = tables.head.shape
    prefix = torch.randn(1, depths + 1, width, generator=generator)
    places = torch.randint(0, vocabulary, (1, depths, size), generator=generator)
    scores = torch.randn(1, depths, size, generator=generator).sort(-1, descending=True).values
    return prefix, places[:, 0, 0], Pool(places, scores, scores, torch.zeros(1, depths, dtype=torch.long))


@torch.no_grad()
def tree_ms(scorer: Weaver | ParentScorer, tables: Tables, width: int, generator: torch.Generator) -> float:
    """Milliseconds to grow one tree."""
    config = scorer.config
    prefix, anchor, pool = random_round(tables, config.max_depth, config.candidate_pool_size, generator)
    begin = time.perf_counter()
    weaver_ranks(scorer, prefix, anchor, pool, tables, width)
    return (time.perf_counter() - begin) * 1e3


def tree_macs(scorer: Weaver | ParentScorer, width: int) -> int:
    """Multiplications of a tree's matrix products, attention left out."""
    config = scorer.config
    sizes = {name: module.weight.numel() for name, module in scorer.named_modules() if isinstance(module, nn.Linear)}
    proposal = sizes.pop("proposal_in", 0)
    blocks = sum(size for name, size in sizes.items() if name.startswith("blocks."))
    nodes = 1 + width * (config.max_depth - 1)
    # A Weaver's prefix goes through its blocks as well; a parent scorer has no prefix to run.
    rows = config.max_depth + 1 if proposal else 0
    scores = config.candidate_pool_size * config.d_model
    return nodes * (sum(sizes.values()) + scores) + rows * (proposal + blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--weavers", type=Path, nargs="+", required=True)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--trees", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    features = open_features(args.target, "cpu")
    head = features.head.float()
    tables = Tables(features.embedding.float(), head, torch.arange(len(head)))
    scorers = {path: load_weaver(path, "cpu").float() for path in args.weavers}
    generator = torch.Generator().manual_seed(0)
    found: dict[Path, list[float]] = {path: [] for path in scorers}
    for _ in range(args.trees):
        for path, scorer in scorers.items():
            found[path].append(tree_ms(scorer, tables, args.width, generator))
    for path, times in found.items():
        low, _, high = statistics.quantiles(times, n=4)
        row = {
            "median_ms": statistics.median(times),
            "quartiles_ms": [low, high],
            "macs": tree_macs(scorers[path], args.width),
        }
        print(path, json.dumps(row))


if __name__ == "__main__":
    main()
