"""A fitted model without Spark: θ, its calibration and the audit's curves, to and from JSON and safetensors."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import torch

from bspauc_spark.arrays import FloatArray, as_array, as_csr, finite_floats, is_sparse
from bspauc_spark.errors import InvalidFeaturesError, MalformedError, ModelFormatError
from bspauc_spark.rows.arrow import CheckedFeatures, DenseFeatures, SparseFeatures
from bspauc_spark.rows.rows import Batch, SparseBatch
from bspauc_spark.rows.storage import on_disk, shown
from bspauc_spark.schema import MOST_JSON_BYTES, brief, flag, mapping, parse, plain, real, record, text, whole, within
from bspauc_spark.selection import Selection
from bspauc_spark.selection.label_noise import LabelNoise
from bspauc_spark.statistics import OrderedScores, negative_losses, positive_losses
from bspauc_spark.statistics.binned import exact_on_bins
from bspauc_spark.theta.networks import NetworkSpec, ScoringNetwork
from bspauc_spark.theta.scoring import score_chunks
from bspauc_spark.version import __version__

FORMAT_VERSION = 1
JSON_NAME, WEIGHTS_NAME = "model.json", "model.safetensors"


_CURVE_POINTS = 2049
# A fit makes no θ of more than 2 GiB; the numbers of its features take no more.
_MOST_WEIGHTS_BYTES = 4 << 30
# It names the parts of at most MOST_LAYERS layers.
_MOST_HEADER_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class LossCurves:
    """``l⁺`` and ``l⁻`` as functions of the score, at many points; both are convex and piecewise linear."""

    scores: FloatArray
    positive: FloatArray
    negative: FloatArray

    @classmethod
    def of(cls, pos: OrderedScores, neg: OrderedScores, selection: Selection) -> LossCurves:
        """The curves for the rows that ``selection`` keeps."""
        low, high = min(pos.at(0), neg.at(0)), max(pos.at(len(pos) - 1), neg.at(len(neg) - 1))
        low, high = low - max(1.0, 1e-6 * abs(low)), high + max(1.0, 1e-6 * abs(high))
        scores = np.linspace(low, high, _CURVE_POINTS)
        kept = (selection.positive_fraction * len(pos), selection.negative_fraction * len(neg))
        return cls(scores, positive_losses(scores, neg, kept[1]), negative_losses(scores, pos, kept[0]))

    def losses(self, scores: npt.ArrayLike, is_positive: npt.NDArray[np.bool_]) -> FloatArray:
        """Loss of rows with these scores and labels; outside the curve it goes on as a line."""
        x = np.asarray(scores, dtype=np.float64)
        return np.where(is_positive, self._at(x, self.positive), self._at(x, self.negative))

    def _at(self, x: FloatArray, curve: FloatArray) -> FloatArray:
        low, high = self.scores[0], self.scores[-1]
        step = self.scores[1] - low
        below = np.minimum(x - low, 0) * (curve[1] - curve[0]) / step
        above = np.maximum(x - high, 0) * (curve[-1] - curve[-2]) / step
        line: FloatArray = np.interp(x, self.scores, curve) + below + above
        return np.maximum(line, 0.0)


@dataclass(frozen=True, eq=False)
class Scorer:
    """All that scoring and auditing need."""

    spec: NetworkSpec
    sparse: bool
    weights: Mapping[str, npt.NDArray[np.float32]]
    threshold: float
    negative_label: float
    label_noise: LabelNoise
    selection: Selection
    curves: LossCurves
    summary: Mapping[str, Any]
    positive_label: float = 1.0

    @cached_property
    def network(self) -> ScoringNetwork:
        """The network with its weights, ready to score."""
        columns = self.weights.get("first.columns")
        network = self.spec.build(columns=None if columns is None else torch.from_numpy(np.array(columns)))
        network.load_state_dict({name: torch.from_numpy(np.array(w)) for name, w in self.weights.items()})
        return network.eval()

    def score(self, rows: Batch) -> npt.NDArray[np.float32]:
        """Scores of any number of rows, in blocks of the size that training used."""
        scores = score_chunks(self.network, len(rows), partial(_slice, rows))
        bad = len(scores) - int(np.isfinite(scores).sum())
        if bad:
            raise InvalidFeaturesError(
                f"the scores of {bad:,} of {len(scores):,} rows are NaN or infinite: their features are far larger "
                "than those that the model was fitted on. Scale or drop them."
            )
        return scores

    def score_features(self, block: CheckedFeatures) -> npt.NDArray[np.float32]:
        """Scores of the rows of an Arrow batch."""
        if isinstance(block, SparseFeatures):
            return self.score(_sparse_batch(block.columns, block.values, block.pointers))
        assert isinstance(block, DenseFeatures)
        return self.score(torch.from_numpy(block.matrix))

    def score_numpy(self, features: Any) -> npt.NDArray[np.float32]:
        """Scores of a 2-d array or a scipy CSR matrix."""
        given = as_csr(features) if is_sparse(features) else as_array(features)
        if given.ndim != 2 or given.shape[1] != self.spec.num_features:
            raise InvalidFeaturesError(
                f"features have shape {given.shape}; the model was fitted on {self.spec.num_features} columns."
            )
        if isinstance(given, np.ndarray):
            return self.score(torch.from_numpy(finite_floats(given)))
        # The arrays may be longer than what is stored in them.
        stored = slice(given.indptr[-1])
        return self.score(_sparse_batch(given.indices[stored], finite_floats(given.data[stored]), given.indptr))

    def to_blobs(self) -> dict[str, bytes]:
        """The model as two files: names, numbers and curves' shapes as JSON, arrays as safetensors."""
        description = {
            "formatVersion": FORMAT_VERSION,
            "version": __version__,
            "network": {**asdict(self.spec), "hidden_layers": list(self.spec.hidden_layers)},
            "sparse": self.sparse,
            "threshold": self.threshold,
            "negativeLabel": self.negative_label,
            "positiveLabel": self.positive_label,
            "calibration": self.label_noise.to_dict(),
            "selection": self.selection.to_dict(),
            "summary": self.summary,
        }
        arrays = {f"theta.{name}": np.ascontiguousarray(w) for name, w in self.weights.items()}
        arrays |= {f"curves.{name}": array for name, array in vars(self.curves).items()}
        weights = safetensors.numpy.save(arrays)
        described = {**description, "checksum": _checksum(description, weights)}
        return {JSON_NAME: json.dumps(described, indent=1, allow_nan=False).encode(), WEIGHTS_NAME: weights}

    @classmethod
    def from_blobs(cls, blobs: Mapping[str, bytes], source: str = "the saved model") -> Scorer:
        """The inverse of ``to_blobs``; errors call it ``source``."""
        missing = {JSON_NAME, WEIGHTS_NAME} - set(blobs)
        if missing:
            raise ModelFormatError(f"{source} lacks {' and '.join(sorted(missing))}; save it again.")
        with reading(source):
            description, stored = _described(blobs[JSON_NAME])
            with within(WEIGHTS_NAME):
                arrays = _arrays(blobs[WEIGHTS_NAME], stored["network"])
            if stored.pop("checksum") != _checksum(description, blobs[WEIGHTS_NAME]):
                raise MalformedError(f"{JSON_NAME} and {WEIGHTS_NAME} are not what was written: their checksum differs")
        return cls(
            spec=stored["network"],
            sparse=stored["sparse"],
            weights={n.removeprefix("theta."): a for n, a in arrays.items() if n.startswith("theta.")},
            threshold=stored["threshold"],
            negative_label=stored["negativeLabel"],
            label_noise=stored["calibration"],
            selection=stored["selection"],
            curves=LossCurves(*(arrays[f"curves.{name}"] for name in ("scores", "positive", "negative"))),
            summary=stored["summary"],
            positive_label=stored.get("positiveLabel", 1.0),
        )

    def save(self, path: str | Path) -> None:
        """Write the model's two files into the folder ``path``, which is made if need be."""
        folder = on_disk(path)
        folder.mkdir(parents=True, exist_ok=True)
        for name, blob in self.to_blobs().items():
            (folder / name).write_bytes(blob)

    @classmethod
    def load(cls, path: str | Path) -> Scorer:
        """Read what ``save`` wrote."""
        source, folder = f"the model at {shown(str(path))}", on_disk(path)
        with reading(source):
            described = read_file(folder, JSON_NAME)
            spec: NetworkSpec = _described(described)[1]["network"]
            weights = read_file(folder, WEIGHTS_NAME, _most_bytes(spec))
        return cls.from_blobs({JSON_NAME: described, WEIGHTS_NAME: weights}, source)


