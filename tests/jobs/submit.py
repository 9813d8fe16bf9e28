"""Run a job as a user does, by spark-submit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def submit(job: str, *args: str, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """``spark-submit jobs/<job> <args>`` on two local cores, in the folder ``cwd``."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    spark_submit = shutil.which("spark-submit", path=path)
    assert spark_submit, "spark-submit comes with pyspark"
    settings = ["--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"]
    return subprocess.run(
        [spark_submit, "--master", "local[2]", *settings, str(ROOT / "jobs" / job), *args],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
    )
