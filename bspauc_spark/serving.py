"""A saved model or pipeline that scores pandas with neither Spark nor Java: what MLflow serves.

A pipeline's steps before the model are kept as plain values (``steps.json``), which :mod:`bspauc_spark.flavor` took
from the Spark stages. Each step reads columns of a table of arrays and adds others; a vector column is a 2-d array.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from bspauc_spark.errors import InvalidDataError, InvalidFeaturesError, MalformedError
from bspauc_spark.results.served import welcome_whole_numbers
from bspauc_spark.rows.categories import EXACT, are_flags, are_numbers
from bspauc_spark.rows.storage import on_disk
from bspauc_spark.saved import named, read_file, reading
from bspauc_spark.schema import brief, flag, many, mapping, maybe, parse, real, record, text, whole, within
from bspauc_spark.scorer import Scorer

OUTPUTS = ("score", "probability", "prediction")
STEPS_NAME = "steps.json"
# A row is a dense one here, so that many of them are scored a part at a time.
_WIDEST, _MOST_VALUES = 1 << 24, 1 << 25

Table: TypeAlias = dict[str, npt.NDArray[Any]]
Step: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class ServedSteps:
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
    plan: ServedSteps

    def predict(self, frame: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """``score``, ``probability`` of a positive label and ``prediction`` of each row."""
        most = max(1, _MOST_VALUES // self.scorer.spec.num_features)
        parts = [self._scores(frame.iloc[start : start + most]) for start in range(0, max(1, len(frame)), most)]
        scores = np.concatenate(parts).astype(np.float64)
        positive = scores > self.plan.threshold
        prediction = np.where(positive, self.plan.positive_label, self.scorer.negative_label)
        columns = (scores, self.scorer.label_noise.probability(scores), prediction)
        return pd.DataFrame(dict(zip(OUTPUTS, columns, strict=True)), index=frame.index)

    def _scores(self, frame: pd.DataFrame) -> npt.NDArray[np.float32]:
        return self.scorer.score_numpy(self._features(frame))

    def _features(self, frame: pd.DataFrame) -> npt.NDArray[Any]:
        if not self.plan.steps:
            return self._given_features(frame)
        missing = [name for name in self.plan.inputs if name not in frame.columns]
        if missing:
            raise InvalidDataError(f"column {missing[0]!r} is missing; the model reads {', '.join(self.plan.inputs)}.")
        table: Table = {name: _column(_one(frame, name), kind) for name, kind in self.plan.inputs.items()}
        for step in self.plan.steps:
            table |= _STEPS[step["kind"]](table, step)
        return _matrix(table[self.plan.features])

    def _given_features(self, frame: pd.DataFrame) -> npt.NDArray[Any]:
        """One column of arrays, or as many columns of numbers as the model has features."""
        width, column = self.scorer.spec.num_features, self.plan.features
        if column in frame.columns and _one(frame, column).dtype == object:
            rows = [_floats(row, f"column {column!r}") for row in frame[column]]
            if any(row.shape != (width,) for row in rows):
                raise InvalidFeaturesError(f"column {column!r} holds arrays of other sizes than {width}.")
            return np.stack(rows) if rows else np.zeros((0, width), dtype=np.float32)
        if frame.shape[1] != width:
            raise InvalidFeaturesError(
                f"the table has {frame.shape[1]} columns; give a column {column!r} of arrays of {width} numbers, or "
                f"{width} columns of numbers."
            )
        for name, dtype in frame.dtypes.items():
            _refuse_times(dtype, name)
        return _floats(frame, "the table")

    def save(self, path: str | Path) -> None:
        """Write model and steps into the folder ``path``."""
        self.scorer.save(path)
        (on_disk(path) / STEPS_NAME).write_text(json.dumps(asdict(self.plan), indent=1))

    @classmethod
    def load(cls, path: str | Path) -> Predictor:
        """Read what ``save`` wrote."""
        scorer = Scorer.load(path)
        with reading(named(path)):
            data = read_file(on_disk(path), STEPS_NAME)
            with within(STEPS_NAME):
                plan = ServedSteps(**_STORED(parse(data), ""))
                check_widths(plan, scorer.spec.num_features)
        return cls(scorer, needed(plan))


def _load_pyfunc(path: str) -> Predictor:
    """MLflow's entry point."""
    welcome_whole_numbers()
    return Predictor.load(path)


