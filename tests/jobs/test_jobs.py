"""Train, score and audit on files of the test's own: two of them by spark-submit, as a user runs it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession
from sklearn.metrics import roc_auc_score

from bspauc_spark.command_line import cli
from tests.helpers.processes import alive, descendants, wait_for
from tests.helpers.submit import ROOT, call, started, submit

FAST = ["--param", "rounds=3"]


def claims(rows: int = 3000, seed: int = 0) -> pd.DataFrame:
    """A table as people have them: a key, text, gaps, a date left out, labels as words, some of them wrong."""
    rng = np.random.default_rng(seed)
    amount, age = rng.gamma(2.0, 500.0, rows), rng.integers(18, 90, rows)
    city = rng.choice(["Rome", "Bonn", "Oslo"], rows)
    risk = amount / 500 + 2.0 * (city == "Oslo") + rng.normal(size=rows)
    truth = risk > np.quantile(risk, 0.85)
    wrong = rng.random(rows) < 0.08
    frame = pd.DataFrame(
        {
            "claim": [f"C{k:05d}" for k in range(rows)],
            "amount": amount,
            "age at claim": age,
            "city": city,
            "open": rng.random(rows) < 0.5,
            "status": np.where(truth ^ wrong, "fraud", "fine"),
            "truth": np.where(truth, "fraud", "fine"),
        }
    )
    frame.loc[rng.random(rows) < 0.05, "amount"] = np.nan
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("claims")
    claims().to_csv(path / "claims.csv", index=False)
    (path / "taken").mkdir()
    return path


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[str, Any]:
    """A model from the CSV, logged to MLflow."""
    (folder / "params.yaml").write_text("rounds: 9\nlearningRate: 3e-3\n")
    done = submit(
        *("train.py", "--input", "claims.csv", "--label", "status", "--positive", "fraud"),
        *("--exclude", "claim", "truth", "--validation", "0.25", "--params-file", "params.yaml", *FAST),
        *("--output", "model", "--report", "report.html", "--experiment", "claims", "--register", "claims"),
        cwd=folder,
        environment={"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/runs.db"},
    )
    return _results(done)


def _results(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _given(paths: Mapping[str, Path | str]) -> list[str]:
    return [str(part) for pair in paths.items() for part in pair]


def _refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stdout[-1000:] + done.stderr[-2000:]
    # spark-submit joins what a script writes to stderr with its stdout.
    said = done.stdout + done.stderr
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, said[-2000:]
    for part in parts:
        assert part in lines[0]
    assert "Traceback" not in said
    assert "\tat " not in said


def test_training_says_what_it_did(trained: dict[str, Any], folder: Path) -> None:
    assert trained["model"] == "model"
    counts = trained["rows"]
    assert sum(counts.values()) == 3000
    assert 600 < counts["validation_positives"] + counts["validation_negatives"] < 900
    # amount, age, open and three cities with a place for unknown ones.
    assert trained["features"] == 3 + 4
    assert trained["best_validation_auc"] > 0.75
    assert 0 < trained["positives_kept"] <= 1
    assert "<svg" in (folder / "report.html").read_text()


def test_training_was_logged_and_the_model_registered(trained: dict[str, Any], folder: Path) -> None:
    client = mlflow.MlflowClient(f"sqlite:///{folder}/runs.db")
    run = client.get_run(trained["mlflow_run"])
    # The command line goes before the file.
    assert run.data.params["rounds"] == "3"
    assert run.data.params["learningRate"] == "0.003"
    assert run.data.metrics["validation_auc"] > 0.75
    assert client.get_model_version("claims", "1").run_id == trained["mlflow_run"]


def test_scoring_adds_three_columns_and_ranks(spark: SparkSession, trained: dict[str, Any], folder: Path) -> None:
    new = claims(seed=1).drop(columns="status").replace({"city": {"Rome": "Lima"}})
    new.to_parquet(folder / "new.parquet")
    paths = {"--model": folder / "model", "--input": folder / "new.parquet", "--output": folder / "scored.csv"}
    found = _results(call("score.py", *_given(paths)))
    table = pd.concat([pd.read_csv(file) for file in (folder / "scored.csv").glob("part-*.csv")])
    assert found["rows"] == len(table) == 3000
    assert set(table.columns) == {*new.columns, "score", "probability", "prediction"}
    assert found["predicted_positive"] == (table["prediction"] == 1).sum()
    assert roc_auc_score(table["truth"] == "fraud", table["score"]) > 0.9


def test_scoring_with_a_model_from_mlflow_gives_the_same(
    spark: SparkSession, trained: dict[str, Any], folder: Path
) -> None:
    claims(rows=50, seed=2).to_csv(folder / "few.csv", index=False)
    scores = []
    for number, model in enumerate((folder / "model", "models:/claims/1")):
        paths = {"--model": model, "--input": folder / "few.csv", "--output": folder / f"few-{number}"}
        _results(call("score.py", *_given(paths), environment={"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/runs.db"}))
        scores.append(pd.read_parquet(folder / f"few-{number}").set_index("claim")["score"].sort_index())
    pd.testing.assert_series_equal(*scores, atol=1e-6)


def test_the_audit_finds_wrong_labels_first_and_writes_a_report(
    spark: SparkSession, trained: dict[str, Any], folder: Path
) -> None:
    paths = {"--model": "model", "--input": "claims.csv", "--output": "suspects", "--report": "audit.html"}
    asked = ("--label", "status", "--positive", "fraud", "--top", "100")
    found = _results(call("audit.py", *_given({name: folder / path for name, path in paths.items()}), *asked))
    table = pd.read_parquet(folder / "suspects").sort_values("suspicion", ascending=False)
    assert found["rows"] == len(table) == 100
    assert {"claim", "status", "score", "loss", "weight", "suspicion"} <= set(table.columns)
    wrong = (table["status"] != table["truth"]).head(50).mean()
    assert wrong > 0.5, wrong
    page = (folder / "audit.html").read_text()
    assert table["claim"].iloc[0] in page


def test_vector_columns_in_libsvm_files_are_taken_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 5))
    y = (x[:, 0] + x[:, 1] > 1).astype(int)
    lines = (
        f"{label} " + " ".join(f"{k + 1}:{v:.5f}" for k, v in enumerate(row)) for label, row in zip(y, x, strict=True)
    )
    (tmp_path / "rows.libsvm").write_text("\n".join(lines) + "\n")
    paths = {"--input": tmp_path / "rows.libsvm", "--output": tmp_path / "model"}
    assert _results(call("train.py", *_given(paths), "--label", "label", *FAST))["features"] == 5


@pytest.mark.thorough
@pytest.mark.parametrize("end", [os.killpg, os.kill], ids=["all processes", "spark-submit alone"])
def test_a_job_that_a_scheduler_ends_leaves_no_staged_rows(
    folder: Path, tmp_path: Path, end: Callable[[int, int], None]
) -> None:
    (tmp_path / "staging").mkdir()
    said = tmp_path / "said"
    job = started(
        *("train.py", "--input", "claims.csv", "--label", "status", "--positive", "fraud", "--exclude", "claim"),
        *("--output", str(tmp_path / "model"), *FAST, "--param", "rounds=100000"),
        *("--param", f"stagingDir={tmp_path}/staging"),
        cwd=folder,
        said=said,
    )
    try:
        wait_for(lambda: b"3/100000" in said.read_bytes() or job.poll() is not None, 120, "three rounds")
        assert list((tmp_path / "staging").iterdir()), said.read_text()
        processes = {job.pid, *descendants(job.pid)}
        end(job.pid, signal.SIGTERM)
        job.wait(60)
        wait_for(lambda: not any(map(alive, processes)), 30, "the end of all processes")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert list((tmp_path / "staging").iterdir()) == []
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_a_job_that_is_ended_says_so_whatever_fails_on_the_way(
    capsys: pytest.CaptureFixture[str], number: signal.Signals, name: str
) -> None:
    def job() -> dict[str, Any]:
        try:
            os.kill(os.getpid(), number)
            return {"never": "here"}
        finally:
            # A scheduler or a user without patience; and Spark, which is not there any more.
            os.kill(os.getpid(), number)
            raise ConnectionRefusedError

    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        cli.run(job)
    assert ended.value.code == 128 + number
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: ended by {name}.\n")
    assert signal.getsignal(number) == before


def test_a_job_in_the_background_of_a_shell_goes_on_at_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert cli.run(lambda: {"went": os.kill(os.getpid(), signal.SIGINT)}) == 0
    finally:
        signal.signal(signal.SIGINT, before)


INTERRUPTED = """
import os, runpy, signal, sys

