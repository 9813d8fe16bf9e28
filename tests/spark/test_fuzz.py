"""Random DataFrames and Params through real fits and transforms: finite scores, or one of our errors."""

from __future__ import annotations

import math
import time
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

from bspauc_spark import BSPAUCClassifier, BSPAUCModel, staging
from bspauc_spark.errors import BSPAUCError
from tests.conftest import FAST
from tests.core.test_fuzz import PARAMS, SPECIAL

SECONDS = 50.0
WIDTH = 2
LABEL_TYPES = (t.DoubleType(), t.DoubleType(), t.IntegerType(), t.BooleanType(), t.StringType())
FEATURE_TYPES = (VectorUDT(), VectorUDT(), t.ArrayType(t.DoubleType()), t.ArrayType(t.StringType()), t.DoubleType())


def vector(values: list[float], sparse: bool) -> Any:
    return SparseVector(len(values), range(len(values)), values) if sparse else Vectors.dense(values)


@st.composite
def frames(draw: st.DrawFn) -> tuple[list[tuple[Any, ...]], t.StructType]:
    """Rows and their schema; now and then a bad row or a column of the wrong type, mostly none."""
    label_type, feature_type = draw(st.sampled_from(LABEL_TYPES)), draw(st.sampled_from(FEATURE_TYPES))
    spoilt = draw(st.sampled_from(["nothing"] * 4 + ["features", "label", "validation", "sizes", "all"]))
    bad = (math.nan, math.inf, -math.inf, 1e300) if spoilt in ("features", "all") else ()
    value = st.sampled_from([*SPECIAL, *bad])
    rows = []
    for _ in range(draw(st.integers(0, 10))):
        size = draw(st.integers(0, 3)) if spoilt in ("sizes", "all") else WIDTH
        values = [draw(value) for _ in range(size)]
        features: Any = vector(values, draw(st.booleans())) if isinstance(feature_type, VectorUDT) else values
        if isinstance(feature_type, t.DoubleType):
            features = 1.0
        elif isinstance(feature_type, t.ArrayType) and isinstance(feature_type.elementType, t.StringType):
            features = [str(one) for one in values]
        label: Any = draw(st.sampled_from([0.0, 1.0] + [math.nan, math.inf, 2.0] * (spoilt in ("label", "all"))))
        if not isinstance(label_type, t.DoubleType):
            of = {t.IntegerType: int, t.BooleanType: bool, t.StringType: str}[type(label_type)]
            label = of(label) if math.isfinite(label) else None
        missing = spoilt == "all" and draw(st.booleans())
        validation = draw(st.sampled_from([True, False] + [None] * (spoilt in ("validation", "all"))))
        rows.append((None if missing else features, label, validation))
    fields = [("features", feature_type), ("label", label_type), ("validation", t.BooleanType())]
    return rows, t.StructType([t.StructField(name, kind) for name, kind in fields])


def check_scores(model: BSPAUCModel, frame: DataFrame) -> None:
    """Finite scores and probabilities, or our error from inside a task."""
    try:
        rows = model.transform(frame).select("rawPrediction", "probability").collect()
    except (BSPAUCError, PythonException) as error:
        if isinstance(error, PythonException) and "bspauc_spark.errors." not in str(error):
            raise
        return
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
    started = time.monotonic()
    outcomes = {"model": 0, "error": 0}

    @given(frame=frames(), params=PARAMS, validated=st.booleans())
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def throw(frame: tuple[list[tuple[Any, ...]], t.StructType], params: dict[str, Any], validated: bool) -> None:
        if time.monotonic() - started > SECONDS:
            return
        data = spark.createDataFrame(*frame).coalesce(1)
        estimator = BSPAUCClassifier(**params, stagingDir=str(tmp_path))
        if validated:
            estimator.setValidationIndicatorCol("validation")
        try:
            fitted = estimator.fit(data)
        except BSPAUCError:
            outcomes["error"] += 1
        else:
            outcomes["model"] += 1
            check_scores(fitted, data)
        assert list(tmp_path.iterdir()) == []

    @given(frame=frames())
    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def score(frame: tuple[list[tuple[Any, ...]], t.StructType]) -> None:
        if time.monotonic() - started < SECONDS:
            check_scores(model, spark.createDataFrame(*frame).coalesce(1))

    throw()
    score()
    assert outcomes["error"]
    assert outcomes["model"]
