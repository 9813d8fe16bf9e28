"""The loop on a Spark DataFrame: rows stay where they are, and what is kept is a column made of label and score."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel, inheritable_thread_target
from pyspark.ml import Model
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.around.learners import Learner
from bspauc_spark.around.rounds import Fit, Kept, Sample, View
from bspauc_spark.around.scale import Scale
from bspauc_spark.arrays import Float32Array
from bspauc_spark.errors import LearnerError
from bspauc_spark.rows.columns import quoted
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.spark.compat import arrow_udf
from bspauc_spark.statistics import OrderedScores
from bspauc_spark.statistics.binned import Bins, Contents, Histogram, bins_of, ordered

# Rows of each class that evidence and scales are made of.
MOST_SAMPLED = 100_000
# Columns of ours stand beside the user's for a while.
FOLD, KEY, WEIGHT = "__bspauc_fold", "__bspauc_key", "__bspauc_weight"
_SCORE, _RAW = "__bspauc_score", "__bspauc_raw"
_PLACES = 1 << 20
_SCORED = st.StructType().add("score", "float").add("bin", "integer")


@dataclass(frozen=True)
class Rows:
    """The rows of a fit: with folds, keys and labels of 0 and 1; persisted."""

    frame: DataFrame
    label: str
    counts: Mapping[str, int]
    folds: int

    @property
    def positive(self) -> Column:
        """Whether a row's label is positive."""
        return quoted(self.label) == 1.0

    @property
    def columns(self) -> list[str]:
        """What a row is made of."""
        return self.frame.columns


class FrameSide:
    """Rows of a DataFrame, Spark ML classifiers, and their models. What it persists ends with its context."""

    def __init__(self, rows: Rows, learners: Sequence[Learner], parallelism: int, exact_rows: int) -> None:
        self.rows, self.learners = rows, learners
        self.exact_rows, self._parallelism = exact_rows, parallelism
        self._models: dict[Fit, list[Model]] = {}
        self.fits = 0

    @property
    def folds(self) -> int:
        """The number of folds."""
        return self.rows.folds

    def models(self, fit: Fit) -> list[Model]:
        """The models of all learners that were fitted as ``fit`` says."""
        return self._models[fit]

    def _fit_all(self, wanted: Sequence[Fit]) -> None:
        missing = [fit for fit in dict.fromkeys(wanted) if fit not in self._models]
        tasks = [(fit, number) for fit in missing for number in range(len(self.learners))]
        made = iter(self._threaded([lambda f=f, n=n: self.fitted(f, n) for f, n in tasks]))  # type: ignore[misc]
        for fit in missing:
            self._models[fit] = [next(made) for _ in self.learners]

    def _threaded(self, tasks: Sequence[Callable[[], Model]]) -> list[Model]:
        """As CrossValidator does it; the first error ends it."""
        if self._parallelism == 1 or len(tasks) < 2:
            return [task() for task in tasks]
        heir = inheritable_thread_target(self.rows.frame.sparkSession)
        with ThreadPool(min(self._parallelism, len(tasks))) as pool:
            return list(pool.imap(lambda task: task(), [heir(task) for task in tasks]))

    def fitted(self, fit: Fit, number: int) -> Model:
        """A new model of one learner; that of all folds has the user's output columns."""
        learner = self.learners[number]
        frame = self.rows.frame if fit.kept is None else self._kept(fit.kept, learner)
        if fit.left_out:
            frame = frame.where(~sf.col(FOLD).isin(sorted(fit.left_out)))
        try:
            model = learner.fit(frame, weighted=fit.kept is not None, outputs=not fit.left_out)
        except Exception as error:
            raise LearnerError(learner.failed(sorted(fit.left_out), self.folds, error)) from error
        self.fits += 1
        return model

    def _kept(self, kept: Kept, learner: Learner) -> DataFrame:
        scored = kept.scored
        assert isinstance(scored, FrameScores)
        frame = scored.with_scores(kept.view, kept.scale)
        weight = _weight(kept, self.rows.positive, sf.col(_SCORE)["score"])
        if learner.weight:
            weight = weight * quoted(learner.weight)
        frame = frame.withColumn(WEIGHT, weight)
        if learner.weighs:
            return frame.where(sf.col(WEIGHT) > 0).drop(_SCORE)
        # A learner without weights gets whole rows. Of rows that tie at a threshold it gets all or none.
        return frame.where(sf.col(WEIGHT) >= _least(kept)).drop(_SCORE)

    def aligned(self, scale: Scale, final: Sequence[Model], of_folds: Sequence[Sequence[Model]]) -> Scale:
        """The scale with that of the final models, from a sample of the rows; both are of the learners with a share."""
        used = np.flatnonzero(scale.shares).tolist()
        frame, names = self.sampled(self.rows.frame), []
        for place, models in enumerate([final, *of_folds]):
            for number, model in zip(used, models, strict=True):
                names.append(f"{_SCORE}_{place}_{number}")
                frame = self.learners[number].with_score(model, frame, names[-1])
        table = frame.select(*names).toArrow()
        found = np.zeros((1 + len(of_folds), len(scale.shares), table.num_rows), dtype=np.float32)
        found[:, used] = np.array([column.to_numpy() for column in table.columns]).reshape(len(found), len(used), -1)
        return scale.aligned(found[0], found[1:])

    def sampled(self, frame: DataFrame) -> DataFrame:
        """All rows of a class with up to 100,000, and an even sample of a larger one."""
        rates = {kind: min(1.0, MOST_SAMPLED / max(self.rows.counts[kind], 1)) for kind in (POSITIVES, NEGATIVES)}
        if min(rates.values()) == 1.0:
            return frame
        # The fold is a remainder of the key, the place is in its upper bits: one says nothing of the other.
        place = sf.pmod(sf.shiftrightunsigned(sf.col(KEY), 20), sf.lit(_PLACES))
        return frame.where(place < sf.when(self.rows.positive, rates[POSITIVES]).otherwise(rates[NEGATIVES]) * _PLACES)

    @contextlib.contextmanager
    def scored(self, views: Mapping[View, Mapping[int, Fit]]) -> Iterator[FrameScores]:
        """Make the fits that were not made yet, and write the scores of all views into columns of a persisted frame."""
        self._fit_all([fit for fits in views.values() for fit in fits.values()])
        parts = [
            self._scored_fold(fold, {view: fits.get(fold) for view, fits in views.items()})
            for fold in range(self.folds)
        ]
        frame = parts[0]
        for part in parts[1:]:
            frame = frame.unionByName(part)
        frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            scores = FrameScores(self, frame, tuple(views))
            scores.check()
            yield scores
        finally:
            frame.unpersist()

    def _scored_fold(self, fold: int, fits: Mapping[View, Fit | None]) -> DataFrame:
        frame = self.rows.frame.where(sf.col(FOLD) == fold)
        for place, fit in enumerate(fits.values()):
            raw = [sf.lit(float(fold)).cast("float")]
            for number, model in enumerate(self._models[fit] if fit else []):
                name = f"{_SCORE}_{number}"
                frame = self.learners[number].with_score(model, frame, name)
                raw.append(sf.col(name))
            array = sf.array(*raw) if fit else sf.lit(None).cast("array<float>")
            frame = frame.withColumn(f"{_RAW}_{place}", array)
            frame = frame.select(*map(quoted, self.rows.columns), *(f"{_RAW}_{p}" for p in range(place + 1)))
        return frame


