"""A real Spark standalone cluster on loopback, and the package as an archive for a Python that does not have it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.helpers.processes import QUICK_JAVA, Driver, descendants, executors, wait_for
from tests.helpers.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
_BIN = Path(pyspark.__file__).parent / "bin"


@dataclass(frozen=True)
class Cluster:
    """A master and its workers, of one core each, below ``folder``; ``python`` runs drivers and executors."""

    url: str
    folder: Path
    python: Path
    archive: Path
    daemons: tuple[subprocess.Popen[bytes], ...]

    @property
    def staging(self) -> Path:
        """Storage that everybody sees."""
        return self.folder / "staging"

    def command(self, script: Path) -> list[str]:
        """``spark-submit`` in client mode, with the package as an archive."""
        settings = {
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.executor.instances": "2",
            "spark.sql.shuffle.partitions": "4",
        }
        conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        where = ["--master", self.url, "--deploy-mode", "client", "--py-files", str(self.archive)]
        return [str(_BIN / "spark-submit"), *where, *conf, str(script)]

    def environment(self) -> dict[str, str]:
        """Of the drivers, the daemons, and so of all that they start: the project is on no path."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
        }
        return kept | {
            "PYSPARK_PYTHON": str(self.python),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            # It would listen on a port of its own.
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
            "TMPDIR": str(self.folder / "temporary"),
        }

    def submit(self, script: Path, *args: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        command = [*self.command(script), *args]
        return subprocess.run(
            command, env=self.environment(), cwd=self.folder, capture_output=True, text=True, timeout=seconds
        )

    def executors(self) -> list[int]:
        """The executors that run now."""
        return executors({pid for daemon in self.daemons for pid in descendants(daemon.pid)})

    def others(self) -> set[int]:
        """All processes of the cluster's environment beside its daemons, also those whose parents are gone."""
        mark = f"SPARK_LOCAL_DIRS={self.folder}".encode()
        found = set()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
        return found - {daemon.pid for daemon in self.daemons}


class Submitted(Driver):
    """A script under spark-submit that tells as ``Driver`` does; ended together with its Java process."""

    def __init__(self, cluster: Cluster, script: Path, asked: dict[str, object]) -> None:
        super().__init__(asked, cluster.command(script), cluster.environment())

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        super().__exit__(None, None, None)


@contextlib.contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master and ``workers`` workers of 1 core and 1 GB, once they know each other; ended whatever happens."""
    for name in ("staging", "local", "temporary"):
        (folder / name).mkdir()
    port, page = free_port(), free_port()
    daemons: list[subprocess.Popen[bytes]] = []
    cluster = Cluster(f"spark://127.0.0.1:{port}", folder, bare_python(folder / "python"), archive(folder), ())

    def start(name: str, kind: str, *args: str) -> None:
        command = [str(_BIN / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", *args]
        with (folder / f"{name}.log").open("wb") as log:
            daemons.append(
                subprocess.Popen(
                    command, env=cluster.environment(), stdout=log, stderr=log, cwd=folder, start_new_session=True
                )
            )

    try:
        start("master", "master.Master", "--port", str(port), "--webui-port", str(page))
        for number in range(workers):
            size = ("--cores", "1", "--memory", "1g", "--port", "0", "--webui-port", "0")
            start(f"worker-{number}", "worker.Worker", *size, "--work-dir", str(folder / f"work-{number}"), cluster.url)
        wait_for(lambda: _registered(page) == workers, 60, f"{workers} workers at the master")
        cluster = Cluster(cluster.url, folder, cluster.python, cluster.archive, tuple(daemons))
        yield cluster
    finally:
        for daemon in daemons:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait(10)
        for pid in cluster.others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _registered(page: int) -> int:
    # The page of the master is there a moment before the one in JSON.
    url = f"http://127.0.0.1:{page}/json/"
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=2) as answer:
        found: int = json.load(answer)["aliveworkers"]
        return found
    return 0


def archive(folder: Path) -> Path:
    """The wheel of this repository, under a name that Spark puts on the path of Python."""
    source = folder / "source"
    # Built from a copy: setuptools leaves its folders beside the sources, and takes in what an older build left there.
    source.mkdir()
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "bspauc_spark", source / "bspauc_spark", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (wheel,) = folder.glob("bspauc_spark-*.whl")
    return wheel.rename(wheel.with_suffix(".zip"))


def bare_python(folder: Path) -> Path:
    """A Python with all that is installed here but the project."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(name).iterdir():
            if "bspauc_spark" not in entry.name and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return folder / "bin" / "python"
