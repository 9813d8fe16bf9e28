"""The two files of a saved model, JSON and safetensors: how they are written, read, and checked before use."""

from __future__ import annotations

import contextlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from bspauc_spark.errors import MalformedError, ModelFormatError, reason, shown
from bspauc_spark.rows.storage import on_disk
from bspauc_spark.schema import MOST_JSON_BYTES, brief, flag, mapping, parse, plain, real, record, text, whole, within
from bspauc_spark.selection import Selection
from bspauc_spark.selection.label_noise import LabelNoise
from bspauc_spark.theta.inputs import Layout, check_stored, layout_of, stored_shapes
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.table import check_landmarks
from bspauc_spark.version import __version__

FORMAT_VERSION = 2
# Files of version 1 know of no folds and no inputs.
_FIRST_VERSION = 1
JSON_NAME, WEIGHTS_NAME = "model.json", "model.safetensors"

# A fit makes no θ of more than 2 GiB; the numbers of its features take no more.
_MOST_WEIGHTS_BYTES = 4 << 30
# It names the parts of at most MOST_LAYERS layers.
_MOST_HEADER_BYTES = 1 << 20
_INPUTS = "theta.inputs."


def pack(description: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, bytes]:
    """The two files, by name: what the model says of itself, and θ with the curves."""
    description = {"formatVersion": FORMAT_VERSION, "version": __version__, **description}
    weights = safetensors.numpy.save(dict(arrays))
    described = {**description, "checksum": _checksum(description, weights)}
    return {JSON_NAME: json.dumps(described, indent=1, allow_nan=False).encode(), WEIGHTS_NAME: weights}


def unpack(blobs: Mapping[str, bytes], source: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The inverse of ``pack``, checked; errors call it ``source``."""
    missing = {JSON_NAME, WEIGHTS_NAME} - set(blobs)
    if missing:
        raise ModelFormatError(f"{source} lacks {' and '.join(sorted(missing))}; save it again.")
    with reading(source):
        description, stored = _described(blobs[JSON_NAME])
        with within(WEIGHTS_NAME):
            arrays = _arrays(blobs[WEIGHTS_NAME], stored["network"])
        if stored["checksum"] != _checksum(description, blobs[WEIGHTS_NAME]):
            raise MalformedError(f"{JSON_NAME} and {WEIGHTS_NAME} are not what was written: their checksum differs")
    return stored, arrays


def read(path: str | Path, source: str) -> dict[str, bytes]:
    """The two files from the folder ``path``, no more of them than a model can have."""
    folder = on_disk(path)
    with reading(source):
        described = read_file(folder, JSON_NAME)
        spec: NetworkSpec = _described(described)[1]["network"]
        return {JSON_NAME: described, WEIGHTS_NAME: read_file(folder, WEIGHTS_NAME, _most_bytes(spec))}


def named(path: str | Path) -> str:
    """What errors call the model at a path."""
    return f"the model at {shown(str(path))}"


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
        raise ModelFormatError(f"no model at {shown(str(folder))}: {reason(error)} ({name}).") from error


_STORED = record(
    {
        "formatVersion": whole(_FIRST_VERSION, FORMAT_VERSION),
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
    layout = Layout.largest(spec.num_features) if spec.inputs == "auto" else None
    shapes = [*spec.shapes(layout=layout).values(), *(layout.shapes().values() if layout else ())]
    theta: int = sum(math.prod(shape) for shape in shapes)
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
    prefixes = [f"theta.members.{number}." for number in range(spec.members)] or ["theta."]
    columns, points = arrays.get(f"{prefixes[0]}first.columns"), arrays.get("curves.scores")
    inputs = {name.removeprefix(_INPUTS): array for name, array in arrays.items() if name.startswith(_INPUTS)}
    auto, wide = spec.inputs == "auto", "scaled" in inputs
    if auto and (wide != (columns is not None) or (wide and spec.kind == "table")):
        raise MalformedError(
            "the inputs are those of dense rows, and the first layer that of sparse ones, or otherwise"
        )
    shapes = spec.shapes(None if columns is None else columns.size, layout_of(inputs) if auto and not wide else None)
    wanted: dict[str, tuple[type, tuple[int, ...]]] = {
        f"theta.{name}": (np.float32, shape) for name, shape in shapes.items()
    }
    if auto:
        wanted |= {f"{_INPUTS}{name}": one for name, one in stored_shapes(inputs).items()}
    if columns is not None and spec.kind != "kernel":
        wanted |= {f"{prefix}first.columns": (np.int32, (columns.size,)) for prefix in prefixes}
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
    for name in wanted:
        if name.endswith("first.columns") and not _rises(arrays[name], 0, spec.num_features - 1):
            raise MalformedError(f"{name} are not numbers of features in ascending order")
    if auto:
        check_stored(inputs, spec.num_features)
    if spec.kind == "table":
        with within("theta"):
            check_landmarks(arrays["theta.landmarks"], arrays["theta.widths"])
    every = ("knots", "levels", "judged", "mixed")
    for name in every[2:] if spec.kind == "table" else every if spec.members else ():
        if not all(_rises(one) for one in np.atleast_2d(arrays[f"theta.{name}"])):
            raise MalformedError(f"theta.{name} do not rise")
    if points is None or points.size < 2 or not _rises(points):
        raise MalformedError("curves.scores do not rise")
    return arrays


def _rises(values: npt.NDArray[Any], low: float = -np.inf, high: float = np.inf) -> bool:
    return values.size > 0 and low <= values[0] and values[-1] <= high and bool((values[1:] > values[:-1]).all())
