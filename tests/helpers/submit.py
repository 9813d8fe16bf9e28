"""Run a job as a user does, by spark-submit, or in this process, where its session is the tests' own."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


def submit(
    job: str, *args: str, cwd: Path, timeout: float = 300, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``spark-submit jobs/<job> <args>`` on two local cores, in the folder ``cwd``."""
    return subprocess.run(
        _command(job, args), env=_environment(environment), capture_output=True, text=True, timeout=timeout, cwd=cwd
    )


def started(job: str, *args: str, cwd: Path, said: Path) -> subprocess.Popen[bytes]:
    """The same, not waited for; what it says goes to the file ``said``, and its processes are a group of their own."""
    with said.open("wb") as file:
        return subprocess.Popen(
            _command(job, args), env=_environment(), stdout=file, stderr=file, cwd=cwd, start_new_session=True
        )


def _command(job: str, args: Sequence[str]) -> list[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    spark_submit = shutil.which("spark-submit", path=path)
    assert spark_submit, "spark-submit comes with pyspark"
    settings = ["--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"]
    return [spark_submit, "--master", "local[2]", *settings, str(ROOT / "jobs" / job), *args]


def _environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**os.environ, **python, **(more or {})}


def call(job: str, *args: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The job's ``main`` with these arguments, in this process and its session: seconds instead of a new JVM.

    Paths among the arguments are absolute: the session's JVM stays in the folder where it began.
    """
    spec = importlib.util.spec_from_file_location(job.removesuffix(".py"), ROOT / "jobs" / job)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [job, *args])
        # The session is not the job's to end.
        patch.setattr(SparkSession, "stop", lambda _: None)
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        spec.loader.exec_module(module)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = module.main()
    return subprocess.CompletedProcess([job, *args], code or 0, output.getvalue(), errors.getvalue())
