"""Fits as MLflow runs, against real stores and a real server."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
import re
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import mlflow
import numpy
import pyspark
import pytest
import torch
from matplotlib.figure import Figure
from mlflow.entities import Run
from mlflow.tracking import fluent
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame

import bspauc_spark
from bspauc_spark import BSPAUCClassifier
from bspauc_spark.errors import BSPAUCWarning, DivergedError
from bspauc_spark.results import plots, tracking
from bspauc_spark.results.history import Round
from tests.helpers.fits import FAST
from tests.helpers.processes import wait_for
from tests.helpers.servers import Server, mlflow_server

ARTIFACTS = ["history.json", "report.html", "rounds.png", "scores.png"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as running:
        yield running


@pytest.fixture(autouse=True)
def own_tracking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    before = mlflow.get_tracking_uri()
    yield
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


@pytest.mark.parametrize("imported", [True, False])
def test_versions_are_known_where_modules_belong_to_no_distribution_of_their_name(
    monkeypatch: pytest.MonkeyPatch, imported: bool
) -> None:
    """Databricks' ML runtimes have mlflow-skinny, a pyspark that nobody installed, and this package as a file."""
    find = importlib.metadata.distribution

    def distribution(name: str) -> importlib.metadata.Distribution:
        if name in ("mlflow", "pyspark", "bspauc_spark", "torch"):
            raise importlib.metadata.PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    if not imported:
        monkeypatch.delitem(sys.modules, "mlflow")
    modules = {one.__name__: one.__version__ for one in (bspauc_spark, mlflow, numpy, pyspark, torch)}
    assert tracking.versions() == {**modules, "python": platform.python_version()}


def _use(uri: str, experiment: str) -> str:
    mlflow.set_tracking_uri(uri)
    return str(mlflow.set_experiment(experiment).experiment_id)


def _runs(experiment: str) -> list[Run]:
    return list(mlflow.MlflowClient().search_runs([experiment], order_by=["attributes.start_time ASC"]))


def _parent(run: Run) -> str | None:
    return run.data.tags.get("mlflow.parentRunId")


