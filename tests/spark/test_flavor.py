"""Models in MLflow: both flavours loaded back, served over HTTP, and where Spark cannot be imported."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import (
    Binarizer,
    Imputer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    StandardScaler,
    StringIndexer,
    VectorAssembler,
)
from pyspark.sql import DataFrame, SparkSession

import bspauc_spark
from bspauc_spark import BSPAUCClassifier, BSPAUCModel, flavor
from bspauc_spark.errors import InvalidDataError
from bspauc_spark.spark.session import is_connect
from tests.helpers.fits import FAST
from tests.helpers.servers import serve


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = 1200
    amount, age = rng.gamma(2.0, 50.0, rows), rng.integers(18, 90, rows)
    city = rng.choice(["Rome", "Bonn", "Oslo"], rows, p=[0.5, 0.3, 0.2])
    label = (amount / 50 + (city == "Oslo") * 2 + rng.normal(size=rows) > 4).astype(float)
    frame = pd.DataFrame({"amount": amount, "age": age, "city": city, "constant": 3.0, "label": label})
    frame.loc[rng.random(rows) < 0.1, "amount"] = np.nan
    return frame


@pytest.fixture(scope="module")
def pipeline(spark: SparkSession, table: pd.DataFrame) -> PipelineModel:
    numbers = ["filled", "age", "constant"]
    stages = [
        Imputer(inputCols=["amount"], outputCols=["filled"], strategy="median"),
        StringIndexer(inputCols=["city"], outputCols=["place"], handleInvalid="keep"),
        OneHotEncoder(inputCols=["place"], outputCols=["hot"], dropLast=True),
        VectorAssembler(inputCols=numbers, outputCol="numbers"),
        StandardScaler(inputCol="numbers", outputCol="standard", withMean=True),
        MinMaxScaler(inputCol="numbers", outputCol="ranged", min=-2.0, max=1.0),
        MaxAbsScaler(inputCol="numbers", outputCol="relative"),
        VectorAssembler(inputCols=["standard", "ranged", "relative", "hot"], outputCol="features"),
        BSPAUCClassifier(**FAST),
    ]
    return Pipeline(stages=stages).fit(spark.createDataFrame(table))


@pytest.fixture(scope="module")
def logged(pipeline: PipelineModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/runs.db")
    folder = tmp_path_factory.mktemp("artifacts")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("flavour", artifact_location=folder.as_uri()))
    with mlflow.start_run():
        info = bspauc_spark.log_model(pipeline, name="model", registered_model_name="claims")
    yield str(info.model_uri)
    mlflow.set_tracking_uri(before)


def _scores(model: PipelineModel, frame: DataFrame) -> np.ndarray:
    rows = model.transform(frame).select("rawPrediction", "probability", "prediction").collect()
    return np.array([[row[0][1], row[1][1], row[2]] for row in rows])


@pytest.mark.classic
def test_the_spark_flavour_gives_the_scores_of_transform(
    spark: SparkSession, logged: str, pipeline: PipelineModel, table: pd.DataFrame
) -> None:
    frame = spark.createDataFrame(table)
    again = mlflow.spark.load_model(logged)
    assert isinstance(again.stages[-1], BSPAUCModel)
    np.testing.assert_allclose(_scores(again, frame), _scores(pipeline, frame), atol=1e-6)


def test_the_pyfunc_gives_the_scores_of_transform_on_pandas(
    spark: SparkSession, logged: str, pipeline: PipelineModel, table: pd.DataFrame
) -> None:
    unseen = table.head(3).assign(city=["Lima", None, "Oslo"])
    rows = pd.concat([table, unseen], ignore_index=True)
    found = mlflow.pyfunc.load_model(logged).predict(rows.drop(columns="label"))
    expected = _scores(pipeline, spark.createDataFrame(rows))
    np.testing.assert_allclose(found[["score", "probability", "prediction"]].to_numpy(), expected, atol=2e-6)


def test_signature_example_and_requirements_are_there(logged: str) -> None:
    info = mlflow.models.get_model_info(logged)
    assert info.signature.inputs.input_names() == ["amount", "city", "age", "constant"]
    assert info.signature.outputs.input_names() == ["score", "probability", "prediction"]
    folder = Path(mlflow.artifacts.download_artifacts(logged))
    required = (folder / "requirements.txt").read_text().split()
    assert {line.partition("==")[0] for line in required} >= {"bspauc_spark", "torch", "pyspark", "mlflow", "numpy"}
    assert all("==" in line for line in required)
    example = mlflow.models.Model.load(str(folder)).load_input_example(str(folder))
    assert len(mlflow.pyfunc.load_model(logged).predict(example)) == 1


def test_it_can_be_registered(logged: str) -> None:
    assert mlflow.pyfunc.load_model("models:/claims/1").metadata.flavors["python_function"]["loader_module"] == (
        "bspauc_spark.serving"
    )


def test_the_pyfunc_scores_where_pyspark_cannot_be_imported(logged: str, table: pd.DataFrame, tmp_path: Path) -> None:
    folder = mlflow.artifacts.download_artifacts(logged, dst_path=str(tmp_path))
    table.drop(columns="label").head(5).to_json(tmp_path / "rows.json", orient="split")
    code = """
