"""The demo: in this process on few rows, and run as a user runs it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.helpers.submit import call, submit


def test_the_demo_prints_a_table_an_audit_and_draws_the_rounds(spark: SparkSession, tmp_path: Path) -> None:
    _check(call("demo.py", "--rows", "6000", "--output", str(tmp_path / "out")), tmp_path)


@pytest.mark.thorough
def test_so_it_does_by_spark_submit(tmp_path: Path) -> None:
    _check(submit("demo.py", "--rows", "6000", "--output", "out", cwd=tmp_path), tmp_path)


def _check(done: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    assert done.returncode == 0, done.stderr[-2000:]
    aucs = re.findall(r"^(.{34}) +(0\.\d{4}) +\d+\.\d$", done.stdout, re.MULTILINE)
    assert [name.strip() for name, _ in aucs] == [
        "BSPAUC",
        "the same network, not self-paced",
        "MLlib LogisticRegression",
        "MLlib GBTClassifier (20 trees)",
    ]
    assert all(0.5 < float(auc) < 1 for _, auc in aucs)
    assert "900 labels wrong (20%)" in done.stdout
    assert re.search(r"of the first +1,000 are wrong \(\d+\.\d%\)", done.stdout)
    assert (tmp_path / "out" / "rounds.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()
