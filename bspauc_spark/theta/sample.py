"""A random sample of rows that every rank draws for its own rows, and that is the same for any number of ranks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bspauc_spark.arrays import BoolArray

_ROUNDS = 6
# Rows are decided on so many at a time: what this takes in memory does not grow with them.
_CHUNK = 1 << 18
_Words = npt.NDArray[np.uint64]


def in_sample(first: int, count: int, total: int, wanted: int, seed: int) -> BoolArray:
    """Which of the rows ``first … first + count − 1`` are in a sample of exactly ``wanted`` of all ``total`` rows.

    A row is in it if a permutation of all rows, which is a function of the seed, puts it among the first ones. So no
    rank needs to know anything of the rows of others.
    """
    if wanted >= total:
        return np.ones(count, dtype=bool)
    chosen = np.empty(count, dtype=bool)
    for start in range(0, count, _CHUNK):
        rows = np.arange(first + start, first + min(start + _CHUNK, count), dtype=np.uint64)
        chosen[start : start + len(rows)] = _permuted(rows, total, seed) < wanted
    return chosen


def _permuted(rows: _Words, total: int, seed: int) -> _Words:
    """Where a permutation of ``0 … total − 1`` puts these rows: a Feistel network, walked until it ends in range."""
    bits = max(1, (max(total - 1, 1).bit_length() + 1) // 2)
    keys: _Words = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64).astype(np.uint64)
    places = _feistel(rows, bits, keys)
    while len(outside := np.flatnonzero(places >= total)):
        places[outside] = _feistel(places[outside], bits, keys)
    return places


def _feistel(words: _Words, bits: int, keys: _Words) -> _Words:
    """A bijection of the numbers of twice so many bits."""
    mask, shift = np.uint64((1 << bits) - 1), np.uint64(bits)
    left, right = words >> shift, words & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    joined: _Words = (left << shift) | right
    return joined


def _mixed(words: _Words) -> _Words:
    """The finaliser of splitmix64; products wrap."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: _Words = words ^ words >> np.uint64(31)
    return mixed