def _one(frame: pd.DataFrame, name: str) -> pd.Series[Any]:
    found = frame[name]
    if not isinstance(found, pd.Series):
        raise InvalidDataError(f"the table has {found.shape[1]} columns {name!r}; rename or drop all but one.")
    return found


def _column(values: pd.Series[Any], kind: str) -> npt.NDArray[Any]:
    _refuse_times(values.dtype, values.name)
    if kind != "number":
        # An array of objects would make doubles of floats, whose text has more digits.
        floats = isinstance(values.dtype, np.dtype) and values.dtype.kind == "f"
        return values.to_numpy() if floats else np.asarray(values, dtype=object)
    try:
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError, OverflowError):
        # The reason would repeat a value of a row.
        raise InvalidDataError(f"column {values.name!r} must hold numbers.") from None


def _refuse_times(dtype: Any, name: object) -> None:
    """Refuse what numpy makes numbers of without a word: times, spans of time, complex numbers."""
    held = dtype.categories.dtype if isinstance(dtype, pd.CategoricalDtype) else dtype
    if held.kind in "mMc":
        raise InvalidDataError(f"column {name!r} has type {held}; numbers or text are needed.")


def _floats(values: Any, where: str) -> npt.NDArray[np.float32]:
    try:
        given = np.asarray(values)
        if given.dtype.kind not in "mMc":
            return given.astype(np.float32)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidFeaturesError(f"{where} must hold numbers.")


