"""``SelfPacedClassifier``: self-paced selection around any binary classifier of Spark ML."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark import StorageLevel
from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from bspauc_spark.around import keys
from bspauc_spark.around.frames import FOLD, KEY, FrameSide, Rows
from bspauc_spark.around.judged import Judged
from bspauc_spark.around.learners import Learner, check_classifier, output_of, ready
from bspauc_spark.around.model import SelfPacedModel
from bspauc_spark.around.params import SelfPacedParams
from bspauc_spark.around.rounds import Fit, Outcome, self_paced
from bspauc_spark.around.saving import EstimatorReader, EstimatorWriter
from bspauc_spark.around.summary import SelfPacedSummary
from bspauc_spark.errors import InvalidDataError, InvalidParamError
from bspauc_spark.rows.columns import check_features, check_frame, check_labels, check_outputs, quoted, width_of
from bspauc_spark.rows.folds import FEWEST_ROWS
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.selection.pace import AutomaticPace
from bspauc_spark.spark.session import is_connect

_COLUMNS = ("featuresCol", "labelCol", "predictionCol", "rawPredictionCol", "probabilityCol")
_MOST_VALUES = 1000


class SelfPacedClassifier(Estimator[SelfPacedModel], SelfPacedParams, MLReadable["SelfPacedClassifier"], MLWritable):
    """Self-paced selection around any binary classifier of Spark ML that writes rawPrediction or probability.

    Each fold is scored by a model that did not learn from it. From these scores the wrong labels of both classes are
    estimated and the rows to believe are selected, in closed form; judges, whose training labels were chosen without
    help of the rows that they judge, tell whether it pays to leave the others out. Where it does, the classifier is
    fitted on the rows that are kept; where it does not, on all of them.

    Several ``classifiers`` are blended, by the ranks of their scores. Without any, there are a random forest, a
    ``BSPAUCClassifier``, and XGBoost where it is installed.

    Examples
    --------
    >>> from xgboost.spark import SparkXGBClassifier                          # doctest: +SKIP
    >>> stage = SelfPacedClassifier(classifier=SparkXGBClassifier())          # doctest: +SKIP
    >>> model = stage.fit(training)                                           # doctest: +SKIP
    >>> ranked, why = model.transform(test), model.summary.verdict            # doctest: +SKIP
    >>> model.audit(training).orderBy("suspicion", ascending=False)           # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        classifier: Estimator[Any] | None = None,
        classifiers: Sequence[Estimator[Any]] | None = None,
        featuresCol: str | None = None,
        labelCol: str | None = None,
        weightCol: str | None = None,
        predictionCol: str | None = None,
        rawPredictionCol: str | None = None,
        probabilityCol: str | None = None,
        foldCol: str | None = None,
        folds: int | None = None,
        ensemble: bool | None = None,
        keepFoldModels: bool | None = None,
        parallelism: int | None = None,
        exactRows: int | None = None,
        threshold: float | None = None,
        seed: int | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self.setParams(**given)

    def setParams(self, **params: Any) -> SelfPacedClassifier:
        """Set several Params by name; those that are None are left as they are."""
        return self._set(**{name: value for name, value in params.items() if value is not None})

    def _set(self, **values: Any) -> SelfPacedClassifier:
        if "classifier" in values:
            check_classifier(values["classifier"])
        if "classifiers" in values:
            several = values["classifiers"]
            if not isinstance(several, list | tuple) or not several:
                raise InvalidParamError(
                    f"classifiers must be a list of one Spark ML classifier or more; got {several!r}. Leave it out for "
                    "a ready choice."
                )
            for one in several:
                check_classifier(one)
            values = {**values, "classifiers": list(several)}
        return super()._set(**values)

    def setClassifier(self, value: Estimator[Any]) -> SelfPacedClassifier:
        """Set ``classifier``."""
        return self._set(classifier=value)

    def setClassifiers(self, value: Sequence[Estimator[Any]]) -> SelfPacedClassifier:
        """Set ``classifiers``."""
        return self._set(classifiers=value)

    def setFeaturesCol(self, value: str) -> SelfPacedClassifier:
        """Set ``featuresCol``."""
        return self._set(featuresCol=value)

    def setLabelCol(self, value: str) -> SelfPacedClassifier:
        """Set ``labelCol``."""
        return self._set(labelCol=value)

    def setWeightCol(self, value: str) -> SelfPacedClassifier:
        """Set ``weightCol``."""
        return self._set(weightCol=value)

    def setPredictionCol(self, value: str) -> SelfPacedClassifier:
        """Set ``predictionCol``; empty: not added."""
        return self._set(predictionCol=value)

    def setRawPredictionCol(self, value: str) -> SelfPacedClassifier:
        """Set ``rawPredictionCol``; empty: not added."""
        return self._set(rawPredictionCol=value)

    def setProbabilityCol(self, value: str) -> SelfPacedClassifier:
        """Set ``probabilityCol``; empty: not added."""
        return self._set(probabilityCol=value)

    def setFoldCol(self, value: str) -> SelfPacedClassifier:
        """Set ``foldCol``."""
        return self._set(foldCol=value)

    def setFolds(self, value: int) -> SelfPacedClassifier:
        """Set ``folds``."""
        return self._set(folds=value)

    def setEnsemble(self, value: bool) -> SelfPacedClassifier:
        """Set ``ensemble``."""
        return self._set(ensemble=value)

    def setKeepFoldModels(self, value: bool) -> SelfPacedClassifier:
        """Set ``keepFoldModels``."""
        return self._set(keepFoldModels=value)

    def setParallelism(self, value: int) -> SelfPacedClassifier:
        """Set ``parallelism``."""
        return self._set(parallelism=value)

    def setExactRows(self, value: int) -> SelfPacedClassifier:
        """Set ``exactRows``."""
        return self._set(exactRows=value)

    def setSeed(self, value: int) -> SelfPacedClassifier:
        """Set ``seed``."""
        return self._set(seed=value)

    def copy(self, extra: Mapping[Param[Any], Any] | None = None) -> SelfPacedClassifier:
        """A copy with ``extra`` Params, of which those of the classifiers go to them."""
        copied: SelfPacedClassifier = super().copy(dict(extra or {}))
        one, several = copied.getClassifier(), copied.getClassifiers()
        if one is not None:
            copied.setClassifier(one.copy(dict(extra or {})))
        if several is not None:
            copied.setClassifiers([each.copy(dict(extra or {})) for each in several])
        return copied

    def write(self) -> EstimatorWriter:
        """A writer: ``estimator.write().overwrite().save(path)``."""
        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> EstimatorReader:
        """A reader: ``SelfPacedClassifier.read().load(path)``."""
        return EstimatorReader(cls)

    def _fit(self, dataset: DataFrame) -> SelfPacedModel:
        start = time.perf_counter()
        check_frame(dataset)
        columns = self._columns()
        learners = self._learners(columns, is_connect(dataset.sparkSession))
        check_features(dataset, columns["featuresCol"])
        check_labels(dataset, columns["labelCol"])
        check_outputs(dataset, {name: columns[name] for name in _COLUMNS[2:]})
        with self._rows(dataset, columns, learners) as (rows, values, width):
            side = FrameSide(rows, learners, self.getParallelism(), self.getExactRows())
            if not rows.folds:
                model = self._without_folds(side)
            else:
                with self_paced(side, AutomaticPace(None, 1, nu=1.0)) as found:
                    model = self._finish(side, found, values, width)
            model._summary = replace(model.summary, seconds=time.perf_counter() - start)
        model._resetUid(self.uid)
        copied: SelfPacedModel = self._copyValues(model)
        return copied._set(**columns)

    def _columns(self) -> dict[str, str]:
        """The columns of the fit: those that are set here, or else the classifier's."""
        given = [one for one in (self.getClassifier(), *(self.getClassifiers() or [])) if one is not None]
        found = {name: self.getOrDefault(name) for name in _COLUMNS}
        if given:
            found |= {name: output_of(given[0], name) for name in _COLUMNS if not self.isSet(name)}
        return found

    def _learners(self, columns: Mapping[str, str], connect: bool) -> list[Learner]:
        one, several = self.getClassifier(), self.getClassifiers()
        if one is not None and several is not None:
            raise InvalidParamError("classifier and classifiers are both set. Leave one or the other out.")
        given = [one] if one is not None else several
        if given is None:
            given = ready(self.getSeed(), connect)
        own = self.getOrDefault(self.weightCol) if self.isDefined(self.weightCol) else None
        return [Learner(each, columns, own or output_of(each, "weightCol") or None) for each in given]

    @contextlib.contextmanager
    def _rows(
        self, dataset: DataFrame, columns: Mapping[str, str], learners: Sequence[Learner]
    ) -> Iterator[tuple[Rows, list[int], int]]:
        """The rows with their folds, persisted; the values of ``foldCol``; the number of features."""
        label, features = columns["labelCol"], columns["featuresCol"]
        by = self.getFoldCol()
        if by is not None and by not in dataset.columns:
            raise InvalidDataError(f"column {by!r} (foldCol) is not in the DataFrame. Set foldCol, or leave it out.")
        width = width_of(dataset, features)
        read = dict.fromkeys([features, label, *([by] if by else []), *_read(learners, dataset)])
        frame = keys.by_rows(dataset, features).select(*map(quoted, read))
        frame = frame.withColumn(KEY, keys.key_of(frame, features, width, self.getSeed()))
        frame = frame.withColumn(label, quoted(label).cast("double"))
        frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            positives, negatives = keys.check_labels(frame, label)
            positive = quoted(label) == 1.0
            if by is None:
                values: list[int] = []
                tried = [(keys.fold_of(sf.col(KEY), folds), folds) for folds in range(self.getFolds(), 2, -1)]
                counts = keys.counted(frame, positive, tried)
                enough = [one for one, numbers in zip(tried, counts, strict=True) if keys.are_enough(numbers)]
                fold, folds = enough[0] if enough else (sf.lit(0), 0)
            else:
                values = _values(frame, by)
                fold, folds = sf.lit(None), len(values)
                for place, value in enumerate(values):
                    fold = sf.when(quoted(by) == value, place).otherwise(fold)
                if not keys.are_enough(keys.counted(frame, positive, [(fold, folds)])[0]):
                    raise InvalidDataError(
                        f"a fold of column {by!r} (foldCol) has fewer than {FEWEST_ROWS} rows of a class. Make folds "
                        "larger, or leave foldCol out."
                    )
            held = {POSITIVES: positives, NEGATIVES: negatives}
            yield Rows(frame.withColumn(FOLD, fold), label, held, folds), values, width
        finally:
            frame.unpersist()

    def _without_folds(self, side: FrameSide) -> SelfPacedModel:
        """A classifier on all rows, where these are too few for honest scores."""
        model = side.fitted(Fit(frozenset()), 0)
        why = (
            f"All rows are kept: they are too few for {keys.LEAST_FOLDS} folds with {FEWEST_ROWS} rows of each class, "
            "so no score is honest."
        )
        shares = {name: float(place == 0) for place, name in enumerate(_names(side))}
        return SelfPacedModel([model], summary=_summary(side, (), False, why, None, shares))

    def _finish(self, side: FrameSide, found: Outcome, values: Sequence[int], width: int) -> SelfPacedModel:
        """The final models, and what is kept of the fit."""
        shares = found.scale.shares
        used = [number for number, share in enumerate(shares) if share > 0]
        of_folds: list[list[Model]] = []
        if self.getKeepFoldModels() or self.getEnsemble():
            of_folds = [[side.models(found.models[k])[number] for number in used] for k in range(side.folds)]
        models = [] if self.getEnsemble() else [side.fitted(found.final, number) for number in used]
        evidence = None if found.verdict is None else tuple(found.verdict.tolist())
        by_name = dict(zip(_names(side), shares.tolist(), strict=True))
        summary = _summary(side, tuple(found.rounds), found.pays, found.why, evidence, by_name)
        judged = Judged.of(found)
        if models and (found.pays or len(used) > 1):
            of_judges = [[side.models(found.models[k])[number] for number in used] for k in range(side.folds)]
            judged = replace(judged, scale=side.aligned(found.scale, models, of_judges))
        return SelfPacedModel(models, of_folds, judged, summary, self.getEnsemble(), values, width, self.getSeed())


