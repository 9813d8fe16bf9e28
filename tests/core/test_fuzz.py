"""Random rows and Params below Spark: a staging task counts what is bad, and a fit is finite or one of our errors."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bspauc_spark import BSPAUCClassifier
from bspauc_spark.errors import BSPAUCError, InvalidParamError, MalformedError
from bspauc_spark.rows import copies
from bspauc_spark.rows.kinds import KINDS, NEGATIVES, POSITIVES, VALIDATION_NEGATIVES, VALIDATION_POSITIVES, ShardFile
from bspauc_spark.rows.rows import Rows, SparseBatch
from bspauc_spark.rows.shard_task import ShardTask
from bspauc_spark.rows.shards import Shards
from bspauc_spark.rows.staging import StagedData
from bspauc_spark.scorer import Scorer
from bspauc_spark.spark import plan
from bspauc_spark.spark.together import check_together
from bspauc_spark.theta.scoring import one_thread
from bspauc_spark.theta.workers import make_worker
from tests.helpers.random_params import PARAMS, SPECIAL, choice
from tests.helpers.rows import as_rows

WIDTH = 3
LARGEST = float(np.finfo(np.float32).max)
UNUSABLE = (math.nan, math.inf, -math.inf, 1e39, -1e300, None)

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=2)), max_size=3),
    st.sampled_from([*BSPAUCClassifier().params, b"x", object(), {}, (), np.float32(1), np.int32(2), 10**400]),
)


@given(name=st.sampled_from([param.name for param in BSPAUCClassifier().params]), value=ANYTHING)
@settings(max_examples=600, deadline=None)
def test_a_param_takes_any_value_or_refuses_it_with_our_error(name: str, value: Any) -> None:
    estimator = BSPAUCClassifier()
    try:
        estimator.set(estimator.getParam(name), value)
    except InvalidParamError:
        assert not estimator.isSet(name)
    else:
        kept = estimator.getOrDefault(name)
        assert type(kept) in (bool, int, float, str, list)
        assert not isinstance(kept, float) or math.isfinite(kept)
        json.dumps(kept)


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows, most of them good: features as (size, indices or nothing, values), label, validation."""
    good = st.sampled_from(SPECIAL)
    value = st.one_of(good, good, good, st.floats(width=32), st.sampled_from(UNUSABLE))
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        size = draw(st.sampled_from([WIDTH] * 8 + [0, 1, WIDTH + 1]))
        indices = None
        if draw(st.booleans()):
            indices = sorted(draw(st.sets(st.integers(0, size - 1), max_size=size))) if size else []
        values = [draw(value) for _ in range(size if indices is None else len(indices))]
        if indices is not None and draw(st.integers(0, 5)) == 0:
            # What a file may hold, and Spark's own classes would refuse.
            indices = draw(st.lists(st.one_of(st.none(), st.integers(-2, size + 1)), max_size=WIDTH + 1))
        rows.append(
            {
                "features": None if draw(st.integers(0, 9)) == 0 else (size, indices, values),
                "label": draw(st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, None, math.nan, math.inf])),
                "validation": draw(st.sampled_from([True, False, False, None])),
                "copies": draw(st.sampled_from([1, 1, 1, 2, 50])),
            }
        )
    return rows


def in_arrow(rows: list[dict[str, Any]], sparse: bool) -> pa.Table:
    """As Spark hands them over: arrays of float, or the fields of VectorUDT."""
    if sparse:
        kind = pa.struct(
            [
                ("type", pa.int8()),
                ("size", pa.int32()),
                ("indices", pa.list_(pa.int32())),
                ("values", pa.list_(pa.float64())),
            ]
        )
        features = [None if x is None else as_struct(*x) for x in (row["features"] for row in rows)]
    else:
        kind = pa.list_(pa.float32())
        features = [None if x is None else as_list(*x) for x in (row["features"] for row in rows)]
    return pa.table(
        {
            "features": pa.array(features, kind),
            "label": pa.array([row["label"] for row in rows], pa.float64()),
            "validation": pa.array([row["validation"] for row in rows], pa.bool_()),
            "hash": pa.array(range(len(rows)), pa.int64()),
            "copies": pa.array([row["copies"] for row in rows], pa.int64()),
        }
    )


def as_struct(size: int, indices: list[int] | None, values: list[Any]) -> dict[str, Any]:
    if indices is None:
        return {"type": 1, "values": values}
    return {"type": 0, "size": size, "indices": indices, "values": values}


