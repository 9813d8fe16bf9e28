"""What the training job does with held-back rows, and with a model that cannot be saved."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.ml import PipelineModel
from pyspark.ml.feature import ImputerModel, StandardScalerModel, StringIndexerModel
from pyspark.sql import SparkSession

from bspauc_spark import BSPAUCModel
from bspauc_spark.flavor import plain
from tests.helpers.submit import call

pytestmark = pytest.mark.classic
FAST = ["--param", "rounds=3", "--param", "verbose=false"]


def loans(rows: int = 300) -> pd.DataFrame:
    """Each row has a name of its own, so that a model tells which rows its features were learned from."""
    rng = np.random.default_rng(0)
    late = rng.random(rows) < 0.4
    size = rng.gamma(2.0, 500.0, rows) + 500 * late
    income = rng.normal(3000.0, 500.0, rows)
    income[rng.random(rows) < 0.2] = np.nan
    return pd.DataFrame({"name": [f"n{k}" for k in range(rows)], "size": size, "income": income, "late": late * 1})


def _trained(tmp_path: Path, *extra: str) -> tuple[dict[str, Any], PipelineModel]:
    loans().to_csv(tmp_path / "loans.csv", index=False)
    given = ("--input", str(tmp_path / "loans.csv"), "--label", "late", "--output", str(tmp_path / "model"))
    done = call("train.py", *given, *FAST, *extra)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), PipelineModel.load(str(tmp_path / "model"))


def _of(kind: type[Any], model: PipelineModel) -> Any:
    (stage,) = (one for one in model.stages if isinstance(one, kind))
    return stage


def test_features_are_learned_from_training_rows_alone(spark: SparkSession, tmp_path: Path) -> None:
    found, model = _trained(tmp_path, "--validation", "0.3", "--param", "network=mlp")
    learned = loans().set_index("name").loc[list(_of(StringIndexerModel, model).labels)]
    rows = found["rows"]
    assert len(learned) == rows["positives"] + rows["negatives"] < 0.8 * len(loans())
    assert rows["validation_positives"] + rows["validation_negatives"] == len(loans()) - len(learned)
    filled = np.sort(learned["income"].dropna())
    median = filled[(len(filled) - 1) // 2]
    assert _of(ImputerModel, model).surrogateDF.first()["income"] == median
    scaler = _of(StandardScalerModel, model)
    numbers = learned[["size", "income"]].fillna(median)
    np.testing.assert_allclose(scaler.mean.toArray(), numbers.mean())
    np.testing.assert_allclose(scaler.std.toArray(), numbers.std(ddof=1))


def test_without_validation_features_are_learned_from_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    found, model = _trained(tmp_path)
    assert set(_of(StringIndexerModel, model).labels) == set(loans()["name"])
    assert found["best_validation_auc"] is None


def test_a_gap_that_only_held_back_rows_have_is_filled(spark: SparkSession, tmp_path: Path) -> None:
    _, model = _trained(tmp_path, "--validation", "0.3")
    learned = set(_of(StringIndexerModel, model).labels)
    table = loans()
    table["income"] = table["income"].fillna(2000.0)
    # The place of a row is a hash of it: only a row that stays where it was will do.
    for held in table.index[~table["name"].isin(learned)]:
        trial = table.copy()
        trial.loc[held, "income"] = np.nan
        trial.to_csv(tmp_path / "gap.csv", index=False)
        given = ("--input", str(tmp_path / "gap.csv"), "--label", "late", "--output", str(tmp_path / "gap-model"))
        done = call("train.py", *given, *FAST, "--validation", "0.3", "--overwrite")
        assert done.returncode == 0, done.stderr
        model = PipelineModel.load(str(tmp_path / "gap-model"))
        if table["name"][held] not in set(_of(StringIndexerModel, model).labels):
            assert json.loads(done.stdout)["gaps_filled"] == {"income": 1}
            return
    raise AssertionError("no row was held back with the gap")


def test_gaps_are_kept_from_the_training_to_the_scores_if_the_model_takes_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = loans()
    table["member"] = (table["size"] > 900).astype(object).where(table.index % 5 > 0, None)
    table["city"] = np.where(table.index % 3 == 0, "Rome", "Bonn")
    table.drop(columns="name").to_parquet(tmp_path / "loans.parquet")
    given = ("--input", str(tmp_path / "loans.parquet"), "--label", "late", "--output", str(tmp_path / "model"))
    done = call("train.py", *given, *FAST, "--param", "handleInvalid=keep")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gaps_filled"] == {}
    pipeline = PipelineModel.load(str(tmp_path / "model"))
    assert not any(isinstance(stage, (ImputerModel, StandardScalerModel)) for stage in pipeline.stages)
    # New rows have a gap where the training had none, and a CSV has text for numbers and flags.
    table.loc[:4, "size"] = np.nan
    table.drop(columns=["name", "late"]).to_csv(tmp_path / "new.csv", index=False)
    asked = ("--model", str(tmp_path / "model"), "--input", str(tmp_path / "new.csv"))
    done = call("score.py", *asked, "--output", str(tmp_path / "scored"))
    assert done.returncode == 0, done.stderr
    scored = spark.read.parquet(str(tmp_path / "scored")).toPandas()
    assert len(scored) == len(table)
    served = plain(pipeline)
    assert served is not None
    expected = np.sort(served.predict(table.assign(member=table["member"].astype(float)))["score"])
    np.testing.assert_allclose(np.sort(scored["score"]), expected, atol=1e-6)


def test_gaps_cannot_be_kept_for_a_model_that_takes_none(tmp_path: Path) -> None:
    given = ("--input", str(tmp_path / "none.csv"), "--label", "late", "--output", str(tmp_path / "model"))
    done = call("train.py", *given, "--param", "network=mlp", "--param", "handleInvalid=keep")
    assert done.returncode == 2
    assert "handleInvalid is 'keep', and without inputs 'auto' a NaN would reach the network" in done.stderr


def test_the_validation_auc_is_called_what_it_is_the_best_of_all_rounds(spark: SparkSession, tmp_path: Path) -> None:
    found, model = _trained(tmp_path, "--validation", "0.3")
    last = model.stages[-1]
    assert isinstance(last, BSPAUCModel)
    assert found["best_validation_auc"] == max(row.validation_auc for row in last.summary.rounds)
    assert "validation_auc" not in found


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    """A place that can be written to, until the names of a model's files make its paths too long."""
    place = tmp_path / "model"
    while len(str(place)) < 3900:
        place = place / ("x" * min(200, 3990 - len(str(place))))
    return place


