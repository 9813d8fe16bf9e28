"""The features that the jobs make of a table."""

from __future__ import annotations

import numpy as np
import pandas as pd
from pyspark.ml import Pipeline
from pyspark.sql import SparkSession

from bspauc_spark.command_line import features


def test_only_numbers_are_scaled(spark: SparkSession) -> None:
    rows = pd.DataFrame(
        {
            "amount": [10.0, None, 30.0, 50.0],
            "flag": [0.0, 1.0, None, 0.0],
            "code": [0, 1, 2, 1],
            "open": [True, False, False, False],
            "city": ["Rome", "Rome", "Oslo", "Rome"],
        }
    )
    frame = spark.createDataFrame(rows)
    stages, name, gaps = features.feature_stages(frame, list(rows.columns), [], "median", 100)
    made = Pipeline(stages=stages).fit(frame).transform(frame).select(name).collect()
    x = np.array([row[0].toArray() for row in made])
    # Spark's median of an even count is the lower one, and its standard deviation that of a sample.
    amount, code = np.array([10.0, 30.0, 30.0, 50.0]), np.array([0.0, 1.0, 2.0, 1.0])
    for column, given in ((0, amount), (1, code)):
        np.testing.assert_allclose(x[:, column], (given - given.mean()) / given.std(ddof=1))
    np.testing.assert_array_equal(x[:, 2], [0.0, 1.0, 0.0, 0.0])
    np.testing.assert_array_equal(x[:, 3], [1.0, 0.0, 0.0, 0.0])
    assert gaps == {"amount": 1, "flag": 1}
    # Rome, Oslo, and a place for cities not seen in training.
    np.testing.assert_array_equal(x[:, 4:], [[1, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]])
