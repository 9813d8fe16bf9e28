"""Models saved through Spark and tampered with, who can read what a fit writes, and what it never tells."""

from __future__ import annotations

import gzip
import json
import logging
import os
import pickle
import re
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.ml import Pipeline
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.cluster.launch import Launch
from bspauc_spark.cluster.preflight import Placement
from bspauc_spark.cluster.rank import Task
from bspauc_spark.command_line.cli import load_model
from bspauc_spark.errors import BSPAUCError, InvalidLabelError, ModelFormatError
from bspauc_spark.rows.kinds import KINDS
from bspauc_spark.rows.shard_task import ShardTask
from bspauc_spark.rows.shards import Shards
from bspauc_spark.rows.staging import Columns, StagedData, stage
from bspauc_spark.rows.storage import DiskFolder
from bspauc_spark.saved import FORMAT_VERSION
from bspauc_spark.serving import Predictor
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from tests.helpers import models
from tests.helpers.fits import FAST
from tests.helpers.leaks import LABEL, SECRET, VALUE, told
from tests.helpers.tampering import DEEP, MISSING, model, with_value

SHARD = re.compile(rf"({'|'.join(KINDS)})-\d{{5}}-[0-9a-f]{{32}}-\d{{5}}\.arrow")


@pytest.fixture(scope="module")
def saved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    BSPAUCModel(models.scorer("mlp")).setPredictionCol("out").save(str(path))
    return path


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "model", ignore=shutil.ignore_patterns("*.crc"))
    return tmp_path / "model"


def metadata_file(path: Path) -> Path:
    (file,) = (path / "metadata").glob("part-*")
    return file


def test_what_is_tampered_with_here_is_good(copy: Path) -> None:
    loaded = BSPAUCModel.load(str(copy))
    assert loaded.getPredictionCol() == "out"
    models.use(loaded)


METADATA: list[tuple[str, Any, str]] = [
    ("class", "os.system", r"holds a os\.system, not a bspauc_spark\.model\.BSPAUCModel: load it with that class"),
    ("class", ["x"], "metadata: class must be text"),
    ("class", MISSING, "metadata: class is missing"),
    ("uid", "../../../../tmp/evil", "metadata: uid must be letters, digits"),
    ("uid", 5, "metadata: uid must be text"),
    ("paramMap", [], "metadata: paramMap must be an object"),
    ("paramMap.stagingDir", "/", "metadata: a Param that this version does not take"),
    ("paramMap.summary", "x", "metadata: a Param that this version does not take"),
    ("paramMap.threshold", "high", "metadata: a Param that this version does not take: .*threshold must be a number"),
    ("paramMap.threshold", float("nan"), "must be a finite number, not nan"),
    ("paramMap.featuresCol", [[[[[[[[[[1]]]]]]]]]], "is nested too deeply"),
    ("defaultParamMap", MISSING, "metadata: defaultParamMap is missing"),
    ("defaultParamMap.__class__", 1, "metadata: a Param that this version does not take"),
    ("sparkVersion", "four", "metadata: a Param that this version does not take"),
]


@pytest.mark.parametrize(("path", "value", "reason"), METADATA, ids=[f"{p}-{str(v)[:20]}" for p, v, _ in METADATA])
def test_changed_metadata_is_refused(spark: SparkSession, copy: Path, path: str, value: Any, reason: str) -> None:
    file = metadata_file(copy)
    file.write_text(json.dumps(with_value(json.loads(file.read_text()), tuple(path.split(".")), value)))
    with pytest.raises(ModelFormatError, match=rf"{copy} .*{reason}"):
        BSPAUCModel.load(str(copy))


@pytest.mark.parametrize("text", ["", "{", '"class uid"', "[1]", "5", DEEP, "\x80\x04\x95"], ids=lambda t: ascii(t[:9]))
def test_metadata_that_are_none_are_refused(spark: SparkSession, copy: Path, text: str) -> None:
    metadata_file(copy).write_text(text)
    with pytest.raises(ModelFormatError, match=rf"the model at {copy} cannot be read: metadata: "):
        BSPAUCModel.load(str(copy))


def test_a_line_of_metadata_that_grows_when_it_is_unpacked_is_never_whole_in_memory(
    spark: SparkSession, copy: Path
) -> None:
    metadata_file(copy).unlink()
    with gzip.open(copy / "metadata" / "part-00000.txt.gz", "wb", 1) as file:
        for _ in range(65):
            file.write(b"x" * (1 << 20))
    with pytest.raises(ModelFormatError, match="cannot be read: metadata: not JSON: Expecting value: line 1 column 1 "):
        BSPAUCModel.load(str(copy))


