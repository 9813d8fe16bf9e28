"""The paper's data sets from files, and a dealer for poker hands, ready for experiments.

Needs scikit-learn and scipy, which the package itself does without: ``pip install bspauc_spark[reproduce]``.
"""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bspauc_spark.arrays import is_sparse
from bspauc_spark.errors import InvalidDataError

_LIBSVM = "the LIBSVM data sets page (search: LIBSVM data classification)"
_UCI = "the UCI machine learning repository"
_ADBENCH = "the ADBench repository (search: ADBench datasets Classical)"
_CHUNK = 100_000


@dataclass(frozen=True)
class Dataset:
    """Features scaled to [−1, 1], a float32 array or a scipy CSR matrix, and true labels."""

    name: str
    x: Any
    y: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class _Source:
    """The files of a data set, where they are to be had, and how they are read."""

    files: tuple[str, ...]
    where: str
    read: Callable[[list[Path]], tuple[Any, npt.NDArray[np.bool_]]]


def load(name: str, data_dir: str | Path) -> Dataset:
    """One of ``NAMES`` from its files in ``data_dir``."""
    paths = files(name, data_dir)
    x, y = _SOURCES[name].read(paths)
    return Dataset(name, scale(x), np.asarray(y, dtype=bool))


def files(name: str, data_dir: str | Path) -> list[Path]:
    """The files of one of ``NAMES``, all of them there."""
    if name not in _SOURCES:
        raise InvalidDataError(f"there is no data set {name!r}; known are {', '.join(NAMES)}.")
    source = _SOURCES[name]
    paths = [Path(data_dir) / file for file in source.files]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise InvalidDataError(
            f"data set {name!r} needs {' and '.join(missing)} in {data_dir}. "
            f"Such a file is to be had from {source.where}."
        )
    return paths


def scale(x: Any) -> Any:
    """Each feature to [−1, 1]: by its range, or, sparse, by its largest magnitude, which leaves zeros alone."""
    if is_sparse(x):
        from scipy import sparse

        largest = np.asarray(abs(x).max(axis=0).todense()).ravel()
        return (x @ sparse.diags(1 / np.where(largest > 0, largest, 1))).tocsr().astype(np.float32)
    table = np.asarray(x, dtype=np.float64)
    low, high = table.min(axis=0), table.max(axis=0)
    return (2 * (table - low) / np.where(high > low, high - low, 1) - 1).astype(np.float32)


def split(data: Dataset, seed: int, test: float = 0.25) -> tuple[Dataset, Dataset]:
    """A seeded, stratified split into a training and a test part."""
    from sklearn.model_selection import train_test_split

    train, held = train_test_split(np.arange(len(data)), test_size=test, random_state=seed, stratify=data.y)
    first, second = (Dataset(data.name, data.x[index], data.y[index]) for index in (train, held))
    return first, second


def deal_poker(rows: int, seed: int = 0) -> Dataset:
    """Random poker hands as in the UCI set, suit and rank of five cards; a full house is positive, one hand in 694."""
    rng = np.random.default_rng(seed)
    features = np.empty((rows, 10), dtype=np.float32)
    full_house = np.empty(rows, dtype=bool)
    for start in range(0, rows, _CHUNK):
        stop = min(start + _CHUNK, rows)
        cards = np.argsort(rng.random((stop - start, 52), dtype=np.float32), axis=1)[:, :5]
        suit, rank = cards // 13, cards % 13
        features[start:stop, 0::2] = suit / 1.5 - 1
        features[start:stop, 1::2] = rank / 6.0 - 1
        ordered = np.sort(rank, axis=1)
        ends = (ordered[:, 0] == ordered[:, 1]) & (ordered[:, 3] == ordered[:, 4])
        middle = (ordered[:, 1] == ordered[:, 2]) | (ordered[:, 2] == ordered[:, 3])
        full_house[start:stop] = ends & middle
    return Dataset("poker", features, full_house)


def _svmlight(features: int, positive: float | None, dense: bool) -> Callable[[list[Path]], tuple[Any, Any]]:
    """A reader of svmlight files; without ``positive`` labels above 0 are positive."""

    def read(paths: list[Path]) -> tuple[Any, Any]:
        from scipy import sparse
        from sklearn.datasets import load_svmlight_file

        parts = []
        for path in paths:
            with bz2.open(path) as file:
                parts.append(load_svmlight_file(file, n_features=features, zero_based=False))
        x = sparse.vstack([part for part, _ in parts]).tocsr()
        label = np.concatenate([labels for _, labels in parts])
        return x.toarray() if dense else x, label > 0 if positive is None else label == positive

    return read


def _text(separator: str, positive: float) -> Callable[[list[Path]], tuple[Any, Any]]:
    """A reader of tables whose last column is the class."""

    def read(paths: list[Path]) -> tuple[Any, Any]:
        import pandas as pd

        parts = []
        for path in paths:
            with lzma.open(path, "rt") as file:
                parts.append(pd.read_csv(file, sep=separator, header=None).to_numpy())
        table = np.concatenate(parts)
        return table[:, :-1], table[:, -1] == positive

    return read


def _npz(paths: list[Path]) -> tuple[Any, Any]:
    with np.load(paths[0], allow_pickle=False) as arrays:
        return arrays["X"], np.asarray(arrays["y"]).ravel() == 1


_SOURCES = {
    "a9a": _Source(("a9a.bz2",), _LIBSVM, _svmlight(123, None, dense=True)),
    "skin_nonskin": _Source(("skin_nonskin.txt.xz",), _UCI, _text("\t", 1)),
    "shuttle": _Source(("shuttle.trn.xz",), _UCI, _text(",", 3)),
    "cod-rna": _Source(("cod-rna.bz2", "cod-rna.t.bz2"), _LIBSVM, _svmlight(8, None, dense=True)),
    "rcv1": _Source(("rcv1_subsets.binary.bz2",), _LIBSVM, _svmlight(47_236, None, dense=False)),
    "sector": _Source(("sector.heldout.bz2", "sector.test.bz2"), _LIBSVM, _svmlight(55_197, 5, dense=False)),
    "poker": _Source(
        ("poker-hand-training-true.data.xz", "poker-hand-testing.first18488.data.xz"), _UCI, _text(",", 6)
    ),
    "aloi27": _Source(("aloi27_adbench.npz",), _ADBENCH, _npz),
    "http": _Source(("http_adbench.npz",), _ADBENCH, _npz),
    "cover": _Source(("cover_adbench.npz",), _ADBENCH, _npz),
}
NAMES = tuple(_SOURCES)
