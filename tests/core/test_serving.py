"""The model without Spark: steps on pandas by hand, saving, loading, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bspauc_spark.errors import InvalidDataError, InvalidFeaturesError
from bspauc_spark.scorer import LossCurves, Scorer
from bspauc_spark.selection import Selection
from bspauc_spark.selection.label_noise import estimate_label_noise
from bspauc_spark.serving import Predictor, ServedSteps
from bspauc_spark.statistics import ClassScores
from bspauc_spark.theta.networks import NetworkSpec

TIME = pd.Timestamp("2020-01-01")
WEIGHTS = [1.0, -2.0, 0.5, 4.0]


def _predictor(plan: ServedSteps) -> Predictor:
    pos, neg = (ClassScores.from_array(np.linspace(low, low + 4, 50)) for low in (-1.0, -3.0))
    selection = Selection.everything(pos, neg)
    spec = NetworkSpec("linear", len(WEIGHTS), ())
    (name,) = [name for name in spec.build().state_dict() if "weight" in name]
    scorer = Scorer(
        spec=spec,
        sparse=False,
        weights={
            key: np.array(WEIGHTS, dtype=np.float32).reshape(value.shape)
            if key == name
            else np.zeros(value.shape, dtype=np.float32)
            for key, value in spec.build().state_dict().items()
        },
        threshold=0.0,
        negative_label=3.0,
        label_noise=estimate_label_noise(pos, neg),
        selection=selection,
        curves=LossCurves.of(pos, neg, selection),
        summary={"rounds": [], "best_round": 0, "counts": {}},
    )
    return Predictor(scorer, plan)


STEPS = (
    {"kind": "impute", "input": "amount", "output": "filled", "value": 2.0, "missing": None},
    {"kind": "index", "input": "city", "output": "place", "labels": ["Rome", "Bonn"], "invalid": "keep"},
    {"kind": "one_hot", "input": "place", "output": "hot", "size": 3, "drop_last": False, "invalid": "error"},
    {"kind": "assemble", "inputs": ["filled", "hot"], "output": "raw", "invalid": "error"},
    {
        "kind": "scale",
        "input": "raw",
        "output": "features",
        "shift": [1.0, 0.0, 0.0, 0.0],
        "factor": [2.0, 1.0, 1.0, 1.0],
        "offset": [0.0, 0.0, 0.0, 0.5],
    },
)
PLAN = ServedSteps(STEPS, "features", 7.0, 1.0, {"amount": "number", "city": "text"})


def test_steps_are_applied_in_order_and_outputs_named() -> None:
    frame = pd.DataFrame(
        {"city": ["Rome", "Bonn", "Oslo", None], "amount": [3, None, 1, 1], "other": 0}, index=[5, 6, 7, 8]
    )
    found = _predictor(PLAN).predict(frame)
    rows = np.array([[4, 1, 0, 0.5], [2, 0, 1, 0.5], [0, 0, 0, 1.5], [0, 0, 0, 1.5]])
    assert found["score"].tolist() == pytest.approx((rows @ WEIGHTS).tolist())
    assert found["prediction"].tolist() == [7.0, 7.0, 7.0, 7.0]
    assert list(found.index) == [5, 6, 7, 8]
    assert found["probability"].between(0, 1).all()


def test_the_threshold_decides() -> None:
    predictor = _predictor(ServedSteps(threshold=3.0))
    found = predictor.predict(pd.DataFrame({"features": [[0, 0, 0, 1.0], [0, 0, 0, 0.5]]}))
    assert found["prediction"].tolist() == [1.0, 3.0]


def test_bare_features_come_as_one_column_of_arrays_or_as_columns_of_numbers() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 4))
    predictor = _predictor(ServedSteps())
    nested = predictor.predict(pd.DataFrame({"features": list(rows)}))
    flat = predictor.predict(pd.DataFrame(rows, columns=list("abcd")))
    assert nested["score"].tolist() == flat["score"].tolist()
    assert nested["score"].tolist() == pytest.approx((rows @ WEIGHTS).tolist(), rel=1e-5, abs=1e-6)
    assert predictor.predict(pd.DataFrame({"features": []}, dtype=object)).empty


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    predictor = _predictor(PLAN)
    predictor.save(tmp_path)
    frame = pd.DataFrame({"city": ["Rome"], "amount": [3.0]})
    pd.testing.assert_frame_equal(Predictor.load(tmp_path).predict(frame), predictor.predict(frame))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ({"city": ["Rome"]}, "column 'amount' is missing; the model reads amount, city"),
        ({"city": ["Rome"], "amount": ["much"]}, r"^column 'amount' must hold numbers\.$"),
        ({"city": ["Rome"], "amount": pd.Series([10**400], dtype=object)}, r"^column 'amount' must hold numbers\.$"),
        ({"city": ["Rome"], "amount": [np.ones(2)]}, r"^column 'amount' must hold numbers\.$"),
        ({"city": ["Rome"], "amount": [TIME]}, "column 'amount' has type datetime64.*numbers or text are needed"),
        ({"city": ["Rome"], "amount": [TIME.tz_localize("UTC")]}, "column 'amount' has type datetime64"),
        ({"city": ["Rome"], "amount": pd.Categorical([TIME])}, "column 'amount' has type datetime64"),
        ({"city": ["Rome"], "amount": [TIME - TIME]}, "column 'amount' has type timedelta64"),
        ({"city": ["Rome"], "amount": [1j]}, "column 'amount' has type complex128"),
        ({"city": [TIME], "amount": [1.0]}, "column 'city' has type datetime64"),
        ({"city": [np.ones(2)], "amount": [1.0]}, "column 'city' holds arrays or objects"),
        ({"city": [["Rome"]], "amount": [1.0]}, "column 'city' holds arrays or objects"),
    ],
)
def test_tables_that_do_not_fit_a_pipeline_are_refused(frame: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidDataError, match=reason):
        _predictor(PLAN).predict(pd.DataFrame(frame))


@pytest.mark.parametrize(
    ("plan", "columns", "twice"),
    [(PLAN, ["city", "amount", "amount"], "amount"), (PLAN, ["city", "amount", "city"], "city")],
)
def test_a_column_that_is_there_twice_is_refused(plan: ServedSteps, columns: list[str], twice: str) -> None:
    frame = pd.DataFrame({"city": ["Rome"], "amount": [1.0]})[columns]
    with pytest.raises(InvalidDataError, match=f"the table has 2 columns '{twice}'"):
        _predictor(plan).predict(frame)


def test_a_column_of_features_that_is_there_twice_is_refused() -> None:
    frame = pd.DataFrame({"features": [[1.0] * 4]})
    with pytest.raises(InvalidDataError, match="the table has 2 columns 'features'"):
        _predictor(ServedSteps()).predict(pd.concat([frame, frame], axis=1))


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
def test_a_missing_category_is_one_that_training_never_saw(missing: object) -> None:
    frame = pd.DataFrame({"city": pd.Series(["Rome", missing], dtype=object), "amount": 1.0})
    unseen = pd.DataFrame({"city": ["Rome", "Lima"], "amount": 1.0})
    expected = _predictor(PLAN).predict(unseen)
    pd.testing.assert_frame_equal(_predictor(PLAN).predict(frame), expected)
    pd.testing.assert_frame_equal(_predictor(PLAN).predict(frame.astype({"city": "string"})), expected)


def test_values_that_training_never_saw_are_refused_or_kept() -> None:
    strict = json.loads(json.dumps(STEPS).replace('"keep"', '"error"'))
    frame = pd.DataFrame({"city": ["Rome", "Oslo"], "amount": [1.0, 1.0]})
    with pytest.raises(InvalidDataError, match="column 'city' has 1 values that were not seen in training"):
        _predictor(ServedSteps(strict, "features", 1.0, 0.0, PLAN.inputs)).predict(frame)
    assert len(_predictor(PLAN).predict(frame)) == 2


def _of_codes(*labels: str) -> Predictor:
    codes = {"kind": "index", "input": "code", "output": "place", "labels": labels, "invalid": "keep"}
    hot = {"kind": "one_hot", "input": "place", "output": "features", "size": 4, "drop_last": False, "invalid": "error"}
    return _predictor(ServedSteps((codes, hot), "features", 1.0, 0.0, {"code": "code"}))


def _places(predictor: Predictor, values: Any) -> list[int]:
    return [WEIGHTS.index(score) for score in predictor.predict(pd.DataFrame({"code": values}))["score"]]


@pytest.mark.parametrize(
    ("labels", "values", "places"),
    [
        (("1.0E7", "2.5E7", "1.0E-4"), [1e7, 2.5e7, 1e-4, 2e7], [0, 1, 2, 3]),
        (("1.0E7", "2.5E7", "1.0E-4"), np.array([1e7, 2.5e7, 1e-4, 2e7], dtype=np.float32), [0, 1, 2, 3]),
        (("1.0E7", "2.5E7", "1.0E-4"), pd.Series([10**7, 25 * 10**6, 0, 10**400], dtype=object), [0, 1, 3, 3]),
        (("0.1", "0.2", "1.0"), np.array([0.1, 0.2, 1.0], dtype=np.float32), [0, 1, 2]),
        (("1.0", "Infinity", "-0.0"), [1.0, np.inf, -0.0, 0.0, -np.inf, np.nan], [0, 1, 2, 3, 3, 3]),
        (("9007199254740992", "7"), [9007199254740992, 9007199254740993], [0, 2]),
    ],
)
def test_numbers_are_found_however_spark_writes_them(labels: tuple[str, ...], values: Any, places: list[int]) -> None:
    assert _places(_of_codes(*labels), values) == places


def test_text_is_compared_as_text_though_it_looks_like_a_number() -> None:
    assert _places(_of_codes("01", "1.0E7", "2"), ["1", "01", "10000000.0", "1.0E7", "2.0"]) == [3, 0, 3, 1, 3]
    assert _places(_of_codes("01", "2", "3"), [1, 2, 3.0]) == [3, 1, 2]


def test_codes_are_found_as_text_as_whole_numbers_and_as_pandas_makes_them_with_gaps() -> None:
    predictor = _of_codes("7", "12", "3")
    for values in ([12, 7, 3], ["12", "7", "3"], [12.0, 7.0, 3.0, None]):
        found = predictor.predict(pd.DataFrame({"code": values}))["score"].tolist()
        assert found == [WEIGHTS[1], WEIGHTS[0], WEIGHTS[2], WEIGHTS[3]][: len(values)]


@pytest.mark.parametrize("labels", [("true", "false"), ("True", "False"), ("TRUE", "FALSE")])
def test_flags_are_found_however_training_spelled_them(labels: tuple[str, ...]) -> None:
    for values in (np.array([True, False]), [True, False, None], list(labels)):
        assert _places(_of_codes(*labels), values) == [0, 1, 2][: len(values)]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ({"features": [[1.0, 2.0]]}, "arrays of other sizes than 4"),
        ({"a": [1.0], "b": [1.0]}, "the table has 2 columns; give a column 'features' of arrays of 4 numbers"),
        ({"features": [["much", 1, 2, 3]]}, r"^column 'features' must hold numbers\.$"),
        ({name: ["much"] for name in "abcd"}, r"^the table must hold numbers\.$"),
        ({"features": [[1, 2, 3, [4, 5]]]}, r"^column 'features' must hold numbers\.$"),
        ({"features": [[10**400, 1, 2, 3]]}, r"^column 'features' must hold numbers\.$"),
        ({"features": [np.ones(4) * 1j]}, r"^column 'features' must hold numbers\.$"),
        ({"features": [np.ones(4).astype("M8[s]")]}, r"^column 'features' must hold numbers\.$"),
    ],
)
def test_features_of_another_width_or_kind_are_refused(frame: dict[str, list[object]], reason: str) -> None:
    with pytest.raises(InvalidFeaturesError, match=reason):
        _predictor(ServedSteps()).predict(pd.DataFrame(frame))


def test_times_among_columns_of_features_are_refused_by_name() -> None:
    frame = pd.DataFrame({"a": [1.0], "b": [1.0], "c": [TIME], "d": [1.0]})
    with pytest.raises(InvalidDataError, match="column 'c' has type datetime64"):
        _predictor(ServedSteps()).predict(frame)
