"""Draft trees from marginals (DDTree, arXiv:2604.12989), and which depth of the true path they hold."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice


def marginal_nodes(log_probs: Sequence[Sequence[float]]) -> Iterator[tuple[int, ...]]:
    """Nodes by falling product of probabilities, each as the path of its candidates' places.

    `log_probs[d]` are the sorted candidates of depth `d + 1`. A node comes after its parent; of equal ones the smaller path
    comes first.
    """
    heap: list[tuple[float, tuple[int, ...]]] = [(-log_probs[0][0], (0,))]
    while heap:
        cost, path = heapq.heappop(heap)
        yield path
        depth, last = len(path), path[-1]
        row = log_probs[depth - 1]
        if last + 1 < len(row):
            heapq.heappush(heap, (cost + row[last] - row[last + 1], (*path[:-1], last + 1)))
        if depth < len(log_probs):
            heapq.heappush(heap, (cost - log_probs[depth][0], (*path, 0)))


def marginal_ranks(log_probs: Sequence[Sequence[float]], truth: Sequence[int], budget: int) -> list[int]:
    """When the tree gains each node of the true path: 1 for the first node after the root.

    `truth[d]` is the true token's place among the candidates of depth `d + 1`, -1 if it is not listed. The list ends with the
    last node that is among the first `budget` ones.
    """
    ranks: list[int] = []
    for added, path in enumerate(islice(marginal_nodes(log_probs), budget), start=1):
        if path != tuple(truth[: len(ranks) + 1]):
            continue
        ranks.append(added)
        if len(ranks) == len(log_probs) or truth[len(ranks)] < 0:
            break
    return ranks