@pytest.mark.parametrize("part", ["metadata", "stages/0_old/metadata"])
@pytest.mark.parametrize("text", ["", DEEP, '{"class": "no.such.Stage", "uid": "old", "paramMap": {}}', "[]"])
def test_a_job_refuses_a_pipeline_that_is_none(spark: SparkSession, tmp_path: Path, part: str, text: str) -> None:
    head = {"class": "pyspark.ml.pipeline.PipelineModel", "uid": "p", "timestamp": 0, "sparkVersion": "4.0.0"}
    texts = {"metadata": json.dumps({**head, "paramMap": {"stageUids": ["old"]}}), part: text}
    for place, written in texts.items():
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "part-00000").write_text(written)
    with pytest.raises(BSPAUCError, match=f"^--model {tmp_path} is no saved model: |^the model at {tmp_path} "):
        load_model(spark, str(tmp_path))


def test_a_damaged_file_of_a_table_is_named(spark: SparkSession, copy: Path) -> None:
    (file,) = (copy / "data").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-4] + b"PAR2")
    with pytest.raises(ModelFormatError, match=rf"the model at {copy} cannot be read: .*{file.name}"):
        BSPAUCModel.load(str(copy))


def test_a_folder_that_is_missing_or_lacks_a_part_is_an_error_of_ours(spark: SparkSession, copy: Path) -> None:
    for missing in (copy / "data", copy / "metadata"):
        shutil.rmtree(missing)
        with pytest.raises(ModelFormatError, match=f"the model at {copy} is not there, or lacks its folders"):
            BSPAUCModel.load(str(copy))
    with pytest.raises(ModelFormatError, match="is not there"):
        BSPAUCClassifier.load(str(copy))


Rows = list[tuple[Any, Any, Any]]
FROM_THE_FUTURE = {**models.DESCRIPTIONS["mlp"], "formatVersion": FORMAT_VERSION + 1}
GOOD: Rows = [(name, 0, bytearray(blob)) for name, blob in models.BLOBS["mlp"].items()]
TABLES: dict[str, tuple[Callable[[], Rows], str]] = {
    "no chunk": (lambda: [], "lacks model.json and model.safetensors"),
    "one file": (lambda: GOOD[:1], "lacks model.safetensors"),
    "another file": (lambda: [*GOOD, ("../../evil", 0, bytearray(b"x"))], "3 chunks in .* not those of a model"),
    "no name": (lambda: [*GOOD, (None, 0, bytearray(b"x"))], "not those of a model"),
    "no bytes": (lambda: [*GOOD, ("model.json", 1, None)], "a chunk without bytes, or of more than 4,194,304"),
    "a chunk twice": (lambda: [*GOOD, GOOD[0]], "model.json lacks its chunk 1, or has it twice"),
    "a chunk that is missing": (lambda: [*GOOD, ("model.json", 2, bytearray(b"x"))], "model.json lacks its chunk 1"),
    "a negative chunk": (lambda: [*GOOD, ("model.json", -1, bytearray(b"x"))], "model.json lacks its chunk 0"),
    "a long chunk": (lambda: [*GOOD, ("model.json", 1, bytearray((4 << 20) + 1))], "a chunk without bytes, or of more"),
    "a future version": (
        lambda: [(name, 0, bytearray(blob)) for name, blob in model(FROM_THE_FUTURE, models.ARRAYS["mlp"]).items()],
        f"format version {FORMAT_VERSION + 1}, written by bspauc_spark .*Install bspauc_spark",
    ),
}


def rewrite(frame: DataFrame, path: Path) -> None:
    frame.coalesce(1).write.mode("overwrite").option("compression", "gzip").parquet(str(path / "data"))


@pytest.mark.parametrize("case", TABLES)
def test_a_changed_table_of_chunks_is_refused(spark: SparkSession, copy: Path, case: str) -> None:
    rows, reason = TABLES[case]
    rewrite(spark.createDataFrame(rows(), "name string, part int, chunk binary"), copy)
    with pytest.raises(ModelFormatError, match=reason):
        BSPAUCModel.load(str(copy))


