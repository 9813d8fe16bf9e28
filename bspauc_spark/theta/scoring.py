"""Scores of many rows: block by block, in as many threads as there are, with the same bits."""

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
from bspauc_spark.rows.kinds import CHUNK_ROWS
from bspauc_spark.rows.rows import Batch, DenseRows, Rows, pad, to_device
from bspauc_spark.theta.networks import ScoringNetwork

T = TypeVar("T")

# What a thread takes at a time, and what all their blocks may take together.
_STRETCH = 16 * CHUNK_ROWS
_MOST_CHUNK_BYTES = 1 << 30

_threads_lock = threading.Lock()


def use_threads(count: int) -> int:
    """Let torch compute what the calling thread asks for in ``count`` threads; returns how many they were.

    ``torch.set_num_threads`` sets two numbers: the calling thread's own, and the process's, which a thread takes over
    when it first computes and then keeps. Fits may overlap in threads that outlive them, so each sets its own and the
    process's is put back at once.
    """
    with _threads_lock:
        # To ask first is to take the process's number over now: later, that would undo what is set here.
        before = torch.get_num_threads()
        if before != count:
            of_process = _in_new_thread(torch.get_num_threads)
            torch.set_num_threads(count)
            _in_new_thread(partial(torch.set_num_threads, of_process))
    return before


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in the calling thread alone.

    Matrices of a batch are small: a second thread gains little, and where cores are shared (several fits under
    CrossValidator, Spark's own tasks) threads that spin for each other cost tenfold.
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


@torch.inference_mode()
def score_batch(network: ScoringNetwork, rows: Batch) -> Tensor:
    """Scores of at most ``CHUNK_ROWS`` rows, computed in a padded block."""
    scores: Tensor = network(to_device(pad(rows, CHUNK_ROWS), network.device))[: len(rows)]
    return scores.cpu()


def score_chunks(
    network: ScoringNetwork, count: int, between: Callable[[int, int], Batch], threads: int = 1
) -> npt.NDArray[np.float32]:
    """Scores of ``count`` rows, block by block; ``between(start, stop)`` gives the rows of a block.

    Every block is computed by one thread, so their number changes no bit.
    """
    scores = np.empty(count, dtype=np.float32)

    def score(first: int) -> None:
        for start in range(first, min(first + _STRETCH, count), CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, count)
            scores[start:stop] = score_batch(network, between(start, stop)).numpy()
            liveness.beat()

    stretches = list(range(0, count, _STRETCH))
    # The first one here, since it may build tables that all of them use.
    alone = stretches[:1] if threads > 1 else stretches
    for first in alone:
        score(first)
    if len(stretches) > len(alone):
        # New threads know nothing of what the fit's own thread uses.
        with ThreadPoolExecutor(threads, initializer=use_threads, initargs=(1,)) as pool:
            list(pool.map(score, stretches[len(alone) :]))
    return scores


def score_rows(network: ScoringNetwork, rows: Rows, threads: int = 1) -> npt.NDArray[np.float32]:
    """Scores of all ``rows``."""
    if isinstance(rows, DenseRows):
        # Every thread holds a block, which may be wide.
        threads = max(1, min(threads, _MOST_CHUNK_BYTES // (4 * CHUNK_ROWS * rows.num_features)))
    return score_chunks(network, len(rows), rows.between, threads)