@contextlib.contextmanager
def reading(source: str) -> Iterator[None]:
    """Turn what is malformed into an error about the model ``source``."""
    try:
        yield
    except MalformedError as error:
        raise ModelFormatError(
            f"{source} cannot be read: {error}. It is damaged or was changed: take another copy, or save it again."
        ) from error


def read_file(folder: Path, name: str, most: int = MOST_JSON_BYTES) -> bytes:
    """A file of a saved model, if it has at most so many bytes; a device or a pipe in its place would never end."""
    path = folder / name
    try:
        if path.exists() and not path.is_file():
            raise ModelFormatError(f"no model at {shown(str(folder))}: {name} is not a regular file.")
        size = path.stat().st_size
        if size > most:
            raise MalformedError(f"{name}: {size:,} bytes, where at most {most:,} are read")
        return path.read_bytes()
    except OSError as error:
        raise ModelFormatError(f"no model at {shown(str(folder))}: {error.strerror} ({name}).") from error


_STORED = record(
    {
        "formatVersion": whole(FORMAT_VERSION, FORMAT_VERSION),
        "version": text(),
        "network": NetworkSpec.from_dict,
        "sparse": flag,
        "threshold": real(),
        "negativeLabel": real(),
        "calibration": LabelNoise.from_dict,
        "selection": Selection.from_dict,
        "summary": mapping(plain),
        "checksum": whole(0, 2**32 - 1),
    },
    # The first files did not say it.
    optional={"positiveLabel": real()},
)


