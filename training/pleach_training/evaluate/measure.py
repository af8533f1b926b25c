"""Measures a drafter, and a Weaver if there is one, on a target's own replies; writes `metrics.json`.

python -m pleach_training.evaluate.measure --target PATH --drafter DIR [--weaver DIR] --replies FILE.npz --out metrics.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..drafter.data import Replies, Store
from ..drafter.targets import open_features
from ..drafter.train import DraftTrainer, split_replies
from ..weaver.model import Weaver
from ..weaver.parent import ParentScorer
from ..weaver.train import WeaverTrainConfig, frozen_drafter, load_weaver
from .replay import Tally, depth_within
from .rounds import Rounds, all_rounds
from .tree import marginal_ranks

BUDGETS = (4, 6, 8, 12, 16, 24, 32, 48, 64)


def gains(rounds: Rounds) -> dict[str, NDArray[np.int64]]:
    """By method and budget: how many drafted tokens a round at each anchor gains."""
    found = {"chain": np.cumprod(rounds.truth == 0, axis=1).sum(1)}
    ranks = np.full(rounds.truth.shape, 1 << 20)
    for i, truth in enumerate(rounds.truth.tolist()):
        if truth[0] >= 0:
            held = marginal_ranks(rounds.log_probs[i].tolist(), truth, max(BUDGETS) - 1)
            ranks[i, : len(held)] = held
    for budget in BUDGETS:
        found[f"ddtree/{budget}"] = depth_within(ranks, budget)
        if rounds.tree is not None:
            found[f"weaver/{budget}"] = depth_within(rounds.tree, budget)
    if rounds.chain is not None:
        found["weaver chain"] = depth_within(rounds.chain, 1 << 19)
    return found


def tokens_per_pass(replies: Replies, rounds: Rounds) -> dict[str, float]:
    """Mean tokens per pass by method and budget."""
    at = replies.offsets
    place = np.full(int(at[-1]), -1, dtype=np.int64)
    place[rounds.flat] = np.arange(len(rounds.flat))
    result = {}
    for name, gained in gains(rounds).items():
        tally = Tally()
        for i in range(len(replies.plen)):
            slots = place[at[i] + replies.plen[i] : at[i + 1]]
            tally.add(np.where(slots >= 0, gained[slots], 0))
        result[name] = round(tally.tokens_per_pass, 3)
    return result


def by_depth(rounds: Rounds) -> dict[str, Any]:
    """Per depth: how often the pool holds the truth, and how often the first choice is right, on and off the spine."""
    truth = rounds.truth
    listed = np.cumprod(np.concatenate([np.ones((len(truth), 1), bool), truth[:, :-1] >= 0], 1), axis=1) > 0
    spine = np.cumprod(np.concatenate([np.ones((len(truth), 1), bool), truth[:, :-1] == 0], 1), axis=1) > 0
    result: dict[str, Any] = {
        "recall": _shares(truth >= 0, listed),
        "drafter_on_spine": _shares(truth == 0, spine),
        "drafter_off_spine": _shares(truth == 0, listed & ~spine),
    }
    if rounds.hits is not None and rounds.confidence is not None:
        result["weaver_on_spine"] = _shares(rounds.hits, spine)
        result["weaver_off_spine"] = _shares(rounds.hits, listed & ~spine)
        result["weaver_calibration_error"] = round(calibration_error(rounds.confidence[listed], rounds.hits[listed]), 4)
    first = np.exp(rounds.log_probs[:, :, 0])
    result["drafter_calibration_error"] = round(calibration_error(first[spine], (truth == 0)[spine]), 4)
    return result


def _shares(what: NDArray[np.bool_], among: NDArray[np.bool_]) -> list[float]:
    return [round(float(x), 4) for x in (what & among).sum(0) / np.maximum(1, among.sum(0))]


def calibration_error(confidence: NDArray, right: NDArray[np.bool_], bins: int = 15) -> float:
    """Expected calibration error: mean distance of confidence and accuracy over equal bins, by size."""
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    total = 0.0
    for b in range(bins):
        inside = which == b
        if inside.any():
            total += inside.mean() * abs(float(confidence[inside].mean()) - float(right[inside].mean()))
    return total


def measure(
    replies: Replies, draft: DraftTrainer, weaver: Weaver | ParentScorer | None, features: Any, pool: int, width: int
) -> dict[str, Any]:
    """Metrics of replies at one temperature; those that end in repetition loops are counted apart.

    Above temperature 0 drafts know the noise of the draws, as in the engine; `blind` tells what drafts give that do not.
    """
    looping, temperature = replies.looping(), float(replies.temp[0])
    result: dict[str, Any] = {"replies": len(looping), "looping": int(looping.sum()), "temperature": temperature}
    for name, keep in (("text", ~looping), ("loops", looping)):
        part = replies.select(keep & (replies.glen >= 2))
        if len(part.plen) == 0:
            continue
        store = Store.build(part, features, draft.shape.target_layer_ids, draft.device, rows=8)
        rounds = all_rounds(draft, store, weaver, pool, width, temperature)
        result[name] = {"tokens": int(part.glen.sum()), "tokens_per_pass": tokens_per_pass(part, rounds)}
        if temperature > 0:
            result[name]["blind"] = tokens_per_pass(part, all_rounds(draft, store, weaver, pool, width))
        if name == "text":
            result[name]["by_depth"] = by_depth(rounds)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--weaver", type=Path)
    parser.add_argument("--replies", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", nargs="*", default=["code", "math", "chat", "json", "translate", "summarise"])
    parser.add_argument("--limit", type=int, default=1000, help="replies of each split")
    parser.add_argument("--width", type=int, default=16, help="nodes of a depth that a Weaver expands")
    parser.add_argument("--blocks", type=int, default=128)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    features = open_features(args.target, args.device)
    config = WeaverTrainConfig(context=args.context, blocks=args.blocks)
    draft = frozen_drafter(args.drafter, features, config, args.device)
    weaver = load_weaver(args.weaver, args.device) if args.weaver else None
    pool = weaver.config.candidate_pool_size if weaver else 64
    replies = Replies.load(*args.replies)
    held = split_replies(replies, 0)[1]
    sets = {"held out, sampled": held.select(held.temp > 0)}
    for split in args.splits:
        of_split = replies.select(replies.split == split)
        sets.update(
            {
                split if heat == 0 else f"{split}, T = {heat:g}": of_split.select(of_split.temp == heat)
                for heat in np.unique(of_split.temp)
            }
        )
    found: dict[str, Any] = {"budgets": BUDGETS, "width": args.width, "pool": pool, "sets": {}}
    for name, part in sets.items():
        part = part.select(np.arange(len(part.plen)) < args.limit)
        if len(part.plen) == 0:
            continue
        found["sets"][name] = measure(part, draft, weaver, features, pool, args.width)
        print(name, json.dumps(found["sets"][name].get("text", {}).get("tokens_per_pass")), flush=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
