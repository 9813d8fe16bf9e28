"""The reproduction job on small files of the right form."""

from __future__ import annotations

import json
import lzma
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from jobs import reproduce
from tests.helpers.submit import call, submit


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A skin_nonskin of 800 rows in which one colour decides."""
    folder = tmp_path_factory.mktemp("data")
    colours = np.random.default_rng(0).integers(0, 256, (800, 3))
    label = np.where(colours[:, 0] > 150, 1, 2)
    with lzma.open(folder / "skin_nonskin.txt.xz", "wt") as file:
        np.savetxt(file, np.column_stack([colours, label]), fmt="%d", delimiter="\t")
    return folder


def runs(output: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (output / "runs.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("submitted", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_table_is_tuned_run_printed_and_not_run_again(
    submitted: bool, spark: SparkSession, data_dir: Path, tmp_path: Path
) -> None:
    start = partial(submit, cwd=tmp_path) if submitted else call
    command = ["--table", "3", "--datasets", "skin_nonskin", "--methods", "opauc", "koil", "--noise", "flip-20"]
    command += ["--trials", "2", "--data-dir", str(data_dir), "--output", str(tmp_path / "out")]
    done = start("reproduce.py", *command)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| skin_nonskin, 20 % flip |" in done.stdout
    assert "<br>paper 0.884" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["failed"] == 0
    found = runs(tmp_path / "out")
    assert sorted((run["kind"], run["method"], run["trial"]) for run in found) == [
        ("trial", "koil", 0),
        ("trial", "koil", 1),
        ("trial", "opauc", 0),
        ("trial", "opauc", 1),
        ("tuning", "koil", 0),
        ("tuning", "opauc", 0),
    ]
    tuned = {run["method"]: run for run in found if run["kind"] == "tuning"}
    for run in found:
        if run["kind"] == "trial":
            assert run["settings"] == tuned[run["method"]]["settings"]
            assert 0.8 < run["auc"] <= 1
    for run in tuned.values():
        assert len(run["validation_aucs"]) == 6
        assert run["candidate"] == int(np.argmax(run["validation_aucs"]))
    frame = pd.read_parquet(tmp_path / "out" / "runs.parquet")
    assert len(frame) == 6
    assert (tmp_path / "out" / "table3.md").read_text() in done.stdout

    # A run whose line was cut off is run again, and no other.
    path = tmp_path / "out" / "runs.jsonl"
    path.write_text(path.read_text()[:-40])
    again = start("reproduce.py", *command)
    assert again.returncode == 0, again.stderr[-2000:]
    before = {run["key"]: run["seconds"] for run in found}
    after = {run["key"]: run["seconds"] for run in runs(tmp_path / "out")}
    assert before.keys() == after.keys()
    assert [key for key in before if before[key] != after[key]] == [found[-1]["key"]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--table", "3", "--datasets", "a9a"], "data set 'a9a' needs a9a.bz2"),
        (["--table", "2", "--datasets", "iris"], "--datasets iris: this table or figure has sector, rcv1"),
        (["--table", "3", "--datasets", "skin_nonskin", "--noise", "flips"], "--noise flips: give flip, poison"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(
    given: list[str],
    message: str,
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *given, "--data-dir", str(data_dir)])
    monkeypatch.chdir(tmp_path)
    assert reproduce.main() == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
