"""The session that a benchmark measures in."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def session(master: str = "local[2]", memory: str = "4g") -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Python workers import the package too, whether it is installed or not.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.master(master).appName("benchmark").config("spark.driver.memory", memory)
    spark = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
