"""The θ side on TorchDistributor workers: what they compute, how their faults are met, what they leave behind."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml.functions import vector_to_array
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.cluster import launch, preflight
from bspauc_spark.cluster.launch import Launch
from bspauc_spark.cluster.mailbox import Message
from bspauc_spark.cluster.rank import Task
from bspauc_spark.cluster.remote import DistributedWorkers
from bspauc_spark.errors import CheckpointError, DivergedError, InvalidDataError, PlacementError, WorkerError
from bspauc_spark.loop.guard import Guard
from bspauc_spark.loop.monitor import Monitor
from bspauc_spark.rows.columns import Columns
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.staging import StagedData, stage
from bspauc_spark.selection import Selection
from bspauc_spark.spark import plan
from bspauc_spark.statistics import OrderedScores
from bspauc_spark.theta.networks import NetworkSpec, ScoringNetwork
from bspauc_spark.theta.scores import Scores
from tests.helpers.fits import FAST, SLOW, same_bits, while_training
from tests.helpers.leaks import LABEL, VALUE, told
from tests.helpers.paces import after_each_selection, before_each_round, interrupt_in_round_2
from tests.helpers.processes import (
    Driver,
    alive,
    assert_clean,
    descendants,
    launchers,
    ranks,
    wait_for,
    wait_until_at_work,
)

pytestmark = pytest.mark.classic


@pytest.fixture(autouse=True)
def nothing_is_left_behind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """After every test here: no process, thread, file or Spark job of ours."""
    # A temporary folder of its own: other sessions on the machine may be at work.
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    wait_for(lambda: not launchers(descendants(os.getpid())), 5, "worker processes to end")
    assert [t.name for t in threading.enumerate() if t.name.startswith("bspauc")] == []
    # torch makes a cache folder there when it is first used.
    assert [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")] == []
    if "spark" in request.fixturenames:
        assert list(request.getfixturevalue("spark").sparkContext.statusTracker().getActiveJobsIds()) == []


def send(number: int, rank: int) -> None:
    """A signal to a rank below this process."""
    os.kill(ranks(descendants(os.getpid()))[rank], number)


@pytest.fixture(scope="module")
def undisturbed(moons: DataFrame) -> BSPAUCModel:
    """Two local processes, nothing in their way."""
    return BSPAUCClassifier(**SLOW, numProcesses=2).fit(moons)


def test_two_local_processes_are_launched_once_and_learn_what_one_process_learns(
    moons: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches: list[str] = []
    begun, selected = list[Scores](), list[Selection]()
    run, begin = TorchDistributor.run, Monitor.begin

    def seen_run(self: TorchDistributor, *args: Any) -> Any:
        launches.append("run")
        return run(self, *args)

    def seen_begin(self: Monitor, workers: Guard) -> tuple[Scores, Selection | None]:
        begun.append(begin(self, workers)[0])
        return begun[-1], None

    def see(t: int, pos: OrderedScores, neg: OrderedScores, selection: Selection) -> None:
        if t == 1:
            selected.append(selection)

    monkeypatch.setattr(TorchDistributor, "run", seen_run)
    monkeypatch.setattr(Monitor, "begin", seen_begin)
    after_each_selection(monkeypatch, see)
    # Without pre-training the first round starts from the same θ: sums over ranks round differently afterwards.
    estimator = BSPAUCClassifier(**{**FAST, "pretrainSteps": 0}, validationIndicatorCol="validation", paceStart=0.5)
    alone = estimator.fit(moons)
    assert launches == []
    two = estimator.copy({estimator.numProcesses: 2}).fit(moons)
    assert launches == ["run"]

    (scores, scores2), (selection, selection2) = begun, selected
    assert np.array_equal(scores.positive.sorted, scores2.positive.sorted)
    assert np.array_equal(scores.negative.sorted, scores2.negative.sorted)
    assert selection == selection2
    assert 0 < selection.positive_fraction < 1
    assert scores.validation is not None
    assert scores2.validation is not None
    assert np.array_equal(scores.validation[0].sorted, scores2.validation[0].sorted)
    for name in ("train_auc", "validation_auc", "objective_before", "objective_after", "block_after"):
        np.testing.assert_allclose(two.summary.history[name], alone.summary.history[name], atol=2e-3)


@pytest.mark.alone
def test_histograms_of_two_workers_give_the_model_that_all_their_scores_give(moons: DataFrame) -> None:
    estimator = BSPAUCClassifier(**FAST, validationIndicatorCol="validation", numProcesses=2)
    exact, binned = (estimator.copy({estimator.exactRows: rows}).fit(moons) for rows in (10**6, 100))
    scorer, wanted = binned.scorer, exact.scorer
    assert all(np.array_equal(scorer.weights[name], array) for name, array in wanted.weights.items())
    assert scorer.threshold == pytest.approx(wanted.threshold, abs=1e-3)
    assert scorer.selection.to_dict(False) == pytest.approx(wanted.selection.to_dict(False))
    assert scorer.label_noise.knots == pytest.approx(wanted.label_noise.knots)


def test_a_killed_worker_costs_the_round_it_died_in_and_changes_no_bit(
    moons: DataFrame, undisturbed: BSPAUCModel, caplog: pytest.LogCaptureFixture
) -> None:
    with while_training(2, partial(send, signal.SIGKILL, 0)):
        model = BSPAUCClassifier(**SLOW, numProcesses=2).fit(moons)
    assert "workers were lost" in caplog.text
    assert same_bits(model, undisturbed)
    assert list(model.summary.history["round"]) == [1, 2, 3]


@pytest.mark.thorough
def test_a_worker_killed_while_it_solves_a_table_changes_no_bit(
    moons: DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    # Each round keeps other rows, so that each has something to solve.
    estimator = BSPAUCClassifier(rounds=3, paceStart=0.5, paceEnd=0.9, verbose=False, numProcesses=2)
    wanted = estimator.fit(moons)
    with while_training(2, partial(send, signal.SIGKILL, 0)):
        model = estimator.fit(moons)
    assert "workers were lost" in caplog.text
    assert same_bits(model, wanted)


@pytest.mark.alone
def test_a_worker_that_hangs_is_given_up_and_the_fit_goes_on_with_the_same_bits(
    moons: DataFrame, undisturbed: BSPAUCModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_HANG_SECONDS", 4.0)
    with while_training(2, partial(send, signal.SIGSTOP, 1)):
        model = BSPAUCClassifier(**SLOW, numProcesses=2).fit(moons)
    assert "no worker got on for 4 s" in caplog.text
    assert same_bits(model, undisturbed)


@pytest.mark.alone
def test_a_worker_that_hangs_before_it_is_ready_is_given_up(
    moons: DataFrame, undisturbed: BSPAUCModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_HANG_SECONDS", 4.0)
    monkeypatch.setattr(launch, "_PATIENCE", 2.0)

    def stop() -> None:
        wait_for(lambda: 1 in ranks(descendants(os.getpid())), 60, "rank 1 to begin")
        send(signal.SIGSTOP, 1)

    thread = threading.Thread(target=stop)
    thread.start()
    model = BSPAUCClassifier(**SLOW, numProcesses=2).fit(moons)
    thread.join()
    assert "still waiting for 2 workers to start" in caplog.text
    # Processes beside the driver need none.
    assert "slots" not in caplog.text
    assert "no worker got on for 4 s" in caplog.text
    assert same_bits(model, undisturbed)


@pytest.mark.alone
def test_a_worker_lost_too_often_is_an_error_with_the_model_of_the_finished_rounds(moons: DataFrame) -> None:
    known = r"maxRestarts allows no further launch. What is known:\n.*(rank 0|failed)"
    with while_training(2, partial(send, signal.SIGKILL, 1)), pytest.raises(WorkerError, match=known) as caught:
        BSPAUCClassifier(**SLOW, numProcesses=2, maxRestarts=0).fit(moons)
    model = caught.value.model
    assert model is not None
    done = len(model.summary.rounds)
    assert 1 <= done < SLOW["rounds"]
    assert same_bits(model, BSPAUCClassifier(**{**SLOW, "rounds": done}, numProcesses=2).fit(moons))
    assert model.transform(moons).where("prediction = 1").count() > 0


class Breaking(NetworkSpec):
    """A network that computes for a while and then raises, on one rank only."""

    def build(self, generator: Any = None, columns: Any = None, inputs: Any = None) -> ScoringNetwork:
        import os

        from bspauc_spark.theta.networks import LayeredNetwork

        class Network(LayeredNetwork):
            calls = 0

            def forward(self, rows: Any) -> Any:
                self.calls += 1
                if self.calls == 30 and os.environ["RANK"] == "1":
                    raise ArithmeticError("the network of a test gave up")
                return super().forward(rows)

        return Network(self, generator, columns, inputs)


class BrokenStep(NetworkSpec):
    """A network that gives one NaN, on one rank only, in a training step of the first round."""

    def build(self, generator: Any = None, columns: Any = None, inputs: Any = None) -> ScoringNetwork:
        import os

        import torch

        from bspauc_spark.theta.networks import LayeredNetwork

        class Network(LayeredNetwork):
            steps = 0

            def forward(self, rows: Any) -> Any:
                self.steps += torch.is_grad_enabled()
                broken = torch.is_grad_enabled() and self.steps == 17 and os.environ["RANK"] == "1"
                return super().forward(rows) * (float("nan") if broken else 1.0)

        return Network(self, generator, columns, inputs)


@pytest.fixture
def by_value() -> Iterator[None]:
    """Workers cannot import this module: what it defines travels with the launch."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_workers_exception_reaches_the_caller_with_its_traceback_at_once_and_nothing_of_a_row(
    moons: DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    by_value: None,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, logger="bspauc_spark")
    marked = moons.select(
        sf.concat(vector_to_array("features"), sf.array(sf.lit(VALUE))).alias("features"),
        sf.when(sf.col("label") == 1.0, 1.0).otherwise(LABEL).alias("label"),
    )
    asked: list[float] = []
    launches: list[Launch] = []
    start, ask = Launch.start, Launch.ask

    def counted(self: Launch) -> None:
        launches.append(self)
        start(self)

    def timed(self: Launch, command: Message) -> Message:
        asked.append(time.monotonic())
        return ask(self, command)

    monkeypatch.setattr(Launch, "start", counted)
    monkeypatch.setattr(Launch, "ask", timed)
    monkeypatch.setattr(plan, "network", lambda params, width, *_: Breaking("mlp", width, (16, 16)))
    with pytest.raises(WorkerError) as caught:
        BSPAUCClassifier(**FAST, numProcesses=2).fit(marked)
    # Far below the patience with workers that hang.
    assert time.monotonic() - asked[-1] < 20
    assert len(launches) == 1
    message = str(caught.value)
    assert "rank 1 on host" in message
    assert "raised ArithmeticError: the network of a test gave up" in message
    assert "in forward" in message
    assert not told("\n".join([message, caplog.text, *capfd.readouterr()]))