def _described(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the JSON says of a model, as it stands there and checked."""
    with within(JSON_NAME):
        description = parse(data)
        _refuse_future(description)
        return description, _STORED(description, "")


def _most_bytes(spec: NetworkSpec) -> int:
    """What the weights' file may take: θ, the numbers of its features, and as much as JSON for curves and header."""
    theta = sum(math.prod(shape) for shape in spec.shapes().values())
    return min(4 * (theta + spec.num_features), _MOST_WEIGHTS_BYTES) + MOST_JSON_BYTES


def _refuse_future(description: Any) -> None:
    found = description.get("formatVersion") if isinstance(description, dict) else None
    if isinstance(found, int) and found > FORMAT_VERSION:
        writer = brief(description.get("version")).strip("'")
        raise ModelFormatError(
            f"the saved model has format version {brief(found)}, written by bspauc_spark {writer}; this is "
            f"{__version__}, which reads version {FORMAT_VERSION}. Install bspauc_spark {writer} or later to load it."
        )


def _checksum(description: Mapping[str, Any], weights: bytes) -> int:
    """Of all that a model is: a flipped bit among the weights would otherwise give other scores and no error."""
    described = {name: value for name, value in description.items() if name != "checksum"}
    return zlib.crc32(weights, zlib.crc32(json.dumps(described, sort_keys=True).encode()))


def _arrays(data: bytes, spec: NetworkSpec) -> dict[str, npt.NDArray[Any]]:
    """θ and the curves, with the names, types and shapes that ``spec`` asks for: it may declare any size."""
    header = int.from_bytes(data[:8], "little")
    if len(data) >= 8 and header > _MOST_HEADER_BYTES:
        raise MalformedError(f"a header of {header:,} bytes, where at most {_MOST_HEADER_BYTES:,} are read")
    try:
        arrays: dict[str, npt.NDArray[Any]] = safetensors.numpy.load(data)
    except (KeyError, ValueError, safetensors.SafetensorError) as error:
        raise MalformedError(f"not safetensors: {type(error).__name__}: {brief(str(error))}") from error
    columns, points = arrays.get("theta.first.columns"), arrays.get("curves.scores")
    wanted: dict[str, tuple[type, tuple[int, ...]]] = {
        f"theta.{name}": (np.float32, shape)
        for name, shape in spec.shapes(None if columns is None else columns.size).items()
    }
    if columns is not None and spec.kind != "kernel":
        wanted["theta.first.columns"] = (np.int32, (columns.size,))
    for name in ("scores", "positive", "negative"):
        wanted[f"curves.{name}"] = (np.float64, (0 if points is None else points.size,))
    for name, (dtype, shape) in wanted.items():
        if name not in arrays:
            raise MalformedError(f"{name} is missing")
        if arrays[name].dtype != dtype or arrays[name].shape != shape:
            found = f"{arrays[name].dtype} {list(arrays[name].shape)}"
            raise MalformedError(f"{name} is {found}, where {np.dtype(dtype)} {list(shape)} belongs")
        if not np.isfinite(arrays[name]).all():
            raise MalformedError(f"{name} holds NaN or infinite values")
    for name in arrays.keys() - wanted.keys():
        raise MalformedError(f"{brief(name)} is no part of the network")
    if columns is not None and not _rises(columns, 0, spec.num_features - 1):
        raise MalformedError("theta.first.columns are not numbers of features in ascending order")
    if points is None or points.size < 2 or not _rises(points):
        raise MalformedError("curves.scores do not rise")
    return arrays


def _rises(values: npt.NDArray[Any], low: float = -np.inf, high: float = np.inf) -> bool:
    return values.size > 0 and low <= values[0] and values[-1] <= high and bool((values[1:] > values[:-1]).all())


@exact_on_bins
def balanced_threshold(pos: OrderedScores, neg: OrderedScores) -> float:
    """The score above which "positive" maximises balanced accuracy, midway between two neighbouring scores.

    Balanced accuracy is linear in the rates of both classes, so labels that are wrong at a constant rate per
    class do not move the best threshold.
    """
    # The best cut lies just below a positive's score.
    best, cut, done = -1.0, 0.0, 0.0
    for scores, weights in pos.points(0, len(pos)):
        gain = neg.rough_below(scores) / len(neg) - (done + np.cumsum(weights) - weights) / len(pos)
        place = int(np.argmax(gain))
        if gain[place] > best:
            best, cut = float(gain[place]), float(scores[place])
        done += weights.sum()
    ranks = pos.count_below(cut), neg.count_below(cut)
    lower = [scores.at(rank - 1) for scores, rank in zip((pos, neg), ranks, strict=True) if rank]
    return (cut + max(lower)) / 2 if lower else cut - 1.0


_loaded: dict[str, Scorer] = {}


def cached_scorer(digest: str, blobs: Mapping[str, bytes]) -> Scorer:
    """The scorer of ``blobs``, built once per process: a Spark worker runs many tasks of one transform."""
    if digest not in _loaded:
        torch.set_num_threads(1)
        if len(_loaded) >= 8:
            _loaded.pop(next(iter(_loaded)))
        _loaded[digest] = Scorer.from_blobs(blobs)
        # Spark's workers collect garbage in every task, and torch's import leaves hundreds of thousands of objects to
        # look through: set aside, they cost a task nothing.
        gc.collect()
        gc.freeze()
    return _loaded[digest]


def _sparse_batch(columns: npt.ArrayLike, values: npt.ArrayLike, pointers: npt.ArrayLike) -> SparseBatch:
    return SparseBatch(
        torch.from_numpy(np.asarray(columns, dtype=np.int32)),
        torch.from_numpy(np.asarray(values, dtype=np.float32)),
        torch.from_numpy(np.array(pointers, dtype=np.int32)[:-1]),
    )


def _slice(rows: Batch, start: int, stop: int) -> Batch:
    if isinstance(rows, SparseBatch):
        begin = int(rows.offsets[start])
        end = int(rows.offsets[stop]) if stop < len(rows) else len(rows.indices)
        return SparseBatch(rows.indices[begin:end], rows.values[begin:end], rows.offsets[start:stop] - begin)
    return rows[start:stop]