def test_a_fit_in_an_active_run_logs_params_rounds_tags_and_artifacts(server: Server, moons: DataFrame) -> None:
    experiment = _use(server.url, "active")
    with mlflow.start_run() as active:
        model = BSPAUCClassifier(validationIndicatorCol="validation", **FAST).fit(moons)
    (run,) = _runs(experiment)
    assert run.info.run_id == active.info.run_id
    assert run.info.status == "FINISHED"
    plain = BSPAUCClassifier(**FAST)
    defined = {param.name for param in plain.params if plain.isDefined(param)}
    # What stands for unset ones may depend on the rows, so it is logged too.
    assert set(run.data.params) == defined | {"validationIndicatorCol", "regParam", "folds"}
    rare = min(model.summary.counts[kind] for kind in ("positives", "negatives"))
    assert float(run.data.params["regParam"]) == pytest.approx(min(3000 / rare, 5.0))
    assert run.data.params["stepsPerRound"] == "15"
    client = mlflow.MlflowClient()
    for name in ("lam", "positive_fraction", "apd", "objective_after", "train_auc", "validation_auc", "solve_seconds"):
        logged = client.get_metric_history(run.info.run_id, name)
        assert [metric.step for metric in logged] == [1, 2, 3]
        assert [metric.value for metric in logged] == pytest.approx(model.summary.history[name].tolist(), rel=1e-6)
        assert [metric.timestamp for metric in logged] == sorted(metric.timestamp for metric in logged)
    best = model.summary.rounds[model.summary.best_round - 1]
    assert run.data.metrics["auc"] == pytest.approx(best.validation_auc)
    tags = run.data.tags
    assert tags["bspauc.auc"] == "validation AUC, labels as given"
    assert int(tags["bspauc.data.positives"]) == model.summary.counts["positives"]
    assert int(tags["bspauc.data.validation_negatives"]) == model.summary.counts["validation_negatives"]
    assert re.fullmatch(r"[0-9a-f]{16}", tags["bspauc.data.fingerprint"])
    assert tags["bspauc.workers"] == "0"
    assert "bspauc.version.torch" in tags
    assert sorted(file.path for file in client.list_artifacts(run.info.run_id)) == ARTIFACTS
    history = json.loads(mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/history.json"))
    assert [row["round"] for row in history["history"]] == [1, 2, 3]
    assert "<svg" in mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/report.html")


def test_metrics_arrive_while_the_fit_runs(server: Server, moons: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = _use(server.url, "live")
    seen: list[int] = []
    end = tracking.Tracker.end

    def count_then_end(self: tracking.Tracker, status: str) -> None:
        # Before the end delivers whatever is left.
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (seen and seen[-1] == FAST["rounds"]):
            seen.append(sum(len(_history(run)) for run in _runs(experiment)))
        end(self, status)

    monkeypatch.setattr(tracking.Tracker, "end", count_then_end)
    BSPAUCClassifier(tracking="on", **FAST).fit(moons)
    assert seen[-1] == FAST["rounds"]


def _history(run: Run) -> list[int]:
    return [metric.step for metric in mlflow.MlflowClient().get_metric_history(run.info.run_id, "lam")]


def test_nothing_is_logged_when_nobody_asked(server: Server, moons: DataFrame) -> None:
    experiment = _use(server.url, "nobody")
    BSPAUCClassifier(**FAST).fit(moons)
    with mlflow.start_run():
        BSPAUCClassifier(tracking="off", **FAST).fit(moons)
    (run,) = _runs(experiment)
    assert not run.data.params
    assert not run.data.metrics


@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_a_run_of_its_own_in_local_stores(
    store: str, moons: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    alone: list[bool] = []
    save = Figure.savefig

    def seen(self: Figure, *args: object, **kwargs: object) -> None:
        alone.append(plots.drawing.locked())
        save(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", seen)
    experiment = _use(f"sqlite:///{tmp_path}/runs.db" if store == "sqlite" else (tmp_path / "runs").as_uri(), "own")
    BSPAUCClassifier(tracking="on", **FAST).fit(moons)
    (run,) = _runs(experiment)
    assert run.info.status == "FINISHED"
    assert _history(run) == [1, 2, 3]
    assert mlflow.active_run() is None
    # Both pictures, and those of the report.
    assert len(alone) > 2
    assert all(alone)


def test_a_second_fit_in_a_run_and_one_with_its_own_become_children(server: Server, moons: DataFrame) -> None:
    experiment = _use(server.url, "children")
    with mlflow.start_run() as parent:
        BSPAUCClassifier(**FAST).fit(moons)
        BSPAUCClassifier(**{**FAST, "rounds": 2}).fit(moons)
        BSPAUCClassifier(tracking="on", **FAST).fit(moons)
    by_parent = {run.info.run_id: _parent(run) for run in _runs(experiment)}
    assert sorted(by_parent.values(), key=str) == sorted([None, parent.info.run_id, parent.info.run_id], key=str)
    assert by_parent[parent.info.run_id] is None
    assert {run.data.params["rounds"] for run in _runs(experiment)} == {"2", "3"}


@pytest.mark.thorough
def test_a_cross_validation_is_one_parent_with_children(server: Server, moons: DataFrame) -> None:
    experiment = _use(server.url, "cross-validation")
    estimator = BSPAUCClassifier(**FAST)
    grid = ParamGridBuilder().addGrid(estimator.learningRate, [1e-3, 1e-2]).build()
    evaluator = BinaryClassificationEvaluator()
    with mlflow.start_run() as parent:
        CrossValidator(
            estimator=estimator, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, parallelism=2
        ).fit(moons)
    runs = _runs(experiment)
    children = [run for run in runs if _parent(run) == parent.info.run_id]
    assert len(runs) == 5
    assert len(children) == 4
    assert sorted(run.data.params["learningRate"] for run in children) == ["0.001", "0.001", "0.01", "0.01"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    # The fit on all rows by the best setting is the parent's own.
    (own,) = [run for run in runs if run.info.run_id == parent.info.run_id]
    assert own.data.params["learningRate"] in ("0.001", "0.01")


def test_a_fit_that_fails_leaves_a_failed_run(
    server: Server, moons: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = _use(server.url, "failed")
    with pytest.raises(DivergedError):
        BSPAUCClassifier(tracking="on", learningRate=1e6, optimizer="sgd", **FAST).fit(moons)
    (run,) = _runs(experiment)
    assert run.info.status == "FAILED"


@pytest.mark.thorough
def test_a_server_that_dies_during_a_fit_leaves_a_model_a_warning_and_the_figures(
    moons: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", 3.0)
    with mlflow_server(tmp_path) as mortal:
        experiment = _use(mortal.url, "mortal")
        rounds: list[Round] = []
        log_round = tracking.Tracker.log_round

        def kill_after_two(self: tracking.Tracker, row: Round) -> None:
            log_round(self, row)
            rounds.append(row)
            if row.round == 2:
                deadline = time.monotonic() + 30
                while time.monotonic() < deadline and [len(_history(run)) for run in _runs(experiment)] != [2]:
                    time.sleep(0.05)
                mortal.stop()

        monkeypatch.setattr(tracking.Tracker, "log_round", kill_after_two)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = time.monotonic()
            model = BSPAUCClassifier(tracking="on", **{**FAST, "rounds": 5}).fit(moons)
            assert time.monotonic() - start < 120
    ours = [str(one.message) for one in caught if issubclass(one.category, BSPAUCWarning)]
    assert len(ours) == 1
    assert len(model.summary.rounds) == 5
    kept = Path(re.search(r"figures are kept in (.+)\.$", ours[0])[1])  # type: ignore[index]
    assert sorted(file.name for file in kept.iterdir()) == ARTIFACTS
    assert len(json.loads((kept / "history.json").read_text())["history"]) == 5
    _remove(kept)


def test_a_server_that_never_was_warns_and_names_no_secret(moons: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    mlflow.set_tracking_uri("http://user:secret@127.0.0.1:9")
    with pytest.warns(BSPAUCWarning, match="did not take this fit") as caught:
        model = BSPAUCClassifier(tracking="on", **FAST).fit(moons)
    assert len(model.summary.rounds) == 3
    (ours,) = [str(one.message) for one in caught if issubclass(one.category, BSPAUCWarning)]
    assert "secret" not in ours
    _remove(Path(re.search(r"figures are kept in (.+)\.$", ours)[1]))  # type: ignore[index]


def test_a_server_that_never_answers_is_given_up(moons: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mlflow.set_tracking_uri(f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.warns(BSPAUCWarning, match=r"did not take this fit \(no answer for 2 s\)") as caught:
            model = BSPAUCClassifier(tracking="on", **FAST).fit(moons)
        assert time.monotonic() - start < 20
    assert len(model.summary.rounds) == 3
    (ours,) = [str(one.message) for one in caught if issubclass(one.category, BSPAUCWarning)]
    _remove(Path(re.search(r"figures are kept in (.+)\.$", ours)[1]))  # type: ignore[index]


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def test_a_slow_store_does_not_slow_the_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    experiment = _use(f"sqlite:///{tmp_path}/runs.db", "slow")
    log_batch = mlflow.MlflowClient.log_batch

    def slow(self: mlflow.MlflowClient, *args: object, **kwargs: object) -> object:
        time.sleep(0.5)
        return log_batch(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", slow)
    about = {"params": {"rounds": 30}, "data": {}, "versions": {}, "workers": 0}
    with tracking.run("on", None, about) as run:
        start = time.monotonic()
        for number in range(1, 31):
            run.log_round(_round(number))
        assert time.monotonic() - start < 2.0
    (found,) = _runs(experiment)
    assert _history(found) == list(range(1, 31))


@pytest.mark.parametrize("param", ["rounds", "no name for MLflow?"])
def test_a_run_ends_with_its_system_metrics_also_when_not_all_of_it_was_taken(
    param: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    experiment = _use(f"sqlite:///{tmp_path}/runs.db", "system metrics")
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tracking.run("on", None, {"params": {param: 30}, "data": {}, "versions": {}, "workers": 0}) as run:
            run.log_round(_round(1))
    assert sum(issubclass(one.category, BSPAUCWarning) for one in caught) == (param != "rounds")
    wait_for(lambda: not fluent.run_id_to_system_metrics_monitor, 5, "the monitor to be told")
    wait_for(lambda: "SystemMetricsMonitor" not in [t.name for t in threading.enumerate()], 5, "the monitor to end")
    (found,) = _runs(experiment)
    assert found.info.status != "RUNNING"
    assert {"mlflow.user", "mlflow.source.name", "mlflow.source.type"} <= set(found.data.tags)


def _round(number: int) -> Round:
    values = dict.fromkeys(asdict(_ZERO), math.nan)
    return Round(**{**values, "round": number, "updates": 1, "lam": 0.1})


_ZERO = Round(**dict.fromkeys(Round.__dataclass_fields__, 0))  # type: ignore[arg-type]


def test_threads_have_no_active_run_but_copies_remember_it(tmp_path: Path) -> None:
    _use(f"sqlite:///{tmp_path}/runs.db", "threads")
    found: list[str | None] = []
    with mlflow.start_run() as active:
        copied = BSPAUCClassifier().copy()
        thread = threading.Thread(target=lambda: found.extend([tracking.active_run(), copied.copy()._parent_run]))
        thread.start()
        thread.join()
    assert found == [None, active.info.run_id]