class FrameScores:
    """A persisted frame with a column of scores for each view: a row's fold and its scores by all learners."""

    def __init__(self, side: FrameSide, frame: DataFrame, views: Sequence[View]) -> None:
        self._side, self.frame, self._views = side, frame, views
        self._sample: Sample | None = None

    def _raw(self, view: View) -> str:
        return f"{_RAW}_{self._views.index(view)}"

    def check(self) -> None:
        """Refuse scores that are NaN or infinite; this computes the frame."""
        sizes = len(self._side.learners)
        counts = [
            sf.count_if(_is_bad(sf.col(self._raw(view))[number + 1])) for view in self._views for number in range(sizes)
        ]
        found = self.frame.agg(*counts).first()
        assert found is not None
        for place, bad in enumerate(found):
            if bad:
                name = self._side.learners[place % sizes].name
                raise LearnerError(
                    f"{name} gives {bad:,} rows a score that is NaN or infinite. Look at its Params, and at the "
                    "features of these rows."
                )

    def sample(self) -> Sample:
        """Some rows with their scores: all of a class with up to 100,000, and an even sample of a larger one."""
        if self._sample is None:
            rows = self._side.rows
            raw = (sf.col(self._raw(view)).alias(f"raw{place}") for place, view in enumerate(self._views))
            table = (
                self._side.sampled(self.frame)
                .select(rows.positive.alias("positive"), sf.col(FOLD).alias("fold"), *raw)
                .toArrow()
            )
            self._sample = Sample(
                table["positive"].to_numpy().astype(bool),
                table["fold"].to_numpy().astype(np.int64),
                {view: _matrix(table[f"raw{p}"], len(self._side.learners)) for p, view in enumerate(self._views)},
            )
        return self._sample

    def with_scores(self, view: View, scale: Scale) -> DataFrame:
        """The rows of the folds that the scale has, with their scores on it and the bins of these."""
        column = sf.col(self._raw(view))
        frame = self.frame.where(sf.col(FOLD).isin(list(scale.folds)))
        return frame.withColumn(_SCORE, _scorer(scale)(column)).drop(*(f"{_RAW}_{p}" for p in range(len(self._views))))

    def classes(self, view: View, scale: Scale) -> tuple[OrderedScores, OrderedScores]:
        """The scores of both classes, sorted; those of a class of more than ``exactRows`` in bins."""
        counts, limit = self._side.rows.counts, self._side.exact_rows
        if max(counts.values()) <= MOST_SAMPLED and max(counts.values()) <= limit:
            # All of them are in the sample.
            sample = self.sample()
            inside = np.isin(sample.fold, scale.folds)
            scores = scale.scores(sample.raw[view], sample.fold)
            return ordered(scores[inside & sample.positive]), ordered(scores[inside & ~sample.positive])
        frame, positive = self.with_scores(view, scale), self._side.rows.positive
        return (
            self._class(frame.where(positive), counts[POSITIVES] <= limit),
            self._class(frame.where(~positive), counts[NEGATIVES] <= limit),
        )

    def _class(self, frame: DataFrame, exact: bool) -> OrderedScores:
        some = frame.select(sf.col(_SCORE)["score"].alias("score"), sf.col(_SCORE)["bin"].alias("bin"))
        if exact:
            return ordered(some.select("score").toArrow()["score"].to_numpy().astype(np.float32), copy=False)
        binned = some.groupBy("bin").agg(
            sf.count("*").alias("count"), sf.sum(sf.col("score").cast("double")).alias("sum")
        )
        table = binned.orderBy("bin").toArrow()
        sums = table["sum"].to_numpy().astype(np.float64)

        def fetch(bins: Bins) -> Contents:
            inside = some.where(sf.col("bin").isin(bins.tolist())).groupBy("score").count().orderBy("score").toArrow()
            return Contents(inside["score"].to_numpy().astype(np.float32), inside["count"].to_numpy().astype(np.int64))

        histogram = Histogram(
            table["bin"].to_numpy().astype(np.int32), table["count"].to_numpy().astype(np.int64), sums
        )
        return ordered(histogram, fetch)