class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.parametrize("job", ["audit.py", "demo.py", "reproduce.py", "score.py", "train.py"])
def test_ctrl_c_amid_the_first_imports_is_one_line(job: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(ROOT / "jobs" / job)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: ended by Ctrl-C.\n")


def test_ctrl_c_while_spark_is_at_work_is_one_line(folder: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    job = started(
        *("train.py", "--input", "claims.csv", "--label", "status", "--positive", "fraud", "--exclude", "claim"),
        *("--output", str(tmp_path / "model"), *FAST, "--param", "rounds=100000"),
        cwd=folder,
        said=said,
    )
    try:
        # By the time that the log is hushed the table is about to be read.
        wait_for(lambda: b"log level" in said.read_bytes() or job.poll() is not None, 120, "the session")
        time.sleep(2)
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(60) == 130
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    text = said.read_text()
    assert text.rstrip().endswith("error: ended by Ctrl-C.")
    assert "Traceback" not in text


REFUSED = [
    (["--label", "statsu"], ["--label statsu: there is no such column; did you mean status"]),
    (["--label", "status", "--positive", "fraud", "--param", "round=3"], ["--param round", "did you mean rounds"]),
    (["--label", "status", "--input", "claimz.csv"], ["claimz.csv does not exist"]),
    (["--label", "status"], ["holds text, 2 different values", "--positive"]),
    (["--label", "status", "--positive", "theft"], ["--positive theft: no row"]),
    (["--label", "status", "--positive", "fraud"], ["column claim has about", "--exclude"]),
    (["--label", "status", "--positive", "fraud", "--exclude", "claims"], ["--exclude claims", "did you mean claim"]),
    (["--label", "status", "--positive", "fraud", "--features", "amont"], ["--features amont", "did you mean amount"]),
    (["--label", "status", "--positive", "fraud", "--param", "rounds=0"], ["rounds must be"]),
    (["--label", "status", "--positive", "fraud", "--param", "rounds"], ["--param rounds: write name=value"]),
    (
        ["--label", "status", "--positive", "fraud", "--param", "hiddenLayers=[1"],
        ["--param hiddenLayers=[1 is no YAML"],
    ),
    (["--label", "status", "--positive", "fraud", "--param", "rounds=2026-99-01"], ["--param rounds=2026-99-01 is no"]),
    (["--label", "status", "--validation", "1.5"], ["--validation 1.5 is no share of the rows"]),
    (["--label", "age at claim", "--positive", "old"], ["--positive old is no number"]),
    (["--label", "status", "--output", "taken"], ["taken exists already", "--overwrite"]),
    (["--label", "status", "--output", "claims.csv"], ["claims.csv is, holds or lies in --input", "another path"]),
]


def _arguments(folder: Path, extra: list[str]) -> list[str]:
    given = {"--input": "claims.csv", "--output": "never", **dict(zip(extra[::2], extra[1::2], strict=True))}
    located = {k: str(folder / v) if k in ("--input", "--output") else v for k, v in given.items()}
    return [part for pair in located.items() for part in pair]


@pytest.mark.parametrize(
    ("extra", "parts"), [REFUSED[2], *(pytest.param(*one, marks=pytest.mark.thorough) for one in REFUSED[:2])]
)
def test_training_refuses_what_cannot_work_in_one_line(folder: Path, extra: list[str], parts: list[str]) -> None:
    _refused(submit("train.py", *_arguments(folder, extra), cwd=folder), *parts)
    assert not (folder / "never").exists()


@pytest.mark.parametrize(("extra", "parts"), REFUSED)
def test_training_refuses(spark: SparkSession, folder: Path, extra: list[str], parts: list[str]) -> None:
    _refused(call("train.py", *_arguments(folder, extra)), *parts)
    assert not (folder / "never").exists()


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["score.py", "--model", "nowhere", "--input", "claims.csv"], ["nowhere does not exist"]),
        (["score.py", "--model", "model", "--input", "cities.csv"], ["reads a column amount"]),
        (["score.py", "--model", "model", "--input", "scored.parquet"], ["has a column score already"]),
        (["score.py", "--model", "models:/nobody/1", "--input", "claims.csv"], ["models:/nobody/1 cannot be loaded"]),
        (
            ["audit.py", "--model", "model", "--input", "claims.csv", "--label", "state", "--positive", "fraud"],
            ["--label state: there is no such column; did you mean status"],
        ),
    ],
)
def test_scoring_and_auditing_refuse_what_cannot_work(
    spark: SparkSession,
    trained: dict[str, Any],
    folder: Path,
    args: list[str],
    parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/runs.db")
    pd.DataFrame({"city": ["Rome"]}).to_csv(folder / "cities.csv", index=False)
    claims(50).assign(score=1.0).to_parquet(folder / "scored.parquet")
    paths = {folder / one for one in ("nowhere", "claims.csv", "cities.csv", "scored.parquet", "model")}
    located = [str(folder / one) if folder / one in paths else one for one in args]
    _refused(call(*located, "--output", str(folder / "nothing")), *parts)
    assert not (folder / "nothing").exists()