def as_list(size: int, indices: list[int] | None, values: list[Any]) -> list[Any]:
    dense = dict(enumerate(values) if indices is None else zip(indices, values, strict=True))
    return [to_float(dense.get(place, 0.0)) for place in range(size)]


def to_float(value: Any) -> Any:
    """What Spark's cast makes of a double: beyond float32 is infinite."""
    if value is None or math.isnan(value) or abs(value) <= LARGEST:
        return value
    return math.copysign(math.inf, value)


def is_sound(features: tuple[int, list[int | None] | None, list[Any]] | None) -> bool:
    if features is None or features[1] is None:
        return True
    size, indices, values = features
    places = [-1 if index is None else index for index in indices]
    return len(places) == len(values) and places == sorted({*places} & {*range(size)})


def is_finite(value: Any) -> bool:
    return value is not None and math.isfinite(value) and abs(value) <= LARGEST


def to_numpy(rows: Rows) -> np.ndarray:
    batch = rows.between(0, len(rows))
    if not isinstance(batch, SparseBatch):
        return batch.numpy()
    table = np.zeros((len(batch), WIDTH), dtype=np.float32)
    ends = [*batch.offsets.tolist()[1:], len(batch.indices)]
    for row, (start, end) in enumerate(zip(batch.offsets.tolist(), ends, strict=True)):
        table[row, batch.indices[start:end].numpy()] = batch.values[start:end].numpy()
    return table


@given(rows=tables(), sparse=st.booleans(), per_batch=st.integers(1, 12))
@settings(max_examples=300, deadline=None)
def test_a_staging_task_counts_the_bad_rows_and_writes_the_others(
    rows: list[dict[str, Any]], sparse: bool, per_batch: int
) -> None:
    if not sparse:
        # Spark refuses them when it makes arrays of them.
        rows = [row for row in rows if is_sound(row["features"])]
    wanted = dict.fromkeys(("label", "null", "size", "value", "index", "validation"), 0)
    kept: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for row in rows:
        wrong = {
            "label": row["label"] is None or not math.isfinite(row["label"]),
            "null": row["features"] is None,
            "size": row["features"] is not None and row["features"][0] != WIDTH,
            "validation": row["validation"] is None,
        }
        right_size = not wrong["null"] and not wrong["size"]
        wrong["index"] = right_size and not is_sound(row["features"])
        wrong["value"] = right_size and not all(is_finite(x) for x in row["features"][2])
        for problem, found in wrong.items():
            wanted[problem] += found * row["copies"]
        if not any(wrong[problem] for problem in ("label", "null", "size", "value", "index")):
            kind = KINDS[2 * bool(row["validation"]) + (row["label"] != 1.0)]
            kept[kind] += [as_list(*row["features"])] * row["copies"]

    with tempfile.TemporaryDirectory() as folder:
        task = ShardTask(folder, 1.0, WIDTH, sparse)
        (answer,) = task(iter(in_arrow(rows, sparse).to_batches(max_chunksize=per_batch)))
        report = json.loads(answer.column("report")[0].as_py())
        # A row of another size may hold bad values too, and counts for both or for its size alone.
        counted = report["problems"]
        assert {k: v for k, v in counted.items() if k != "value"} == {k: v for k, v in wanted.items() if k != "value"}
        assert wanted["value"] <= counted["value"] <= wanted["value"] + wanted["size"]
        assert report["rows"] == sum(row["copies"] for row in rows)
        for kind in KINDS:
            files = tuple(ShardFile(*file) for file in report["files"][kind])
            assert sum(file.rows for file in files) == len(kept[kind])
            if files:
                found = to_numpy(Shards(str(folder), {kind: files}, WIDTH, sparse).open()[kind])
                assert np.array_equal(found, np.array(kept[kind], dtype=np.float32))


@given(
    rows=tables(), sparse=st.booleans(), per_batch=st.integers(1, 12), doubled=st.booleans(), start=st.integers(0, 3)
)
@settings(max_examples=300, deadline=None)
def test_rows_that_are_counted_stand_for_the_same_rows(
    rows: list[dict[str, Any]], sparse: bool, per_batch: int, doubled: bool, start: int
) -> None:
    if not sparse:
        rows = [row for row in rows if is_sound(row["features"])]
    table = in_arrow(rows * 2 if doubled else rows, sparse).drop_columns(["copies", "hash"])
    batches = table.combine_chunks().slice(start).to_batches(max_chunksize=per_batch)
    for batch, counted in zip(batches, map(one_counted, batches), strict=True):
        wanted = Counter(map(repr, batch.to_pylist()))
        found = counted.drop_columns(["copies"])
        assert found.schema == batch.schema
        assert dict(zip(map(repr, found.to_pylist()), counted["copies"].to_pylist(), strict=True)) == wanted


