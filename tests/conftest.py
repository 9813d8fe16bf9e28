"""One Spark session for all tests that need one, and small data sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# Several test processes share the cores: threads that spin for each other would cost tenfold.
torch.set_num_threads(1)


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .appName("bspauc_spark tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def noisy_moons(rows: int = 3000, features: int = 6, flipped: float = 0.1, seed: int = 0) -> pd.DataFrame:
    """A rare class beyond a curved boundary, with some labels flipped; ``clean`` is the true label."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features))
    clean = (x[:, 0] + 0.5 * x[:, 1] ** 2 > 1.6).astype(float)
    label = np.where(rng.random(rows) < flipped, 1 - clean, clean)
    columns = {f"x{i}": x[:, i] for i in range(features)}
    return pd.DataFrame({**columns, "label": label, "clean": clean, "validation": rng.random(rows) < 0.25})


@pytest.fixture(scope="session")
def moons(spark: SparkSession) -> DataFrame:
    """Assembled dense vectors, cached."""
    from pyspark.ml.feature import VectorAssembler

    frame = spark.createDataFrame(noisy_moons())
    assembler = VectorAssembler(inputCols=[f"x{i}" for i in range(6)], outputCol="features")
    return assembler.transform(frame).cache()


FAST = {
    "rounds": 3,
    "stepsPerRound": 15,
    "pretrainSteps": 10,
    "hiddenLayers": [16, 16],
    "batchSize": 64,
    "verbose": False,
}
