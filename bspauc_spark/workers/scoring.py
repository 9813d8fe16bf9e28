"""Scores of many rows: block by block, in as many threads as there are, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bspauc_spark.workers import pulse
from bspauc_spark.workers.networks import BLOCK_ROWS, ScoringNetwork
from bspauc_spark.workers.rows import Batch, DenseRows, Rows, pad, to_device

# What a thread takes at a time, and what all their blocks may take together.
_STRETCH = 16 * BLOCK_ROWS
_MOST_BLOCK_BYTES = 1 << 30


@torch.inference_mode()
def score_batch(network: ScoringNetwork, rows: Batch) -> Tensor:
    """Scores of at most ``BLOCK_ROWS`` rows, computed in a padded block."""
    scores: Tensor = network(to_device(pad(rows, BLOCK_ROWS), network.device))[: len(rows)]
    return scores.cpu()


def score_blocks(
    network: ScoringNetwork, count: int, between: Callable[[int, int], Batch], threads: int = 1
) -> npt.NDArray[np.float32]:
    """Scores of ``count`` rows, block by block; ``between(start, stop)`` gives the rows of a block.

    Every block is computed by one thread, so their number changes no bit.
    """
    scores = np.empty(count, dtype=np.float32)

    def score(first: int) -> None:
        for start in range(first, min(first + _STRETCH, count), BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, count)
            scores[start:stop] = score_batch(network, between(start, stop)).numpy()
            pulse.beat()

    stretches = list(range(0, count, _STRETCH))
    # The first one here, since it may build tables that all of them use.
    alone = stretches[:1] if threads > 1 else stretches
    for first in alone:
        score(first)
    if len(stretches) > len(alone):
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(score, stretches[len(alone) :]))
    return scores


def score_rows(network: ScoringNetwork, rows: Rows, threads: int = 1) -> npt.NDArray[np.float32]:
    """Scores of all ``rows``."""
    if isinstance(rows, DenseRows):
        # Every thread holds a block, which may be wide.
        threads = max(1, min(threads, _MOST_BLOCK_BYTES // (4 * BLOCK_ROWS * rows.num_features)))
    return score_blocks(network, len(rows), rows.between, threads)