def test_a_table_of_other_types_is_refused(spark: SparkSession, copy: Path) -> None:
    rewrite(spark.createDataFrame([(1, "0", 2.5)], "name int, part string, chunk double"), copy)
    with pytest.raises(ModelFormatError, match=rf"the model at {copy}"):
        BSPAUCModel.load(str(copy))


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("place", ["metadata", "name", "chunk"])
def test_a_pickle_in_a_saved_model_is_not_run(spark: SparkSession, copy: Path, tmp_path: Path, place: str) -> None:
    marker = tmp_path / "marker"
    data = pickle.dumps(Payload(marker), protocol=0)
    pickle.loads(data)
    marker.rmdir()
    if place == "metadata":
        metadata_file(copy).write_bytes(data)
    else:
        row = (data.decode(), 0, bytearray(b"x")) if place == "name" else ("model.json", 0, bytearray(data))
        rewrite(spark.createDataFrame([row, GOOD[1]], "name string, part int, chunk binary"), copy)
    with pytest.raises(ModelFormatError, match=str(copy)):
        BSPAUCModel.load(str(copy))
    assert not marker.exists()


def test_a_few_bytes_that_stand_for_very_many_are_never_brought_to_the_driver(spark: SparkSession, copy: Path) -> None:
    chunk = sf.repeat(sf.lit("\0"), sf.lit(4 << 20)).cast("binary")
    frame = spark.range(20).select(sf.lit("model.safetensors").alias("name"), sf.col("id").cast("int").alias("part"))
    rewrite(frame.withColumn("chunk", chunk), copy)
    stored = sum(file.stat().st_size for file in (copy / "data").glob("*.parquet"))
    assert stored < 200_000
    with pytest.raises(ModelFormatError, match=r"20 chunks in [\d,]+ bytes are not those of a model"):
        BSPAUCModel.load(str(copy))


def test_loading_a_model_as_the_estimator_names_both_classes(saved: Path) -> None:
    with pytest.raises(
        ModelFormatError,
        match=r"holds a bspauc_spark\.model\.BSPAUCModel, not a bspauc_spark\.estimator\.BSPAUCClassifier: load it",
    ):
        BSPAUCClassifier.load(str(saved))


def test_an_estimator_comes_back_alone_and_in_a_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    estimator = BSPAUCClassifier(rounds=3, hiddenLayers=[4, 2], positiveLabel=2.0)
    estimator.save(str(tmp_path / "alone"))
    Pipeline(stages=[estimator]).save(str(tmp_path / "pipeline"))
    pipeline = Pipeline.load(str(tmp_path / "pipeline"))
    for again in (BSPAUCClassifier.load(str(tmp_path / "alone")), pipeline.getStages()[0]):
        assert isinstance(again, BSPAUCClassifier)
        assert again.uid == estimator.uid
        assert {p.name: v for p, v in again.extractParamMap().items()} == {
            p.name: v for p, v in estimator.extractParamMap().items()
        }


