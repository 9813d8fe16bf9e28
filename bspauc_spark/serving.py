"""A saved model or pipeline that scores pandas with neither Spark nor Java: what MLflow serves.

A pipeline's steps before the model are kept as plain values (``steps.json``), which :mod:`bspauc_spark.flavor` took
from the Spark stages. Each step reads columns of a table of arrays and adds others; a vector column is a 2-d array.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from bspauc_spark.errors import InvalidDataError, InvalidFeaturesError, ModelFormatError
from bspauc_spark.scorer import Scorer

OUTPUTS = ("score", "probability", "prediction")
STEPS_NAME = "steps.json"

Table: TypeAlias = dict[str, npt.NDArray[Any]]
Step: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """What stands around the network: the steps before it, its columns and labels."""

    steps: Sequence[Step] = ()
    features: str = "features"
    positive_label: float = 1.0
    threshold: float = 0.0
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Columns that the steps read from the caller's table: ``number``, or a category as ``text`` or as ``code``."""


@dataclass(frozen=True)
class Predictor:
    """Scores tables of pandas."""

    scorer: Scorer
    plan: Plan

    def predict(self, frame: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """``score``, ``probability`` of a positive label and ``prediction`` of each row."""
        features = self._features(frame)
        scores = self.scorer.score_numpy(features).astype(np.float64)
        positive = scores > self.plan.threshold
        prediction = np.where(positive, self.plan.positive_label, self.scorer.negative_label)
        columns = (scores, self.scorer.calibration.probability(scores), prediction)
        return pd.DataFrame(dict(zip(OUTPUTS, columns, strict=True)), index=frame.index)

    def _features(self, frame: pd.DataFrame) -> npt.NDArray[Any]:
        if not self.plan.steps:
            return self._given_features(frame)
        missing = [name for name in self.plan.inputs if name not in frame.columns]
        if missing:
            raise InvalidDataError(f"column {missing[0]!r} is missing; the model reads {', '.join(self.plan.inputs)}.")
        table: Table = {name: _column(frame[name], kind) for name, kind in self.plan.inputs.items()}
        for step in self.plan.steps:
            table |= _STEPS[step["kind"]](table, step)
        return _matrix(table[self.plan.features])

    def _given_features(self, frame: pd.DataFrame) -> npt.NDArray[Any]:
        """One column of arrays, or as many columns of numbers as the model has features."""
        width, column = self.scorer.spec.num_features, self.plan.features
        if column in frame.columns and frame[column].dtype == object:
            rows = [np.asarray(row, dtype=np.float32) for row in frame[column]]
            if any(row.shape != (width,) for row in rows):
                raise InvalidFeaturesError(f"column {column!r} holds arrays of other sizes than {width}.")
            return np.stack(rows) if rows else np.zeros((0, width), dtype=np.float32)
        if frame.shape[1] != width:
            raise InvalidFeaturesError(
                f"the table has {frame.shape[1]} columns; give a column {column!r} of arrays of {width} numbers, or "
                f"{width} columns of numbers."
            )
        return np.asarray(frame, dtype=np.float32)

    def save(self, path: str | Path) -> None:
        """Write model and steps into the folder ``path``."""
        self.scorer.save(path)
        (Path(path) / STEPS_NAME).write_text(json.dumps(asdict(self.plan), indent=1))

    @classmethod
    def load(cls, path: str | Path) -> Predictor:
        """Read what ``save`` wrote."""
        scorer = Scorer.load(path)
        try:
            plan = Plan(**json.loads((Path(path) / STEPS_NAME).read_text()))
            unknown = [step["kind"] for step in plan.steps if step["kind"] not in _STEPS]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ModelFormatError(f"{STEPS_NAME} cannot be read: {type(error).__name__}: {error}.") from error
        if unknown:
            raise ModelFormatError(f"{STEPS_NAME} has a step of kind {unknown[0]!r}, which this version does not know.")
        return cls(scorer, plan)


def _load_pyfunc(path: str) -> Predictor:
    """MLflow's entry point."""
    return Predictor.load(path)


def _column(values: pd.Series[Any], kind: str) -> npt.NDArray[Any]:
    if kind != "number":
        return np.asarray(values, dtype=object)
    try:
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError) as error:
        raise InvalidDataError(f"column {values.name!r} must hold numbers: {error}.") from error


def _matrix(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values[:, None] if values.ndim == 1 else values


def _index(table: Table, step: Step) -> Table:
    """StringIndexer: a label's place in the list; others are an error or, with ``keep``, the place after the last."""
    places = {label: place for place, label in enumerate(step["labels"])}
    other = float(len(places)) if step["invalid"] == "keep" else np.nan
    found = np.array([_place(value, places, other) for value in table[step["input"]]], dtype=np.float64)
    unknown = np.isnan(found)
    if unknown.any():
        raise InvalidDataError(
            f"column {step['input']!r} has {int(unknown.sum())} values that were not seen in training. "
            "Fit StringIndexer with handleInvalid='keep' to allow them."
        )
    return {step["output"]: found}


def _place(value: Any, places: Mapping[str, int], other: float) -> float:
    """Spark makes text of numbers; pandas makes 1.0 of a whole number in a column with gaps."""
    if value is None or value != value:
        return other
    texts = [str(value)]
    if isinstance(value, (float, np.floating)) and value.is_integer():
        texts.append(str(int(value)))
    return next((float(places[text]) for text in texts if text in places), other)


def _one_hot(table: Table, step: Step) -> Table:
    """OneHotEncoder: the last category is all zeros if it is dropped; one that is unknown has a place with ``keep``."""
    places, size = table[step["input"]].astype(np.int64), step["size"]
    keep = step["invalid"] == "keep"
    if not keep and len(places) and (places.min() < 0 or places.max() >= size):
        raise InvalidDataError(f"column {step['input']!r} has a category outside 0 … {size - 1}.")
    width = size + keep - step["drop_last"]
    places = np.where((places < 0) | (places >= size), size, places)
    return {step["output"]: (places[:, None] == np.arange(width)).astype(np.float64)}


def _assemble(table: Table, step: Step) -> Table:
    parts = np.concatenate([_matrix(table[name]) for name in step["inputs"]], axis=1)
    wrong = np.isnan(parts).any(axis=1)
    if wrong.any() and step["invalid"] != "keep":
        raise InvalidDataError(f"{int(wrong.sum())} rows have missing values in {', '.join(step['inputs'])}.")
    return {step["output"]: parts}


def _impute(table: Table, step: Step) -> Table:
    values = table[step["input"]]
    missing = np.isnan(values)
    if step["missing"] is not None:
        missing |= values == step["missing"]
    return {step["output"]: np.where(missing, step["value"], values)}


def _scale(table: Table, step: Step) -> Table:
    """Any scaler: ``(x − shift) · factor + offset``, column by column."""
    shift, factor, offset = (np.asarray(step[name]) for name in ("shift", "factor", "offset"))
    return {step["output"]: (_matrix(table[step["input"]]) - shift) * factor + offset}


_STEPS: dict[str, Callable[[Table, Step], Table]] = {
    "index": _index,
    "one_hot": _one_hot,
    "assemble": _assemble,
    "impute": _impute,
    "scale": _scale,
}
