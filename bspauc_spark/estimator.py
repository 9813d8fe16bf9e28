"""``BSPAUCClassifier``: the Spark ML estimator. ``_fit`` tells the story; each call opens into one module."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.param import Param
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame, SparkSession

from bspauc_spark import algorithm
from bspauc_spark.cluster import preflight
from bspauc_spark.cluster.launch import Launch
from bspauc_spark.cluster.preflight import Placement
from bspauc_spark.cluster.protocol import Workers
from bspauc_spark.cluster.rank import Task
from bspauc_spark.cluster.remote import DistributedWorkers
from bspauc_spark.errors import BSPAUCError, shown
from bspauc_spark.loop.checkpoint import Checkpoints
from bspauc_spark.loop.monitor import Outcome
from bspauc_spark.model import BSPAUCModel
from bspauc_spark.results import tracking
from bspauc_spark.results.diagnostics import Diagnostics
from bspauc_spark.results.headline import OUT_OF_FOLD, TRAINING
from bspauc_spark.results.history import Round
from bspauc_spark.results.progress import ProgressBar
from bspauc_spark.results.summary import TrainingSummary
from bspauc_spark.rows.columns import check_frame, check_outputs
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.staging import StagedData, stage
from bspauc_spark.rows.storage import folder
from bspauc_spark.scorer import LossCurves, Scorer, judged
from bspauc_spark.selection import Selection
from bspauc_spark.selection.solution import solve_again
from bspauc_spark.spark import plan
from bspauc_spark.spark.accessors import Accessors
from bspauc_spark.spark.params import learning_params, optional
from bspauc_spark.spark.persistence import StageReader
from bspauc_spark.spark.session import shares_disks
from bspauc_spark.spark.together import check_together
from bspauc_spark.theta.device import choose_device
from bspauc_spark.theta.evidence import pays, told
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.scoring import one_thread
from bspauc_spark.theta.table_worker import told_decay
from bspauc_spark.theta.workers import make_worker

logger = logging.getLogger("bspauc_spark")


class BSPAUCClassifier(
    Estimator[BSPAUCModel], Accessors, DefaultParamsReadable["BSPAUCClassifier"], DefaultParamsWritable
):
    """Balanced self-paced AUC maximisation.

    Learns to rank rows of a rare class above the others although some labels are wrong: each round it keeps
    the rows that are easy at the current pace, in balanced proportions of both classes, and trains on pairs of
    them.

    Examples
    --------
    >>> model = BSPAUCClassifier(labelCol="is_fraud").fit(training)  # doctest: +SKIP
    >>> ranked = model.transform(test)                               # doctest: +SKIP
    >>> model.audit(training).orderBy("suspicion", ascending=False)  # doctest: +SKIP
    """

    _parent_run: str | None = None
    # Who saves the model may want to keep the checkpoints until it is saved.
    _after_fit: Callable[[Checkpoints], None] = staticmethod(Checkpoints.remove)

    def copy(self, extra: Mapping[Param[Any], Any] | None = None) -> BSPAUCClassifier:
        """A copy with ``extra`` Params; it remembers the active MLflow run.

        CrossValidator copies in the caller's thread and fits in others, where MLflow knows of no active run.
        """
        copied = super().copy(dict(extra or {}))
        copied._parent_run = tracking.active_run() or self._parent_run
        return copied

    @classmethod
    def read(cls) -> StageReader:  # type: ignore[override]
        """A reader: ``BSPAUCClassifier.read().load(path)``."""
        return StageReader(cls)

    def _fit(self, dataset: DataFrame) -> BSPAUCModel:
        check_frame(dataset)
        spark = dataset.sparkSession
        check_together(self)
        # As Spark ML does it: a model that could not transform these rows is not worth a fit.
        check_outputs(dataset, self._outputs())
        placement = self._place(spark)
        about: dict[str, Any] = {"started": datetime.datetime.now().astimezone().isoformat(" ", "minutes")}
        start = time.perf_counter()
        staging_dir = optional(self, "stagingDir")
        here = staging_dir is None and not shares_disks(spark)
        folds = plan.wanted_folds(self), plan.fold_seed(self)
        staged = stage(dataset, plan.columns(self), staging_dir, here, *folds, gaps=plan.gaps(self))
        try:
            preflight.check_rows(staged.counts[POSITIVES] + staged.counts[NEGATIVES], placement)
            checkpoints = self._checkpoints(staged)
            shards = staged.shards
            if staged.folds < folds[0]:
                logger.warning("%s", plan.too_few_for_folds(folds[0], staged.folds))
            median = partial(plan.staged_median, shards)
            tau = plan.decay(self, staged.counts, shards.sparse, shards.num_features)
            form = (staged.counts, shards.sparse)
            spec = plan.network(self, shards.num_features, shards.open, median, staged.folds, *form)
            preflight.check_memory(spec, shards.sparse, self.getBatchSize())
            about |= self._about(placement, staged)
            found = {"network": spec.kind, "folds": spec.members, "rounds": plan.wanted_rounds(self, spec)}
            about["params"] |= {**found, "regParam": told_decay(tau, spec.members)}
            with tracking.run(self.getTracking(), self._parent_run, about) as run:
                with self._workers(spark, placement, staged, spec, tau) as workers:
                    try:
                        outcome = self._run(workers, spec, tau, checkpoints, run.log_round)
                    except BSPAUCError as error:
                        about["seconds"] = time.perf_counter() - start
                        if error.outcome is not None and error.outcome.scores is not None:
                            # A model that cannot be made must not hide why the fit ended.
                            with contextlib.suppress(Exception):
                                error.model = self._finish(staged, spec, error.outcome, about)
                        raise
                    about["seconds"] = time.perf_counter() - start
                    model = self._finish(staged, spec, outcome, about)
                run.log_summary(model.summary)
        finally:
            staged.remove()
        if checkpoints is not None:
            self._after_fit(checkpoints)
        return model

    def _about(self, placement: Placement, staged: StagedData) -> dict[str, Any]:
        """What is trained on what, for the report and for MLflow."""
        params = {param.name: self.getOrDefault(param) for param in self.params if self.isDefined(param)}
        params |= {name: shown(params[name]) for name in ("stagingDir", "checkpointDir") if name in params}
        return {
            "params": params,
            "data": {**staged.identity(), "sparse": staged.shards.sparse},
            "workers": placement.processes,
            "versions": tracking.versions(),
        }

    def _place(self, spark: SparkSession) -> Placement:
        """Where the θ side runs; every error that can be known before the rows are staged."""
        placement = preflight.place(spark, self.getNumProcesses(), optional(self, "localMode"), self.getUseGpu())
        if placement.processes == 0:
            choose_device(self.getUseGpu())
        preflight.check_staging(spark, optional(self, "stagingDir"), placement)
        if self.isDefined("checkpointDir"):
            preflight.check_checkpoint_dir(self.getCheckpointDir())
        return placement

    def _checkpoints(self, staged: StagedData) -> Checkpoints | None:
        if not self.isDefined("checkpointDir"):
            return None
        # Through JSON, as it will be read: tuples are lists there.
        identity = json.loads(json.dumps({**learning_params(self), "data": staged.identity()}))
        return Checkpoints(folder(self.getCheckpointDir()), identity)

    @contextlib.contextmanager
    def _workers(
        self,
        spark: SparkSession,
        placement: Placement,
        staged: StagedData,
        spec: NetworkSpec,
        tau: float,
    ) -> Iterator[Workers]:
        """The θ side where it was placed, and its end."""
        task = Task(
            shards=staged.shards,
            spec=spec,
            settings=dataclasses.replace(plan.settings(self, tau), threads=placement.threads),
            use_gpu=self.getUseGpu(),
        )
        if placement.processes:

            def launch() -> Launch:
                preflight.wait_for_slots(spark, placement, task.use_gpu)
                return Launch(spark, task, placement.processes, placement.local)

            with DistributedWorkers(launch, self.getMaxRestarts()) as workers:
                yield workers
        else:
            device = str(choose_device(task.use_gpu))
            settings = dataclasses.replace(task.settings, device=device, on_gpu=task.use_gpu)
            worker = make_worker(task.shards.open(), task.spec, settings)
            with one_thread(), contextlib.closing(worker):
                yield worker

    def _run(
        self,
        workers: Workers,
        spec: NetworkSpec,
        tau: float,
        checkpoints: Checkpoints | None,
        log: Callable[[Round], None],
    ) -> Outcome:
        """Algorithm 1 under a progress bar."""
        rounds, rows = plan.wanted_rounds(self, spec), OUT_OF_FOLD if spec.members else TRAINING
        with contextlib.closing(ProgressBar(rounds, shown=self.getVerbose(), rows=rows)) as bar:

            def show(row: Round) -> None:
                bar.show(row)
                log(row)

            return algorithm.fit(
                workers,
                plan.pace(self, spec),
                rounds,
                # Decoupled decay shrinks θ beside the descent on L; it is no term of L. Nor is what pulls a table to 0.
                tau=0.0 if self.getOptimizer() == "adamw" or spec.kind == "table" else tau,
                ensure_descent=self.getEnsureDescent(),
                patience=self.getPatience() if optional(self, "validationIndicatorCol") else 0,
                on_round=show,
                checkpoints=checkpoints,
            )

    def _finish(self, staged: StagedData, spec: NetworkSpec, outcome: Outcome, about: Mapping[str, Any]) -> BSPAUCModel:
        """The model of the best round: its θ, and what its scores say about labels."""
        assert outcome.scores is not None
        assert outcome.selection is not None
        pos, neg = outcome.scores.positive, outcome.scores.negative
        # The audit's weights: those of the last round at the final scores.
        selection, used = solve_again(outcome.selection, pos, neg), False
        if spec.kind == "table" and spec.members and self.getSelfPaced():
            verdict = outcome.weights["verdict"].astype(float)
            used = pays(verdict)
            about = {**about, "verdict": told(verdict, used)}
            selection = selection if used else Selection.everything(pos, neg)
        noise, threshold, of_validation = judged(outcome.scores, used)
        # Nobody knows how many labels are wrong among rows that the network may have learned by heart.
        honest = of_validation or (noise if spec.members else None)
        summary = TrainingSummary(
            rounds=tuple(outcome.history),
            best_round=outcome.best_round,
            counts=dict(staged.counts),
            diagnostics=Diagnostics.of(
                outcome.scores, selection, noise, spec.members, honest.wrong_shares if honest else None
            ),
            about=about,
        )
        scorer = Scorer(
            spec=spec,
            sparse=staged.shards.sparse,
            weights=outcome.weights,
            threshold=threshold,
            negative_label=staged.negative_label,
            label_noise=noise,
            selection=selection,
            curves=LossCurves.of(pos, neg, selection),
            summary=summary.to_dict(),
            positive_label=staged.positive_label,
        )
        model = BSPAUCModel(scorer)
        model._resetUid(self.uid)
        return self._copyValues(model)
