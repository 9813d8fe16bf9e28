"""Scores of many rows, chunk by chunk. However many threads share the chunks, the scores have the same bits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bspauc_spark import liveness
from bspauc_spark.arrays import IntArray
from bspauc_spark.rows.kinds import CHUNK_ROWS
from bspauc_spark.rows.rows import Batch, DenseRows, Rows, pad, to_device
from bspauc_spark.theta.networks import ScoringNetwork

T = TypeVar("T")

# How many rows a thread takes at a time, and how many bytes the chunks of all threads may take together.
_STRETCH = 16 * CHUNK_ROWS
_MOST_CHUNK_BYTES = 1 << 30

_threads_lock = threading.Lock()


def use_threads(count: int) -> int:
    """Let torch use ``count`` threads for the computations of the calling thread; returns how many it used before.

    ``torch.set_num_threads`` sets two numbers: that of the calling thread, and that of the process. A thread takes over
    the number of the process when it first computes, and keeps it. Fits may overlap, in threads that live longer than
    they do. So each fit sets the number of its own thread, and puts that of the process back at once.
    """
    with _threads_lock:
        # Asking first makes this thread take over the process's number now. Later, that would undo what is set here.
        before = torch.get_num_threads()
        if before != count:
            of_process = _in_new_thread(torch.get_num_threads)
            torch.set_num_threads(count)
            _in_new_thread(partial(torch.set_num_threads, of_process))
    return before


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in the calling thread alone.

    The matrices of a batch are small, and a second thread gains little. Where fits under CrossValidator or tasks of
    Spark share the cores, threads that wait for each other in a loop make everything ten times slower.
    """
    before = use_threads(1)
    try:
        yield
    finally:
        use_threads(before)


def _in_new_thread(call: Callable[[], T]) -> T:
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


class ChunkScorer:
    """Scores chunks of rows by a network as it is now."""

    def __init__(self, network: ScoringNetwork) -> None:
        self._forward, self._device = network.for_scoring(), network.device

    @torch.inference_mode()
    def __call__(self, rows: Batch) -> Tensor:
        """Scores of at most ``CHUNK_ROWS`` rows, which are padded to a whole chunk."""
        scores: Tensor = self._forward(to_device(pad(rows, CHUNK_ROWS), self._device))[: len(rows)]
        return scores.cpu()


def score_chunks(
    scorer: ChunkScorer, count: int, between: Callable[[int, int], Batch], threads: int = 1
) -> npt.NDArray[np.float32]:
    """Scores of ``count`` rows, chunk by chunk; ``between(start, stop)`` gives the rows of a chunk.

    One thread computes a whole chunk, so the number of threads changes no bit.
    """
    scores = np.empty(count, dtype=np.float32)

    def score(first: int) -> None:
        for start in range(first, min(first + _STRETCH, count), CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, count)
            scores[start:stop] = scorer(between(start, stop)).numpy()
            liveness.beat()

    stretches = list(range(0, count, _STRETCH))
    # The first rows are scored in this thread, since that may build tables which all threads use.
    alone = stretches[:1] if threads > 1 else stretches
    for first in alone:
        score(first)
    if len(stretches) > len(alone):
        # A new thread does not know how many threads the fit's own thread uses.
        with ThreadPoolExecutor(threads, initializer=use_threads, initargs=(1,)) as pool:
            list(pool.map(score, stretches[len(alone) :]))
    return scores


def score_rows(
    network: ScoringNetwork, rows: Rows, threads: int = 1, index: IntArray | None = None
) -> npt.NDArray[np.float32]:
    """Scores of all ``rows``, or of those at ``index``."""
    if isinstance(rows, DenseRows):
        # Every thread holds a chunk, whose rows may be wide.
        threads = max(1, min(threads, _MOST_CHUNK_BYTES // (4 * CHUNK_ROWS * rows.num_features)))
    scorer = ChunkScorer(network)
    if index is None:
        return score_chunks(scorer, len(rows), rows.between, threads)
    return score_chunks(scorer, len(index), lambda start, stop: rows.take(index[start:stop]), threads)
