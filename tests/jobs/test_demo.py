"""The demo, run as a user runs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_prints_a_table_an_audit_and_draws_the_rounds(tmp_path: Path) -> None:
    spark_submit = shutil.which(
        "spark-submit", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    assert spark_submit, "spark-submit comes with pyspark"
    command = [
        spark_submit,
        "--master",
        "local[2]",
        "--conf",
        "spark.ui.enabled=false",
        "--conf",
        "spark.log.level=ERROR",
    ]
    done = subprocess.run(
        [*command, str(ROOT / "jobs" / "demo.py"), "--rows", "6000", "--output", str(tmp_path / "out")],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
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