def _matrix(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values[:, None] if values.ndim == 1 else values


def _index(table: Table, step: Step) -> Table:
    """StringIndexer: a label's place in the list; others are an error or, with ``keep``, the place after the last."""
    places = {label: place for place, label in enumerate(step["labels"])}
    values = table[step["input"]]
    if not all(map(pd.api.types.is_scalar, values)):
        raise InvalidDataError(f"column {step['input']!r} holds arrays or objects; a category is text or a number.")
    spellings = _spellings(places, np.float32 if values.dtype == np.float32 else np.float64)
    other = float(len(places)) if step["invalid"] == "keep" else np.nan
    found = np.array([_place(value, places, spellings, other) for value in values], dtype=np.float64)
    unknown = np.isnan(found)
    if unknown.any():
        raise InvalidDataError(
            f"column {step['input']!r} has {int(unknown.sum())} values that were not seen in training. "
            "Fit StringIndexer with handleInvalid='keep' to allow them."
        )
    return {step["output"]: found}


def _spellings(places: Mapping[str, int], precision: type[np.floating[Any]]) -> dict[str, int]:
    """Places by Python's text of the labels, where all are flags, or numbers as Spark writes them."""
    if are_flags(places):
        return {label.capitalize(): place for label, place in places.items()}
    if not are_numbers(places):
        return {}
    found: dict[str, int] = {}
    with np.errstate(over="ignore"):
        for label, place in places.items():
            found.setdefault(repr(float(precision(label))), place)
    return found


def _place(value: Any, places: Mapping[str, int], spellings: Mapping[str, int], other: float) -> float:
    """Spark makes text of numbers, 1.0E7 of 1e7; pandas makes 1.0 of a whole number in a column with gaps."""
    if pd.isna(value):
        return other
    texts = [str(value)]
    is_float = isinstance(value, (float, np.floating))
    if is_float and value.is_integer():
        texts.append(str(int(value)))
    place = next((places[text] for text in texts if text in places), None)
    if place is None and isinstance(value, (bool, np.bool_)):
        place = spellings.get(str(value))
    elif place is None and (is_float or (isinstance(value, (int, np.integer)) and abs(int(value)) <= EXACT)):
        place = spellings.get(repr(float(value)))
    return other if place is None else float(place)


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
    parts = [table[name] for name in step["inputs"]]
    # As Spark does: what is within a vector is not looked at.
    numbers = [part for part in parts if part.ndim == 1]
    wrong = np.isnan(numbers).any(axis=0)
    if wrong.any() and step["invalid"] != "keep":
        raise InvalidDataError(f"{int(wrong.sum())} rows have missing values in {', '.join(step['inputs'])}.")
    return {step["output"]: np.concatenate([_matrix(part) for part in parts], axis=1)}


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


_INVALID = text("error", "skip", "keep")
_ONE = {"kind": text(), "input": text(), "output": text()}
_STORED_STEPS = {
    "index": record({**_ONE, "labels": many(text()), "invalid": _INVALID}),
    "one_hot": record({**_ONE, "size": whole(0, _WIDEST), "drop_last": flag, "invalid": _INVALID}),
    "assemble": record({"kind": text(), "inputs": many(text(), least=1), "output": text(), "invalid": _INVALID}),
    "impute": record({**_ONE, "value": real(), "missing": maybe(real())}),
    "scale": record({**_ONE, **dict.fromkeys(("shift", "factor", "offset"), many(real()))}),
}


def _stored_step(value: Any, where: str) -> Step:
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _STORED_STEPS:
        raise MalformedError(f"{where} is a step of kind {brief(kind)}, which this version does not know")
    step: Step = _STORED_STEPS[kind](value, where)
    return step


_STORED = record(
    {
        "steps": many(_stored_step),
        "features": text(),
        "positive_label": real(),
        "threshold": real(),
        "inputs": mapping(text("number", "text", "code")),
    }
)


def check_widths(plan: ServedSteps, num_features: int) -> None:
    """Refuse steps that cannot be taken one after the other, or that end in other than ``num_features`` numbers."""
    if not plan.steps:
        return
    # Of text there is none.
    widths = {name: 1 if kind == "number" else None for name, kind in plan.inputs.items()}
    for place, step in enumerate(plan.steps):
        names = _inputs(step)
        if any(name not in widths for name in names):
            raise MalformedError(f"steps[{place}] reads a column that is neither given nor made before")
        width = _width(step, [widths[name] for name in names])
        if width is None or width > _WIDEST:
            raise MalformedError(f"steps[{place}] reads columns of another kind or size than it can use")
        widths[step["output"]] = width
    if widths.get(plan.features) != num_features:
        raise MalformedError(f"the steps do not give {num_features:,} features")


def needed(plan: ServedSteps) -> ServedSteps:
    """The plan without what its features do not depend on, which might be wider than they are."""
    steps, wanted = list[Step](), {plan.features}
    for step in reversed(plan.steps):
        if step["output"] in wanted:
            steps.insert(0, step)
            wanted = wanted - {step["output"]} | {*_inputs(step)}
    return replace(plan, steps=steps, inputs={name: kind for name, kind in plan.inputs.items() if name in wanted})


def _inputs(step: Step) -> Sequence[str]:
    return step["inputs"] if step["kind"] == "assemble" else [step["input"]]


def _width(step: Step, given: Sequence[int | None]) -> int | None:
    """How many numbers a row has in the column that ``step`` makes of these; None: it cannot."""
    if step["kind"] == "index":
        return 1 if given[0] in (None, 1) else None
    known = [width for width in given if width is not None]
    if len(known) < len(given):
        return None
    if step["kind"] == "one_hot":
        width: int = step["size"] + (step["invalid"] == "keep") - step["drop_last"]
        return width if known == [1] and width >= 0 else None
    if step["kind"] == "scale":
        sizes = {len(step[name]) for name in ("shift", "factor", "offset")}
        return known[0] if sizes == {known[0]} else None
    return sum(known)