def test_a_nan_in_a_step_of_one_worker_costs_the_round_and_no_launch(
    moons: DataFrame, monkeypatch: pytest.MonkeyPatch, by_value: None
) -> None:
    launches: list[Launch] = []
    start = Launch.start

    def counted(self: Launch) -> None:
        launches.append(self)
        start(self)

    monkeypatch.setattr(Launch, "start", counted)
    monkeypatch.setattr(plan, "network", lambda params, width, *_: BrokenStep("mlp", width, (16, 16)))
    model = BSPAUCClassifier(**FAST, numProcesses=2).fit(moons)
    assert list(model.summary.history["learning_rate_factor"]) == [0.5, 1.0, 1.0]
    assert len(launches) == 1
    assert all(np.isfinite(array).all() for array in model.scorer.weights.values())


@pytest.mark.alone
def test_ensure_descent_undoes_blocks_on_workers(moons: DataFrame) -> None:
    params = {**FAST, "learningRate": 30.0, "optimizer": "sgd", "regParam": 0.0, "averaging": 0.0, "pretrainSteps": 0}
    estimator = BSPAUCClassifier(**params, ensureDescent=True, selfPaced=False)
    alone = estimator.fit(moons).summary.history
    two = estimator.copy({estimator.numProcesses: 2}).fit(moons).summary.history
    assert (two["block_after"] <= two["block_before"]).all()
    # At such rates rounding soon tells, so only the first block is compared.
    assert two["learning_rate_factor"][0] == alone["learning_rate_factor"][0] < 1
    assert two["block_after"][0] == pytest.approx(alone["block_after"][0], abs=1e-4)


