"""One Spark session for all tests that need one, on a master of choice, and small data sets."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.nn  # torch 2.8 makes a temporary folder now, and keeps it until the process ends.
from pyspark.sql import DataFrame, SparkSession

from tests.helpers.fits import noisy_moons
from tests.helpers.processes import QUICK_JAVA
from tests.helpers.servers import connect_server

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
for _jvm in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_jvm, QUICK_JAVA)
# Several test processes share the cores: threads that spin for each other would cost tenfold.
torch.set_num_threads(1)


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system with the options given; only root can."""
    places: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"mount-{len(places)}"
        place.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True)
        if made.returncode:
            pytest.skip("needs the right to mount")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", place], check=True)


MASTERS = {"local": "local[2]", "cluster": "local-cluster[2,1,1024]", "connect": "local[2]"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--session", choices=list(MASTERS), default="local", help="the Spark session of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A process has one kind of session: of those tests that need one, keep what runs on the chosen kind."""
    kind = config.getoption("--session")

    def runs(item: pytest.Item) -> bool:
        if kind == "local":
            return not item.get_closest_marker("connect")
        if kind == "connect":
            return "spark" in item.fixturenames and not item.get_closest_marker("classic")
        return item.get_closest_marker("everywhere") is not None

    unwanted = [item for item in items if not runs(item)]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in unwanted]


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that ``--session`` asks for; that of Connect has a server with folders of its own."""
    kind = request.config.getoption("--session")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "4",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    with contextlib.ExitStack() as ending:
        builder = SparkSession.builder
        if kind == "connect":
            server = ending.enter_context(connect_server(tmp_path_factory.mktemp("server"), MASTERS[kind], settings))
            builder = builder.remote(server)
        else:
            builder = builder.master(MASTERS[kind]).appName("bspauc_spark tests")
            for name, value in settings.items():
                builder = builder.config(name, value)
        session = builder.getOrCreate()
        ending.callback(session.stop)
        yield session


@pytest.fixture
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Params without which a fit does not start on the session: a cluster wants storage that all see."""
    return {"stagingDir": str(tmp_path)} if request.config.getoption("--session") == "cluster" else {}


@pytest.fixture(scope="session")
def moons(spark: SparkSession) -> DataFrame:
    """Assembled dense vectors, cached."""
    from pyspark.ml.feature import VectorAssembler

    frame = spark.createDataFrame(noisy_moons())
    assembler = VectorAssembler(inputCols=[f"x{i}" for i in range(6)], outputCol="features")
    return assembler.transform(frame).cache()