def test_a_training_whose_model_cannot_be_saved_goes_on_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path, unwritable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loans().to_csv(tmp_path / "loans.csv", index=False)
    checkpoints, given = tmp_path / "checkpoints", ("--label", "late", "--exclude", "name", "--validation", "0.3")
    asked = ("train.py", "--input", str(tmp_path / "loans.csv"), *given, *FAST)
    keeping = (*asked, "--param", f"checkpointDir={checkpoints}", "--output")
    failed = call(*keeping, str(unwritable))
    assert failed.returncode == 2, failed.stdout
    (line,) = failed.stderr.splitlines()
    assert line.startswith(f"error: the model is trained, but --output {unwritable} cannot be written: ")
    assert line.endswith(f"The checkpoints in {checkpoints} are kept: run the job again to go on from there.")
    assert os.listdir(checkpoints)
    models = []
    for name, command in (("again", keeping), ("undisturbed", (*asked, "--output"))):
        done = call(*command, str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        models.append(PipelineModel.load(str(tmp_path / name)).stages[-1])
    assert [record for record in caplog.messages if record.startswith("going on after round 3")]
    assert os.listdir(checkpoints) == []
    again, undisturbed = (model.scorer.weights for model in models)
    assert all(np.array_equal(undisturbed[name], weights) for name, weights in again.items())


def test_a_training_whose_model_cannot_be_saved_says_how_to_be_prepared(
    spark: SparkSession, tmp_path: Path, unwritable: Path
) -> None:
    loans().to_csv(tmp_path / "loans.csv", index=False)
    given = ("--input", str(tmp_path / "loans.csv"), "--label", "late", "--exclude", "name")
    failed = call("train.py", *given, *FAST, "--output", str(unwritable))
    assert failed.returncode == 2, failed.stdout
    assert "With --param checkpointDir=… the next training can go on from its last round." in failed.stderr
