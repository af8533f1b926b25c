"""Batches packed by a process of their own: packing shares no interpreter with the training loop."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Iterator
from typing import Any

from ..parallel import Company
from .data import Mixture, Rows

Shares = dict[str, float]
DEPTH = 16


class Prefetcher:
    """This process's part of a mixture's batches, each with the mixture's state after it.

    Batches are drawn by the first of `shares`, and by the second some `DEPTH` batches after `decay`.
    """

    def __init__(
        self, mixture: Mixture, rows: int, company: Company, shares: tuple[Shares, Shares], is_decaying: bool
    ) -> None:
        # A forked process would inherit the threads and the locks of the libraries that train.
        context = multiprocessing.get_context("spawn")
        self._ready: Any = context.Queue(maxsize=DEPTH)
        self._decaying = context.Event()
        if is_decaying:
            self._decaying.set()
        arguments = (mixture, rows, (company.rank, company.size), shares, self._decaying, self._ready)
        self._process = context.Process(target=draw_endlessly, args=arguments, daemon=True)
        self._process.start()

    def __iter__(self) -> Iterator[tuple[Rows, dict]]:
        while True:
            yield self._next()

    def decay(self) -> None:
        """Has further batches drawn by the second shares."""
        self._decaying.set()

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        self._process.join()

    def _next(self) -> tuple[Rows, dict]:
        while True:
            try:
                batch: tuple[Rows, dict] = self._ready.get(timeout=1.0)
                return batch
            except queue.Empty:
                if not self._process.is_alive():
                    message = f"the process that packs rows ended with exit code {self._process.exitcode}: see its output"
                    raise RuntimeError(message) from None


def draw_endlessly(
    mixture: Mixture, rows: int, place: tuple[int, int], shares: tuple[Shares, Shares], decaying: Any, ready: Any
) -> None:
    """What the process does: `place` is the rank and size of its company."""
    while True:
        drawn = mixture.draw(rows, shares[decaying.is_set()])
        ready.put((drawn.part(*place), mixture.state()))
