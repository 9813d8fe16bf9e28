"""A standalone cluster of real daemons, spark-submit, the package as an archive, and executors that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from tests.helpers.disturbed import PARTS
from tests.helpers.fits import FAST, noisy_moons
from tests.helpers.processes import wait_for, wait_until_at_work
from tests.helpers.standalone import ROOT, Cluster, Submitted, standalone

pytestmark = pytest.mark.alone

# Rounds of a second or so, long enough to meet a worker in the middle of one.
PARAMS = {**FAST, "stepsPerRound": 150}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def rows(cluster: Cluster) -> pd.DataFrame:
    moons = noisy_moons()
    features = moons[[f"x{i}" for i in range(6)]].to_numpy()
    table = moons[["label", "clean"]].assign(id=np.arange(len(moons)), features=list(features))
    table.to_parquet(cluster.folder / "rows.parquet")
    return table


@pytest.fixture(scope="module")
def trained(cluster: Cluster, rows: pd.DataFrame) -> dict[str, Any]:
    """Nothing in its way."""
    params = [f"--param={name}={json.dumps(value)}" for name, value in PARAMS.items()]
    args = ("--input", "rows.parquet", "--label", "label", "--features", "features", *params)
    where = (f"--param=stagingDir={cluster.staging}", "--output", "model", "--report", "report.html")
    return _results(cluster.submit(ROOT / "jobs" / "train.py", *args, *where))


@pytest.fixture(scope="module")
def scored(cluster: Cluster, trained: dict[str, Any]) -> pd.DataFrame:
    args = ("--model", "model", "--input", "rows.parquet", "--output", "scored")
    _results(cluster.submit(ROOT / "jobs" / "score.py", *args))
    return pd.read_parquet(cluster.folder / "scored")


def _results(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _kill_an_executor(cluster: Cluster) -> None:
    before = cluster.executors()
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)


def _kill_in_the_second_wave(cluster: Cluster, marks: Path) -> None:
    wait_for(lambda: marks.is_dir() and len(list(marks.iterdir())) > 2, 120, "the third part to be read")
    _kill_an_executor(cluster)


def _assert_nothing_is_left(cluster: Cluster) -> None:
    wait_for(lambda: not cluster.others(), 30, "all processes of the application to end")
    assert list(cluster.staging.iterdir()) == []


def test_the_cluster_has_the_package_from_the_archive_alone(cluster: Cluster) -> None:
    command = [str(cluster.python), "-c", "import pyspark, torch, bspauc_spark"]
    done = subprocess.run(command, env=cluster.environment(), cwd=cluster.folder, capture_output=True, text=True)
    assert done.stderr.strip().endswith("ModuleNotFoundError: No module named 'bspauc_spark'")


def test_the_jobs_train_and_score_by_spark_submit(
    cluster: Cluster, rows: pd.DataFrame, trained: dict[str, Any], scored: pd.DataFrame
) -> None:
    assert trained["rows"]["positives"] + trained["rows"]["negatives"] == len(rows) == len(scored)
    assert roc_auc_score(scored["clean"], scored["score"]) > 0.9
    # The page's template came out of the archive.
    assert "<svg" in (cluster.folder / "report.html").read_text()
    _assert_nothing_is_left(cluster)


def test_an_executor_killed_while_staging_fitting_or_transforming_changes_nothing(
    cluster: Cluster, scored: pd.DataFrame
) -> None:
    where = {name: str(cluster.folder / name) for name in ("model", "scored", "met")}
    (cluster.folder / "met").mkdir()
    params = {**PARAMS, "stagingDir": str(cluster.staging)}
    asked = {**where, "rows": str(cluster.folder / "rows.parquet"), "params": params}
    with Submitted(cluster, ROOT / "tests" / "helpers" / "disturbed.py", asked) as driver:
        undisturbed = driver.result()
        assert str(cluster.archive) in undisturbed["module"]
        assert undisturbed["workers"] == 2

        driver.read_until("staging")
        _kill_in_the_second_wave(cluster, cluster.folder / "met" / "staging")
        driver.read_until("asks train")
        driver.read_until("asks train")
        # Workers are the executors' children, and these are the daemons'.
        wait_until_at_work(*(daemon.pid for daemon in cluster.daemons))
        _kill_an_executor(cluster)
        driver.read_until("warning workers were lost")
        assert driver.result()["digest"] == undisturbed["digest"]

        driver.read_until("transform")
        _kill_in_the_second_wave(cluster, cluster.folder / "met" / "transform")
        assert driver.result() == {"same": True, "rows": len(scored)}
    # Parts were read again: the killed ones had some under way, or done and not yet taken.
    assert all(len(list((cluster.folder / "met" / step).iterdir())) > PARTS for step in ("staging", "transform"))
    _assert_nothing_is_left(cluster)