@pytest.fixture
def staged(moons: DataFrame) -> Iterator[StagedData]:
    data = stage(moons, Columns("features", "label", None, 1.0, True), None)
    yield data
    data.remove()


def task_of(staged: StagedData) -> Task:
    settings = plan.settings(BSPAUCClassifier(**FAST), (0.3,))
    return Task(staged.shards, NetworkSpec("mlp", 6, (16, 16)), settings)


@pytest.mark.alone
def test_a_stale_worker_of_an_earlier_launch_cannot_answer_a_new_one(spark: SparkSession, staged: StagedData) -> None:
    old = Launch(spark, task_of(staged), 2, local=True)
    new = None
    try:
        old.start()
        stale = ranks(descendants(os.getpid()))
        # Hung, not dead: they wake up when the next launch is under way, and try to go on.
        for pid in stale.values():
            os.kill(pid, signal.SIGSTOP)
        old._commands.send(Message("pretrain", {"rate": 1.0}))
        # What the driver does with a hung launch, short of waiting for it.
        old.tell_end()
        new = Launch(spark, task_of(staged), 2, local=True)
        new.start()
        for pid in stale.values():
            os.kill(pid, signal.SIGCONT)
        assert new.folder.location != old.folder.location
        reply = new.ask(Message("pretrain", {"rate": 1.0}))
        assert reply.word == "done"
        assert len(reply.group("scores")[POSITIVES]) == staged.counts[POSITIVES]
        assert len(reply.group("scores")[NEGATIVES]) == staged.counts[NEGATIVES]
        wait_for(lambda: not any(alive(pid) for pid in stale.values()), 10, "stale workers to end")
        assert new.ask(Message("load", {}, {f"state.{k}": v for k, v in reply.group("state").items()})).word == "done"
    finally:
        old.end()
        if new is not None:
            new.end()


