"""``jobs/train.py --learner``: a table, another learner, and the other jobs on what comes of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.ml import PipelineModel
from pyspark.sql import SparkSession
from sklearn.metrics import roc_auc_score

from bspauc_spark import SelfPacedModel
from tests.helpers.flipped import far_flips_table
from tests.helpers.submit import call

pytestmark = pytest.mark.classic


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = far_flips_table(rows=900)
    rows["status"] = np.where(rows.pop("label") == 1, "fraud", "fine")
    rows.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def test_a_table_is_trained_scored_and_audited(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    label = ("--label", "status", "--positive", "fraud")
    model, given = str(tmp_path / "model"), ("--input", str(table))
    left_out = ("--exclude", "clean", "row")
    done = call("train.py", *given, *label, *left_out, "--learner", "logistic", "--param", "folds=4", "--output", model)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["learner"] == "logistic"
    assert found["shares"] == {"LogisticRegression": 1.0}
    last = PipelineModel.load(model).stages[-1]
    assert isinstance(last, SelfPacedModel)
    assert last.summary.folds == 4
    done = call("score.py", "--model", model, *given, "--output", str(tmp_path / "scored"))
    assert done.returncode == 0, done.stderr
    scored = spark.read.parquet(str(tmp_path / "scored")).toPandas()
    assert roc_auc_score(scored["clean"], scored["score"]) > 0.95
    done = call("audit.py", "--model", model, *given, *label, "--output", str(tmp_path / "audited"), "--top", "0")
    assert done.returncode == 0, done.stderr
    audited = spark.read.parquet(str(tmp_path / "audited")).toPandas()
    wrong = (audited["status"] == "fraud") != (audited["clean"] == 1)
    assert roc_auc_score(wrong, audited["suspicion"]) > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--learner", "forest", "--validation", "0.2"), "--validation is for --learner bspauc. Leave it out."),
        (
            ("--learner", "gbt", "--param", "maxIterr=3"),
            "--param maxIterr: GBTClassifier has no such Param; did you mean maxIter",
        ),
        (("--learner", "logistic", "--param", "folds=2"), "folds must be a whole number from 3 to 10; got 2."),
    ],
)
def test_what_does_not_go_with_a_learner_is_refused(
    spark: SparkSession, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]}).to_csv(tmp_path / "t.csv", index=False)
    given = ("--input", str(tmp_path / "t.csv"), "--label", "y", "--output", str(tmp_path / "m"))
    done = call("train.py", *given, *options)
    assert done.returncode == 2
    assert message in done.stderr
