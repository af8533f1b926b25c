"""Which depth of the true path a draft tree of a given size holds."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def marginal_ranks(log_probs: Sequence[Sequence[float]], truth: Sequence[int], budget: int) -> list[int]:
    """When DDTree (arXiv:2604.12989) adds each node of the true path: 1 for the first node after the root.

    `log_probs[d]` are the sorted candidates of depth `d + 1`; `truth[d]` is the true token's place among them, -1 if it is not
    listed. The path ends with the first node that is not among the first `budget` ones.
    """
    depths = len(log_probs)
    # The path of ranks comes before the score's ties are broken, so equal scores keep one order.
    heap = [(-log_probs[0][0], (0,))]
    wanted: tuple[int, ...] = ()
    ranks: list[int] = []
    for added in range(1, budget + 1):
        if not heap:
            break
        cost, path = heapq.heappop(heap)
        depth = len(path)
        if path[:-1] == wanted and path[-1] == truth[depth - 1]:
            wanted = path
            ranks.append(added)
            if depth == depths or truth[depth] < 0:
                break
        row = log_probs[depth - 1]
        if path[-1] + 1 < len(row):
            sibling = cost + row[path[-1]] - row[path[-1] + 1]
            heapq.heappush(heap, (sibling, (*path[:-1], path[-1] + 1)))
        if depth < depths:
            heapq.heappush(heap, (cost - log_probs[depth][0], (*path, 0)))
    return ranks