def test_a_class_that_a_saved_estimator_names_is_not_even_imported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "payload.py").write_text("raise SystemExit('code of the file was run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    BSPAUCClassifier().save(str(tmp_path / "estimator"))
    file = metadata_file(tmp_path / "estimator")
    for crc in file.parent.glob(".*.crc"):
        crc.unlink()
    file.write_text(json.dumps({**json.loads(file.read_text()), "class": "payload.Stage"}))
    for cls in (BSPAUCClassifier, BSPAUCModel):
        with pytest.raises(ModelFormatError, match=r"holds a payload\.Stage, not a bspauc_spark"):
            cls.load(str(tmp_path / "estimator"))
    assert "payload" not in sys.modules


def test_shards_are_the_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    features = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32()))
    columns = {"features": features, "label": [1.0, 0.0], "validation": [False, False], "hash": [1, 2]}
    before = os.umask(0)
    try:
        list(ShardTask(str(tmp_path), 1.0, 2, False)(iter([pa.RecordBatch.from_pydict(columns)])))
    finally:
        os.umask(before)
    assert len(list(tmp_path.iterdir())) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_names_from_data_never_reach_the_file_system_and_nobody_else_reads_the_staged_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    features, label, held = "../../features", "/etc/label\n", "..\\held;rm -rf"
    schema = st.StructType(
        [*_field(features, VectorUDT()), *_field(label, st.DoubleType()), *_field(held, st.BooleanType())]
    )
    rows = [(Vectors.dense(float(i), 2.0), float(i % 2), i % 4 < 2) for i in range(8)]
    (tmp_path / "staging").mkdir()
    columns = Columns(features, label, held, 1.0, True)
    staged = stage(spark.createDataFrame(rows, schema), columns, str(tmp_path / "staging"))
    assert [path.name for path in tmp_path.iterdir()] == ["staging"]
    (folder,) = (tmp_path / "staging").iterdir()
    assert re.fullmatch(r"bspauc-[a-z0-9_]{8}", folder.name)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) >= 4
    assert all(SHARD.fullmatch(path.name) for path in files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    staged.remove()


def _field(name: str, kind: st.DataType) -> list[st.StructField]:
    return [st.StructField(name, kind)]


def test_a_launch_speaks_in_a_folder_of_its_owner_alone_with_a_name_nobody_guesses(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = TrainingSettings("sgd", 0.1, 8, 1, 0.0, "all", 0.0, 0)
    task = Task(Shards(str(tmp_path), {}, 2, False), NetworkSpec("linear", 2), settings)
    launch = Launch(spark, task, 1, local=True)
    assert isinstance(launch.folder, DiskFolder)
    path = launch.folder.path
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert re.fullmatch(r"[0-9a-f]{32}", path.name)
    launch.end()
    assert not path.exists()


def test_nothing_of_a_row_and_no_secret_reaches_logs_tags_or_the_terminal(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rng = np.random.default_rng(0)
    rows = [(Vectors.dense(*rng.normal(size=3), VALUE), 1.0 if i % 3 else LABEL) for i in range(60)]
    frame = spark.createDataFrame(rows, ["features", "label"])
    (tmp_path / "staging").mkdir()
    where = dict.fromkeys(("stagingDir", "checkpointDir"), f"file://key:{SECRET}@localhost{tmp_path}/staging")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    try:
        artifacts = mlflow.create_experiment("secrets", artifact_location=(tmp_path / "artifacts").as_uri())
        with caplog.at_level(logging.DEBUG, logger="bspauc_spark"), mlflow.start_run(experiment_id=artifacts) as run:
            fitted = BSPAUCClassifier(**{**FAST, "verbose": True}, **where).fit(frame)
        data = mlflow.MlflowClient().get_run(run.info.run_id).data
    finally:
        mlflow.set_tracking_uri(before)
    out, err = capfd.readouterr()
    said = "\n".join([out, err, caplog.text, str(data.tags), str(data.params), str(data.metrics)])
    said += "".join(
        file.read_text() for file in (tmp_path / "artifacts").rglob("*") if file.suffix in (".json", ".html")
    )
    assert "train_auc" in said
    assert "round 1" in said
    assert f"file://localhost{tmp_path}/staging" in said
    assert not told(said)

    _check_errors(frame, fitted)


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (BSPAUCModel.load, "No FileSystem for scheme"),
        (BSPAUCClassifier.load, "No FileSystem for scheme"),
        (BSPAUCModel.loadLocal, "is no path of this machine"),
        (Predictor.load, "is no path of this machine"),
        (None, "No FileSystem for scheme"),
    ],
    ids=["model", "estimator", "local", "served", "job"],
)
def test_an_error_about_what_cannot_be_loaded_tells_no_credentials(
    spark: SparkSession, load: Callable[[str], Any] | None, reason: str
) -> None:
    place = f"nowhere://key:{SECRET}@bucket/model"
    with pytest.raises(BSPAUCError, match=rf"nowhere:/+bucket/model.*{reason}") as raised:
        load(place) if load is not None else load_model(spark, place)
    assert not told(str(raised.value))


def test_credentials_in_a_path_are_not_kept_with_the_params() -> None:
    classifier = BSPAUCClassifier(stagingDir="s3://key:hunter2@bucket/path?token=hunter2")
    staged = StagedData(Shards("", {}, 2, False), {}, (0.0, 1.0), 1.0, "abc")
    about = classifier._about(Placement(), staged)
    assert about["params"]["stagingDir"] == "s3://bucket/path"
    assert "hunter2" not in str(about)


def _check_errors(frame: DataFrame, fitted: BSPAUCModel) -> None:
    """Errors of fit and of transform about the same rows."""
    three = frame.withColumn("label", sf.when(sf.rand(0) < 0.3, 5.0).otherwise(sf.col("label")))
    with pytest.raises(InvalidLabelError, match="more than two labels") as raised:
        BSPAUCClassifier().fit(three)
    assert not told(str(raised.value))
    with pytest.raises(InvalidLabelError, match="no training row") as raised:
        BSPAUCClassifier(positiveLabel=9.0).fit(frame)
    assert not told(str(raised.value))
    spoil = sf.udf(lambda v: Vectors.dense(*v[:3], VALUE, float("nan")), VectorUDT())
    with pytest.raises(PythonException) as failed:
        fitted.transform(frame.withColumn("features", spoil("features"))).collect()
    assert "InvalidFeaturesError" in str(failed.value)
    assert not told(str(failed.value))
