"""Models in MLflow: both flavours loaded back, served over HTTP, and where Spark cannot be imported."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyspark
import pytest
import torch
from mlflow.store._unity_catalog.registry.rest_store import UcModelRegistryStore
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import (
    Binarizer,
    Bucketizer,
    HashingTF,
    Imputer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    RegexTokenizer,
    SQLTransformer,
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
        BSPAUCClassifier(rounds=2, verbose=False),
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
    assert [(spec.name, spec.type.name) for spec in info.signature.inputs] == [
        *[("amount", "double"), ("city", "string"), ("age", "double"), ("constant", "double")]
    ]
    assert [(spec.name, spec.type.name) for spec in info.signature.outputs] == [
        *[("score", "double"), ("probability", "double"), ("prediction", "double")]
    ]
    folder = Path(mlflow.artifacts.download_artifacts(logged))
    required = (folder / "requirements.txt").read_text().split()
    assert {line.partition("==")[0] for line in required} >= {"torch", "pyspark", "mlflow", "numpy"}
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in required)
    assert "bspauc" not in "".join((folder / name).read_text() for name in ("conda.yaml", "requirements.txt"))


def assert_unity_catalog_takes(folder: str) -> None:
    """The checks that MLflow's client for Unity Catalog makes, and what its backend asks of a signature's types."""
    store = object.__new__(UcModelRegistryStore)
    store._validate_model_signature(folder)
    store._download_model_weights_if_not_saved(folder)
    described = mlflow.models.Model.load(folder)
    assert "any" not in re.findall(r'"type": "(\w+)"', str(described.signature.to_dict()))
    if "array" not in str(described.signature.to_dict()):
        # MLflow has no Spark type for arrays.
        assert described.signature.inputs.as_spark_schema().names == described.signature.inputs.input_names()
    assert len(described.signature.outputs.as_spark_schema()) == 3
    example = described.load_input_example(folder)
    assert len(mlflow.pyfunc.load_model(folder).predict(example)) == 1


def test_unity_catalog_takes_it(logged: str) -> None:
    assert_unity_catalog_takes(mlflow.artifacts.download_artifacts(logged))


def test_whole_numbers_are_welcome_where_the_model_reads_doubles(logged: str, table: pd.DataFrame) -> None:
    model = mlflow.pyfunc.load_model(logged)
    rows = table.drop(columns="label").dropna().head(5)
    expected = model.predict(rows.astype({"age": float}))
    for kind in ("int64", "int32", "int8", "uint64", "float32"):
        pd.testing.assert_frame_equal(model.predict(rows.astype({"age": kind, "constant": kind})), expected)
    with pytest.raises(mlflow.MlflowException, match="Can not safely convert int64 to float64"):
        model.predict(rows.assign(age=2**53 + 1))


def test_other_models_are_checked_by_mlflow_as_before(logged: str, tmp_path: Path) -> None:
    mlflow.pyfunc.load_model(logged)

    class Plain(mlflow.pyfunc.PythonModel):
        def predict(self, context: object, model_input: pd.DataFrame) -> pd.DataFrame:
            return model_input

    signature = mlflow.models.infer_signature(pd.DataFrame({"x": [0.5]}))
    mlflow.pyfunc.save_model(str(tmp_path / "other"), python_model=Plain(), signature=signature, pip_requirements=[])
    with pytest.raises(mlflow.MlflowException, match="Can not safely convert int64 to float64"):
        mlflow.pyfunc.load_model(str(tmp_path / "other")).predict(pd.DataFrame({"x": [7]}))


BLOCKED = """
import sys
from importlib.machinery import PathFinder

class OnlyFromAModel:
    # As on a machine that never had the package: it is found in a model's folder of code, or nowhere.
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pyspark":
            raise ModuleNotFoundError(name)
        if name == "bspauc_spark":
            found = PathFinder.find_spec(name, [place for place in sys.path if place.endswith("/code")])
            if found is None:
                raise ModuleNotFoundError(name)
            return found

sys.meta_path.insert(0, OnlyFromAModel)
"""


def test_the_pyfunc_scores_where_the_package_was_never_installed(
    logged: str, table: pd.DataFrame, tmp_path: Path
) -> None:
    folder = mlflow.artifacts.download_artifacts(logged, dst_path=str(tmp_path))
    table.drop(columns="label").head(5).to_json(tmp_path / "rows.json", orient="split")
    code = f"""{BLOCKED}
try:
    import bspauc_spark