@pytest.mark.alone
def test_a_block_that_diverges_is_taken_back_and_workers_end_when_the_folder_of_the_launch_is_gone(
    spark: SparkSession, staged: StagedData
) -> None:
    launch = Launch(spark, task_of(staged), 2, local=True)
    workers = DistributedWorkers(lambda: launch, 0)
    try:
        workers.pretrain()
        before, everything = workers.weights(), Selection.everything(workers.score().positive, workers.score().negative)
        with pytest.raises(DivergedError, match="Lower learningRate"):
            workers.train(everything, rate=1e30)
        assert all(np.array_equal(before[name], w) for name, w in workers.weights().items())
        found = ranks(descendants(os.getpid()))
        assert sorted(found) == [0, 1]
        launch.folder.remove()
        wait_for(lambda: not any(alive(pid) for pid in found.values()), 10, "workers to end")
    finally:
        launch.end()


@pytest.mark.alone
def test_an_interrupted_launch_is_stopped_before_its_workers_are_up(spark: SparkSession, staged: StagedData) -> None:
    launch = Launch(spark, task_of(staged), 2, local=True)
    launch._beat_thread.start()
    launch._run_thread.start()
    wait_for(lambda: launchers(descendants(os.getpid())), 10, "the launch to begin")
    started = time.monotonic()
    launch.end()
    assert time.monotonic() - started < 10