import sys
sys.modules["pyspark"] = None
import mlflow, pandas as pd
rows = pd.read_json(sys.argv[2], orient="split")
print(mlflow.pyfunc.load_model(sys.argv[1]).predict(rows)["score"].tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, folder, str(tmp_path / "rows.json")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected = mlflow.pyfunc.load_model(logged).predict(table.drop(columns="label").head(5))["score"]
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(expected.tolist(), abs=1e-6)


def test_mlflow_models_serve_answers(logged: str, table: pd.DataFrame, tmp_path: Path) -> None:
    folder = mlflow.artifacts.download_artifacts(logged, dst_path=str(tmp_path))
    rows = table.drop(columns="label").head(4)
    with serve(
        ["models", "serve", "--model-uri", folder, "--env-manager", "local"], "/ping", tmp_path / "log"
    ) as server:
        body = json.dumps({"dataframe_split": json.loads(rows.to_json(orient="split"))}).encode()
        request = urllib.request.Request(
            f"{server.url}/invocations", body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = pd.DataFrame(json.loads(answer.read())["predictions"])
    expected = mlflow.pyfunc.load_model(logged).predict(rows)
    np.testing.assert_allclose(found[["score"]].to_numpy(), expected[["score"]].to_numpy(), atol=1e-6)


def test_a_bare_model_takes_a_column_of_arrays(spark: SparkSession, moons: DataFrame, tmp_path: Path) -> None:
    model = BSPAUCClassifier(**FAST).fit(moons)
    flavor.save_model(model, str(tmp_path / "model"))
    rows = moons.limit(7)
    features = [row[0].toArray().tolist() for row in rows.select("features").collect()]
    found = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(pd.DataFrame({"features": features}))
    expected = [row[0][1] for row in model.transform(rows).select("rawPrediction").collect()]
    assert found["score"].tolist() == pytest.approx(expected, abs=1e-6)
    if not is_connect(spark):
        loaded = mlflow.spark.load_model(str(tmp_path / "model")).transform(rows)
        assert [row[0][1] for row in loaded.select("rawPrediction").collect()] == pytest.approx(expected)


def test_a_stage_without_a_plain_form_leaves_the_pyfunc_to_spark(
    spark: SparkSession, table: pd.DataFrame, tmp_path: Path
) -> None:
    stages = [
        Binarizer(inputCol="age", outputCol="old", threshold=50.0),
        VectorAssembler(inputCols=["old", "constant"], outputCol="features"),
        BSPAUCClassifier(**FAST),
    ]
    frame = spark.createDataFrame(table.astype({"age": float}))
    model = Pipeline(stages=stages).fit(frame)
    assert flavor.plain(model) is None
    if is_connect(spark):
        with pytest.raises(InvalidDataError, match="has a stage with no plain form"):
            flavor.save_model(model, str(tmp_path / "model"))
        return
    flavor.save_model(model, str(tmp_path / "model"))
    saved = mlflow.models.Model.load(str(tmp_path / "model"))
    assert saved.flavors["python_function"]["loader_module"] == "mlflow.spark"


@pytest.mark.parametrize(
    ("kind", "codes", "others"),
    [
        ("double", [1e7, 2.5e7, 1e-4, 1.0, 0.1, 1e23, 2e-3, math.inf, -0.0], [1e8, -1e7, 0.0, math.nan]),
        ("float", [1e7, 2.5e7, 1e-4, 1.0, 0.1, 1e23, 2e-3], [1e8, -1e7, 0.0]),
        ("long", [10_000_000, 7, 2**53], [8, 2**53 + 1]),
        ("string", ["01", "1.0E7", "2.50"], ["1", "10000000.0", "2.5", "1e7"]),
    ],
)
def test_categories_that_look_like_numbers_are_those_of_transform(
    spark: SparkSession, kind: str, codes: list[object], others: list[object]
) -> None:
    schema = f"code {kind}, label double"
    rows = spark.createDataFrame([(code, float(i % 2)) for i, code in enumerate(codes * 15)], schema)
    stages = [
        StringIndexer(inputCol="code", outputCol="place", handleInvalid="keep"),
        OneHotEncoder(inputCol="place", outputCol="features", dropLast=False, handleInvalid="keep"),
        BSPAUCClassifier(**FAST),
    ]
    model = Pipeline(stages=stages).fit(rows)
    asked = spark.createDataFrame([(code, 0.0) for code in [*codes, *others]], schema)
    predictor = flavor.plain(model)
    assert predictor is not None
    assert predictor.plan.inputs == {"code": "code"}
    found = predictor.predict(asked.toPandas())["score"]
    assert found.nunique() == len(codes) + 1
    np.testing.assert_allclose(found, _scores(model, asked)[:, 0], atol=1e-6)