except ModuleNotFoundError:
    import mlflow, pandas as pd
    rows = pd.read_json(sys.argv[2], orient="split")
    print(mlflow.pyfunc.load_model(sys.argv[1]).predict(rows)["score"].tolist())
    print(sys.modules["bspauc_spark"].__file__)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, folder, str(tmp_path / "rows.json")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
        env={"HOME": str(tmp_path), "JAVA_HOME": "/nowhere", "PATH": "/nowhere"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found, place = done.stdout.splitlines()[-2:]
    assert place == str(Path(folder) / "code" / "bspauc_spark" / "__init__.py")
    expected = mlflow.pyfunc.load_model(logged).predict(table.drop(columns="label").head(5))["score"]
    assert json.loads(found) == pytest.approx(expected.tolist(), abs=1e-6)


def test_the_code_that_goes_with_a_model_is_the_package_and_no_more(logged: str) -> None:
    folder = Path(mlflow.artifacts.download_artifacts(logged)) / "code"
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    package = Path(bspauc_spark.__file__).parent
    modules = {path.relative_to(package.parent) for path in package.rglob("*.py")}
    assert {path.relative_to(folder) for path in files if path.suffix == ".py"} == modules
    assert {path.suffix for path in files} <= {".py", ".html", ".typed"}
    assert not any("test" in part for path in files for part in path.relative_to(folder).parts)
    assert sum(path.stat().st_size for path in files) < 1_000_000


def test_code_of_the_user_goes_too(moons: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    model = BSPAUCClassifier(**FAST).fit(moons)
    flavor.save_model(model, str(tmp_path / "model"), code_paths=[str(tmp_path / "helper.py")])
    assert {path.name for path in (tmp_path / "model" / "code").iterdir()} == {"helper.py", "bspauc_spark"}


def test_the_package_goes_once_where_the_user_gives_it(tmp_path: Path) -> None:
    given = [str(Path(bspauc_spark.__file__).parent)]
    assert flavor._with_own_code(given, tmp_path) == given
    assert [Path(path).name for path in flavor._with_own_code([], tmp_path)] == ["bspauc_spark"]


def test_the_package_is_copied_out_of_an_archive(tmp_path: Path) -> None:
    package = Path(bspauc_spark.__file__).parent
    shutil.make_archive(str(tmp_path / "package"), "zip", package.parent, package.name)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path / "package.zip")!r})
from pathlib import Path
from bspauc_spark.results import served
assert "package.zip" in served.__file__
served.copy_code(Path({str(tmp_path)!r}))
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": ""})
    copied = {path.relative_to(tmp_path / "bspauc_spark") for path in (tmp_path / "bspauc_spark").rglob("*.py")}
    assert copied == {path.relative_to(package) for path in package.rglob("*.py")}


