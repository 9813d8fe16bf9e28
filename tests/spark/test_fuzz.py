"""Random DataFrames and Params through real fits and transforms: finite scores, or one of our errors."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PythonException
from pyspark.ml.linalg import SparseVector, Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.errors import BSPAUCError, MalformedError
from bspauc_spark.rows import staging
from tests.helpers.fits import FAST
from tests.helpers.random_params import PARAMS, SPECIAL

WIDTH = 2
NUMBER, TEXT = t.DoubleType(), t.StringType()
LABEL_TYPES = {NUMBER: float, t.IntegerType(): int, t.BooleanType(): bool, TEXT: str}
FEATURE_TYPES = (VectorUDT(), t.ArrayType(NUMBER), t.ArrayType(TEXT), NUMBER)
MILD = (-1.0, 0.0, 0.3, 1.0)


def in_type(kind: t.DataType, values: list[float], sparse: bool) -> Any:
    """The features of a row as a column of this type holds them."""
    if isinstance(kind, VectorUDT):
        return SparseVector(len(values), range(len(values)), values) if sparse else Vectors.dense(values)
    if isinstance(kind, t.ArrayType):
        return values if kind.elementType == NUMBER else [str(value) for value in values]
    return 1.0


@st.composite
def frames(draw: st.DrawFn, good: int = 5) -> tuple[list[tuple[Any, ...]], t.StructType]:
    """Rows and their schema: usually all good, now and then with bad rows, wrong types or a class missing."""
    spoilt = draw(st.sampled_from(["nothing"] * good + ["types", "values", "sizes", "labels", "validation", "nulls"]))
    kinds = (st.sampled_from([*LABEL_TYPES]), st.sampled_from(FEATURE_TYPES))
    label_type, feature_type = (
        map(draw, kinds) if spoilt == "types" else (NUMBER, draw(st.sampled_from(FEATURE_TYPES[:2])))
    )
    values = draw(st.sampled_from([MILD, MILD, SPECIAL]))
    values += (math.nan, math.inf, -math.inf, 1e300) if spoilt == "values" else ()
    labels = [0.0, 1.0] + [math.nan, math.inf, 2.0] * (spoilt == "labels")
    parts = [True, False] + [None] * (spoilt == "validation")
    rows = []
    for place in range(draw(st.integers(0, 12))):
        size = draw(st.integers(0, 3)) if spoilt == "sizes" else WIDTH
        features = in_type(feature_type, [draw(st.sampled_from(values)) for _ in range(size)], draw(st.booleans()))
        # Usually both classes are there, of training and of validation.
        label, part = (float(place % 2), place < 2) if place < 4 else map(draw, map(st.sampled_from, (labels, parts)))
        label = LABEL_TYPES[label_type](label) if math.isfinite(label) or label_type == NUMBER else None
        rows.append((None if spoilt == "nulls" and draw(st.booleans()) else features, label, part))
    fields = [("features", feature_type), ("label", label_type), ("validation", t.BooleanType())]
    return rows, t.StructType([t.StructField(name, kind) for name, kind in fields])


def score_or_refuse(model: BSPAUCModel, frame: DataFrame) -> str:
    """Finite scores and probabilities, or our error, from inside a task too: which of them it was."""
    try:
        check_scores(model, frame)
    except BSPAUCError:
        return "refused"
    except PythonException as error:
        if "bspauc_spark.errors." not in str(error):
            raise
        return "refused in a task"
    return "scored"


def check_scores(model: BSPAUCModel, frame: DataFrame) -> None:
    """Finite scores and probabilities."""
    rows = model.transform(frame).select("rawPrediction", "probability").collect()
    values = np.array([[*raw, *probability] for raw, probability in rows], dtype=float).reshape(-1, 4)
    assert np.isfinite(values).all()
    assert ((values[:, 2:] >= 0) & (values[:, 2:] <= 1)).all()


@pytest.fixture(scope="module")
def model(spark: SparkSession) -> BSPAUCModel:
    rows = [(Vectors.dense(i, 2), float(i % 2)) for i in range(10)]
    return BSPAUCClassifier(**FAST).fit(spark.createDataFrame(rows, ["features", "label"]))


def test_random_frames_and_params_give_a_model_or_one_of_our_errors(
    spark: SparkSession, model: BSPAUCModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "partition_bits", lambda _: 1)
    outcomes, found = {"model": 0, "error": 0}, Counter[str]()

    @given(frame=frames(), params=PARAMS, validated=st.booleans())
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def throw(frame: tuple[list[tuple[Any, ...]], t.StructType], params: dict[str, Any], validated: bool) -> None:
        data = spark.createDataFrame(*frame).coalesce(1)
        estimator = BSPAUCClassifier(**params, stagingDir=str(tmp_path))
        if validated:
            estimator.setValidationIndicatorCol("validation")
        try:
            fitted = estimator.fit(data)
        except MalformedError:
            # It is about a file that was changed, and there is none.
            raise
        except BSPAUCError:
            outcomes["error"] += 1
        else:
            outcomes["model"] += 1
            check_scores(fitted, data)
        assert list(tmp_path.iterdir()) == []

    @given(frame=frames(good=1))
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def score(frame: tuple[list[tuple[Any, ...]], t.StructType]) -> None:
        found[score_or_refuse(model, spark.createDataFrame(*frame).coalesce(1))] += 1

    score()
    throw()
    assert outcomes["error"] >= 3
    assert outcomes["model"] >= 3
    assert sum(outcomes.values()) == 20
    assert found.keys() == {"scored", "refused", "refused in a task"}