@pytest.mark.alone
def test_storage_that_is_stuck_does_not_hold_up_the_end(
    spark: SparkSession, staged: StagedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(spark, task_of(staged), 2, local=True)
    stuck, released = threading.Event(), threading.Event()

    def write(name: str, data: bytes) -> None:
        stuck.set()
        assert released.wait(60)

    monkeypatch.setattr(launch.folder, "write", write)
    launch._beat_thread.start()
    assert stuck.wait(10)
    started = time.monotonic()
    launch.end()
    assert time.monotonic() - started < 10
    released.set()
    launch._beat_thread.join()


def test_more_workers_than_slots_fail_at_once_with_advice(moons: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_SLOTS_TIMEOUT", 1.0)
    started = time.monotonic()
    with pytest.raises(PlacementError, match=r"numProcesses 3 needs .* has 2\. Lower numProcesses to 2"):
        BSPAUCClassifier(**FAST, numProcesses=3, localMode=False).fit(moons)
    assert time.monotonic() - started < 20


def test_more_workers_than_rows_are_refused(moons: DataFrame) -> None:
    few = moons.where("label = 1").limit(1).union(moons.where("label = 0").limit(1))
    with pytest.raises(InvalidDataError, match=r"there are 2 training rows for 3 workers. Lower numProcesses"):
        BSPAUCClassifier(**FAST, numProcesses=3).fit(few)


@pytest.mark.parametrize(
    ("processes", "when"), [(0, "between rounds"), pytest.param(2, "inside a round", marks=pytest.mark.alone)]
)
def test_a_driver_interrupted_then_killed_and_begun_again_ends_with_the_same_bits(
    processes: int, when: str, tmp_path: Path
) -> None:
    # A killed driver cannot remove its staged rows: they stay in the folder of this test.
    where = {"checkpointDir": str(tmp_path / "saved"), "stagingDir": str(tmp_path)}
    params = {"stepsPerRound": 200, "rounds": 4, "numProcesses": processes, **where}
    pause = 1 if when == "between rounds" else 0
    # Before it, a fit that is interrupted as from a terminal, where every process gets the signal.
    long = {**params, "stepsPerRound": 20_000, "pretrainSteps": 1, "checkpointDir": str(tmp_path / "other")}
    steps = [long, params] if processes else [params]
    with Driver({"master": "local[2]", "steps": steps, "pause": pause}) as driver:
        if processes:
            driver.read_until("asks train")
            wait_until_at_work(driver.pid)
            interrupted = driver.interrupt(terminal=True)
            assert interrupted["interrupted"]
            assert interrupted["seconds"] < 10
            assert_clean({**interrupted, "staging": []})
        driver.read_until("round 2")
        if when == "inside a round":
            driver.read_until("asks train")
            wait_until_at_work(driver.pid)
        workers = ranks(descendants(driver.pid))
        assert len(workers) == processes
    wait_for(lambda: not any(alive(pid) for pid in workers.values()), 15, "orphaned workers to end")
    saved = sorted(path.name for path in (tmp_path / "saved").iterdir())
    assert saved[-1] >= "bspauc-round-00002.checkpoint"

    other_seed = {**params, "seed": 9}
    undisturbed = {name: value for name, value in params.items() if name != "checkpointDir"}
    with Driver({"master": "local[2]", "steps": [other_seed, params, undisturbed]}) as driver:
        refused, resumed, whole = (driver.result() for _ in range(3))
    assert "belongs to another fit: seed was 0 and is 9" in refused["error"]
    assert resumed["digest"] == whole["digest"]
    assert list((tmp_path / "saved").iterdir()) == []


def test_other_data_are_refused_by_a_checkpoint(moons: DataFrame, tmp_path: Path) -> None:
    estimator = BSPAUCClassifier(**FAST, checkpointDir=str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        before_each_round(patch, interrupt_in_round_2)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(moons)
    with pytest.raises(CheckpointError, match=r"belongs to another fit: data was .* and is .*fingerprint"):
        estimator.fit(moons.where("x0 < 2"))
    # The order and the partitions of the rows are no difference.
    resumed = estimator.fit(moons.orderBy("x1").repartition(5))
    assert same_bits(resumed, estimator.copy({estimator.seed: 0}).fit(moons))