def test_versions_come_from_the_modules_where_there_is_no_distribution(
    moons: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Databricks' ML runtimes have mlflow-skinny, a pyspark that nobody installed, and this package as a file."""
    find = importlib.metadata.distribution

    def distribution(name: str) -> importlib.metadata.Distribution:
        if name in ("mlflow", "pyspark", "bspauc_spark", "torch"):
            raise importlib.metadata.PackageNotFoundError(name)
        return find(name)

    model = BSPAUCClassifier(**FAST).fit(moons)
    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    monkeypatch.setattr(pyspark, "__version__", "4.0.0.dev2")
    monkeypatch.setattr(torch, "__version__", "2.8.0+cu126")
    flavor.save_model(model, str(tmp_path / "model"))
    required = (tmp_path / "model" / "requirements.txt").read_text().split()
    assert {f"mlflow=={mlflow.__version__}", "pyspark==4.0.0", "torch==2.8.0"} <= set(required)


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


def test_mlflow_models_serve_answers_where_the_package_was_never_installed(
    logged: str, table: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
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


@pytest.fixture(scope="module")
def old(spark: SparkSession, table: pd.DataFrame) -> PipelineModel:
    """A pipeline with stages that need Spark; its classifier leaves an output out."""
    stages = [
        SQLTransformer(statement="SELECT *, upper(city) AS place FROM __THIS__"),
        Binarizer(inputCol="age", outputCol="old", threshold=50.0),
        StringIndexer(inputCol="place", outputCol="index", handleInvalid="keep"),
        VectorAssembler(inputCols=["old", "constant", "index"], outputCol="features"),
        BSPAUCClassifier(**FAST, rawPredictionCol=""),
    ]
    return Pipeline(stages=stages).fit(spark.createDataFrame(table.astype({"age": float})))


def test_a_pipeline_that_needs_spark_is_served_by_spark_as_one_that_does_not(
    spark: SparkSession, old: PipelineModel, table: pd.DataFrame, tmp_path: Path
) -> None:
    assert flavor.plain(old) is None
    folder, rows = str(tmp_path / "model"), table.drop(columns="label").set_index(table.index + 7).head(40)
    if is_connect(spark):
        with pytest.raises(InvalidDataError, match="has a stage with no plain form"):
            flavor.save_model(old, folder)
        return
    # What a query reads is not told by its stage.
    with pytest.raises(InvalidDataError, match=r"cannot be told from its stages. Give .* as input_example"):
        flavor.save_model(old, folder)
    flavor.save_model(old, folder, input_example=rows.drop(columns="amount").head(1))
    assert_unity_catalog_takes(folder)
    model = mlflow.pyfunc.load_model(folder)
    assert model.metadata.flavors["python_function"]["loader_module"] == "bspauc_spark.flavor"
    found = model.predict(rows)
    whole = old.transform(spark.createDataFrame(rows.astype({"age": float}))).select("probability", "prediction")
    assert found["probability"].tolist() == pytest.approx([row[0][1] for row in whole.collect()])
    assert found["prediction"].tolist() == [row[1] for row in whole.collect()]
    assert found["score"].nunique() > 2
    assert found.index.equals(rows.index)
    with pytest.raises(mlflow.MlflowException, match="missing inputs"):
        model.predict(rows.drop(columns="age"))


@pytest.mark.classic
@pytest.mark.parametrize(
    ("stages", "types"),
    [
        (
            lambda: [
                Binarizer(inputCol="age", outputCol="old", threshold=50.0),
                VectorAssembler(inputCols=["old", "constant"], outputCol="features"),
            ],
            {"age": "double", "constant": "double"},
        ),
        (
            lambda: [
                RegexTokenizer(inputCol="city", outputCol="words", pattern="o"),
                HashingTF(inputCol="words", outputCol="features", numFeatures=8),
            ],
            {"city": "string"},
        ),
        (
            lambda: [
                Imputer(inputCols=["amount"], outputCols=["filled"]),
                StringIndexer(inputCol="city", outputCol="place", handleInvalid="error"),
                Bucketizer(inputCol="filled", outputCol="part", splits=[-math.inf, 50.0, math.inf]),
                VectorAssembler(inputCols=["place", "part"], outputCol="features"),
            ],
            {"amount": "double", "city": "string"},
        ),
        (
            lambda: [Normalizer(inputCol="numbers", outputCol="features")],
            {"numbers": "Array(double)"},
        ),
    ],
    ids=["numbers", "text", "text to index", "vectors"],
)
def test_what_a_pipeline_with_stages_of_spark_reads_is_told_by_its_stages(
    spark: SparkSession, table: pd.DataFrame, tmp_path: Path, stages: Callable[[], list[Any]], types: dict[str, str]
) -> None:
    frame = spark.createDataFrame(table.astype({"age": float}))
    vectors = VectorAssembler(inputCols=["age", "constant"], outputCol="numbers").transform(frame)
    model = Pipeline(stages=[*stages(), BSPAUCClassifier(**FAST)]).fit(vectors)
    flavor.save_model(model, str(tmp_path / "model"))
    assert_unity_catalog_takes(str(tmp_path / "model"))
    signature = mlflow.models.Model.load(str(tmp_path / "model")).signature
    assert {spec.name: getattr(spec.type, "name", str(spec.type)) for spec in signature.inputs} == types
    rows = vectors.limit(9).toPandas()
    rows["numbers"] = [vector.toArray().tolist() for vector in rows["numbers"]]
    found = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(rows[list(types)])
    np.testing.assert_allclose(found.to_numpy(), _scores(model, vectors.limit(9)), atol=1e-6)


@pytest.mark.classic
def test_rows_that_a_stage_leaves_out_are_an_error_and_not_another_rows_score(
    spark: SparkSession, table: pd.DataFrame, tmp_path: Path
) -> None:
    stages = [
        Binarizer(inputCol="age", outputCol="old", threshold=50.0),
        VectorAssembler(inputCols=["old", "amount"], outputCol="features", handleInvalid="skip"),
        BSPAUCClassifier(**FAST),
    ]
    model = Pipeline(stages=stages).fit(spark.createDataFrame(table.astype({"age": float})))
    flavor.save_model(model, str(tmp_path / "model"))
    gaps = table["amount"].head(50).isna().sum()
    with pytest.raises(InvalidDataError, match=rf"{gaps} of 50 rows were left out by a stage"):
        mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(table.head(50))


@pytest.mark.classic
def test_a_pipeline_without_our_model_is_left_to_mlflow(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match=r"has no BSPAUCModel. Log it with mlflow\.spark\.log_model"):
        flavor.save_model(PipelineModel([Binarizer(inputCol="age", outputCol="old")]), str(tmp_path / "model"))


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