def _is_bad(score: Column) -> Column:
    return sf.isnan(score) | (sf.abs(score) == float("inf"))


def _matrix(column: pa.ChunkedArray, learners: int) -> Float32Array:
    """Learners × rows of the scores in lists that begin with the fold; NaN where there is no list."""
    lists = column.combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], lists.type)
    present = lists.is_valid().to_numpy(zero_copy_only=False)
    found = np.full((learners, len(lists)), np.nan, dtype=np.float32)
    values = lists.flatten().to_numpy(zero_copy_only=False).reshape(-1, learners + 1)
    found[:, present] = values[:, 1:].T
    return found


def _scorer(scale: Scale) -> Callable[[Column], Column]:
    """Scores on a scale, from a column of lists: a row's fold and its scores."""
    learners = scale.knots.shape[0]

    def score(raw: pa.Array) -> pa.Array:
        matrix = raw.flatten().to_numpy(zero_copy_only=False).reshape(-1, learners + 1)
        scores = scale.scores(matrix[:, 1:].T.astype(np.float32), matrix[:, 0].astype(np.int64))
        return pa.StructArray.from_arrays([pa.array(scores), pa.array(bins_of(scores))], names=_SCORED.names)

    return arrow_udf(score, _SCORED)


def _weight(kept: Kept, positive: Column, score: Column) -> Column:
    """V of positives and u of negatives, as a column."""
    chosen = kept.selection
    v = sf.when(score > chosen.tau_positive, 1.0).when(score == chosen.tau_positive, chosen.phi_positive)
    u = sf.when(score < chosen.tau_negative, 1.0).when(score == chosen.tau_negative, chosen.phi_negative)
    return sf.when(positive, v.otherwise(0.0)).otherwise(u.otherwise(0.0))


def _least(kept: Kept) -> float:
    """The least weight of a row that is kept whole: half of one, unless that would empty a class."""
    chosen = kept.selection
    assert chosen.scores is not None
    pos, neg = chosen.scores
    if pos.at(len(pos) - 1) > chosen.tau_positive and neg.at(0) < chosen.tau_negative:
        return 0.5
    return min(0.5, *(phi for phi in (chosen.phi_positive, chosen.phi_negative) if phi > 0))
