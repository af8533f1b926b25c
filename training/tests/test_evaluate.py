"""Tree ranks against an exhaustive search, and replayed rounds against a hand count."""

import itertools

import numpy as np

from pleach_training.evaluate.replay import Tally, depth_within
from pleach_training.evaluate.tree import marginal_ranks


def test_ranks_are_those_of_the_sorted_products() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = np.sort(np.log(rng.dirichlet(np.ones(4), size=3)), 1)[:, ::-1]
        truth = rng.integers(-1, 4, size=3).tolist()
        nodes = {}
        for depth in (1, 2, 3):
            for path in itertools.product(range(4), repeat=depth):
                nodes[path] = sum(rows[d, r] for d, r in enumerate(path))
        order = sorted(nodes, key=lambda path: (-nodes[path], path))
        wanted = []
        for depth in (1, 2, 3):
            if truth[depth - 1] < 0:
                break
            wanted.append(order.index(tuple(truth[:depth])) + 1)
        got = marginal_ranks(rows.tolist(), truth, len(order))
        assert got == wanted
        assert marginal_ranks(rows.tolist(), truth, 10) == list(itertools.takewhile(lambda r: r <= 10, wanted))


def test_a_reply_is_replayed_round_by_round() -> None:
    tally = Tally()
    tally.add(np.array([2, 9, 9, 0, 9, 9]))  # 0 -> 3 (two drafted and one), 3 -> 4, 4 -> 5
    assert (tally.tokens, tally.passes) == (5, 3)


def test_depth_counts_nodes_inside_the_budget() -> None:
    ranks = np.array([[1, 3, 8], [2, 1 << 20, 1 << 20]])
    assert depth_within(ranks, 4).tolist() == [2, 1]
    assert depth_within(ranks, 2).tolist() == [1, 0]