def one_counted(batch: pa.RecordBatch) -> pa.RecordBatch:
    (made,) = copies.counted(iter([batch]))
    return made


@st.composite
def classes(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Finite rows of both classes, some of them equal, now and then of validation too."""
    values = draw(choice((0.0, 1.0), (-1.0, 0.0, 0.3, 1.0), SPECIAL))
    width = draw(st.integers(1, WIDTH))
    kinds = draw(choice((POSITIVES, NEGATIVES), KINDS))
    row = st.lists(st.sampled_from(values), min_size=width, max_size=width)
    return {kind: np.array(draw(st.lists(row, min_size=1, max_size=8)), dtype=np.float32) for kind in kinds}


def fit(estimator: BSPAUCClassifier, rows: dict[str, Rows], sparse: bool) -> Scorer:
    """What ``BSPAUCClassifier._fit`` does with rows that are staged."""
    check_together(estimator)
    counts = {kind: len(rows[kind]) if kind in rows else 0 for kind in KINDS}
    width = rows[POSITIVES].num_features
    staged = StagedData(Shards("", {}, width, sparse), counts, (0.0, 1.0), 1.0, "")
    folds, tau = plan.folds(estimator, rows), plan.decay(estimator, counts, sparse, width)
    spec = plan.network(estimator, width, lambda: rows, None, folds, counts, sparse)
    with one_thread():
        workers = make_worker(rows, spec, plan.settings(estimator, tau))
        outcome = estimator._run(workers, spec, tau, None, lambda _: None)
        return estimator._finish(staged, spec, outcome, {}).scorer


def rows_of(positives: list[float], negatives: list[float]) -> dict[str, np.ndarray]:
    both = {POSITIVES: positives, NEGATIVES: negatives}
    return {kind: np.array(values, dtype=np.float32)[:, None] for kind, values in both.items()}


# What it found.
_BASE = {"rounds": 3, "stepsPerRound": 1, "batchSize": 4, "verbose": False}
_LINEAR = {**_BASE, "paceSchedule": "linear"}
_GROWING = {**_BASE, "paceSchedule": "geometric", "lambdaGrowth": 1e30, "lambdaMax": 1e30}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(params=PARAMS, data=classes(), sparse=st.booleans())
@example(params={**_LINEAR, "lambdaMax": 1e-300, "mu": 10.0}, data=rows_of([-1, 0], [-1]), sparse=False)
@example(params={**_GROWING, "rounds": 20}, data=rows_of([1], [1]), sparse=True)
@example(params={**_BASE, "paceEnd": 1e-6}, data=rows_of([0], [0]), sparse=False)
@example(params={**_BASE, "pretrainSteps": 3}, data=rows_of([1e30, 1], [0, 1]), sparse=False)
@example(params={**_BASE, "pretrainSteps": 3}, data=rows_of([1e30, 1], [0, 1]), sparse=True)
@example(params={**_BASE, "network": "table", "handleInvalid": "keep"}, data=rows_of([3e38, 1], [-3e38]), sparse=False)
@example(params={**_BASE, "network": "table", "handleInvalid": "keep", "folds": 2}, data=rows_of([1], [1]), sparse=True)
@settings(max_examples=60, deadline=None)
def test_a_fit_gives_finite_scores_or_one_of_our_errors(
    params: dict[str, Any], data: dict[str, np.ndarray], sparse: bool
) -> None:
    if VALIDATION_POSITIVES in data and VALIDATION_NEGATIVES in data:
        params = {**params, "validationIndicatorCol": "validation", "patience": 1}
    if params.get("handleInvalid") == "keep":
        data = {kind: np.where(np.arange(x.size).reshape(x.shape) % 5 == 4, np.nan, x) for kind, x in data.items()}
    try:
        scorer = fit(BSPAUCClassifier(**params), {k: as_rows(x, sparse) for k, x in data.items()}, sparse)
    except MalformedError:
        # It is about a file, and there is none.
        raise
    except BSPAUCError:
        return
    again = Scorer.from_blobs(scorer.to_blobs())
    for kind, matrix in data.items():
        scores, positive = again.score_numpy(matrix), np.full(len(matrix), kind.endswith(POSITIVES))
        judged = (scores, again.curves.losses(scores, positive), again.label_noise.suspicion(scores, positive))
        assert all(np.isfinite(one).all() for one in judged)
        probability = again.label_noise.probability(scores)
        assert ((probability >= 0) & (probability <= 1)).all()
    assert math.isfinite(again.threshold)