def _summary(
    side: FrameSide, rounds: Any, uses: bool, why: str, evidence: Any, shares: Mapping[str, float]
) -> SelfPacedSummary:
    return SelfPacedSummary(rounds, uses, why, evidence, shares, dict(side.rows.counts), side.folds, side.fits, 0.0)


def _names(side: FrameSide) -> list[str]:
    """A name of its own for each learner."""
    found: list[str] = []
    for learner in side.learners:
        same = sum(name.split(" ")[0] == learner.name for name in found)
        found.append(f"{learner.name} {same + 1}" if same else learner.name)
    return found


def _read(learners: Sequence[Learner], dataset: DataFrame) -> list[str]:
    """The columns of the DataFrame that Params of the classifiers name, such as weights."""
    found: list[str] = []
    for learner in learners:
        found += [learner.weight] if learner.weight else []
        for param in learner.classifier.params:
            if param.name.endswith(("Col", "Cols", "_cols")) and learner.classifier.isDefined(param):
                value = learner.classifier.getOrDefault(param)
                found += [value] if isinstance(value, str) else list(value or [])
    return [name for name in dict.fromkeys(found) if isinstance(name, str) and name in dataset.columns]


def _values(frame: DataFrame, by: str) -> list[int]:
    """The values of ``foldCol``, in their order."""
    found = [row[0] for row in frame.select(quoted(by)).distinct().limit(_MOST_VALUES).collect()]
    bad = [value for value in found if not isinstance(value, int) or isinstance(value, bool)]
    if bad:
        raise InvalidDataError(
            f"column {by!r} (foldCol) holds {bad[0]!r}; whole numbers are needed in all rows. Cast it to int, and fill "
            "what is missing."
        )
    if not keys.LEAST_FOLDS <= len(found) <= keys.MOST_FOLDS:
        many = f"at least {len(found):,}" if len(found) == _MOST_VALUES else f"{len(found):,}"
        raise InvalidDataError(
            f"column {by!r} (foldCol) has {many} different values; {keys.LEAST_FOLDS} to {keys.MOST_FOLDS} are needed. "
            f"For groups of rows take a hash: pmod(hash({by}), {keys.LEAST_FOLDS})."
        )
    return sorted(found)
