"""Models that earlier versions saved load in this one and give the scores they gave then.

The folders ``tests/fixtures/model-format-<N>`` were written once, by the version that introduced the format, and must
never be regenerated: when these tests fail, the reading is to be mended. A new format gets a folder of its own with the
release that completes it; until then the changelog names it as unreleased, and it may still change. The files of a
folder get lines in ``tests/fixtures/SHA256SUMS``: ``sha256sum`` of each, by its path.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession
from scipy import sparse

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.saved import FORMAT_VERSION
from bspauc_spark.serving import Predictor

FIXTURES = Path(__file__).parents[1] / "fixtures"
SAVED = sorted(path.parent for path in FIXTURES.glob("model-format-*/*/rows.json"))
NAMES = [f"{path.parent.name}-{path.name}" for path in SAVED]


def then(folder: Path) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Some rows, and what the model said of them when it was saved."""
    stored = json.loads((folder / "rows.json").read_text())
    return stored["rows"], {name: np.array([row[name] for row in stored["given"]]) for name in stored["given"][0]}


def test_there_are_models_of_every_format_that_was_released() -> None:
    _, unreleased, *_ = (FIXTURES.parents[1] / "CHANGELOG.md").read_text().split("\n## ")
    assert unreleased.startswith("Unreleased")
    still_changes = re.search(rf"format\s+version\s+{FORMAT_VERSION}\b", unreleased) is not None
    kinds = ("mlp", "sparse", "kernel")
    released = range(1, FORMAT_VERSION + (not still_changes))
    assert {f"model-format-{n}-{kind}" for n in released for kind in kinds} <= set(NAMES)


def test_no_saved_file_was_written_anew() -> None:
    listed = dict(reversed(line.split("  ", 1)) for line in (FIXTURES / "SHA256SUMS").read_text().splitlines())
    files = [path for folder in FIXTURES.glob("*/") for path in folder.rglob("*") if path.is_file()]
    assert {str(p.relative_to(FIXTURES)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files} == listed


@pytest.mark.parametrize("folder", SAVED, ids=NAMES)
def test_a_model_saved_without_spark_gives_the_scores_it_gave(folder: Path) -> None:
    rows, given = then(folder)
    model = BSPAUCModel.loadLocal(folder / "local")
    dense = np.zeros((len(rows), rows[0]["size"]))
    for place, row in enumerate(rows):
        dense[place, row["indices"]] = row["values"]
    for features in (dense, sparse.csr_matrix(dense)):
        np.testing.assert_allclose(model.score_numpy(features), given["score"], rtol=0, atol=1e-6)
    scores, label = given["score"].astype(np.float32), np.array([row["label"] == 2.0 for row in rows])
    found = model.scorer
    np.testing.assert_allclose(found.label_noise.probability(scores), given["probability"], atol=1e-6)
    np.testing.assert_allclose(found.label_noise.suspicion(scores, label), given["suspicion"], atol=1e-6)
    np.testing.assert_allclose(found.curves.losses(scores, label), given["loss"], atol=1e-6)
    assert model.summary.history["round"].tolist() == [1, 2]


@pytest.mark.parametrize("folder", SAVED, ids=NAMES)
def test_a_model_saved_through_spark_gives_the_rows_it_gave(spark: SparkSession, folder: Path) -> None:
    rows, given = then(folder)
    model = BSPAUCModel.load(str(folder / "spark"))
    assert (model.getPositiveLabel(), model.getPredictionCol(), model.numFeatures) == (2.0, "out", rows[0]["size"])
    vectors = [(n, Vectors.sparse(r["size"], r["indices"], r["values"]), r["label"]) for n, r in enumerate(rows)]
    frame = spark.createDataFrame(vectors, ["row", "features", "label"]).coalesce(1)
    table = model.audit(model.transform(frame)).orderBy("row").toPandas()
    table["probability"] = [value[1] for value in table["probability"]]
    for name, values in given.items():
        column = "out" if name == "prediction" else name
        np.testing.assert_allclose(table[column], values, rtol=0, atol=1e-6, err_msg=name)


def test_a_pipeline_saved_to_be_served_gives_the_rows_it_gave(tmp_path: Path) -> None:
    served = FIXTURES / "model-format-1" / "served"
    shutil.copytree(served.parent / "mlp" / "local", tmp_path, dirs_exist_ok=True)
    shutil.copy(served / "steps.json", tmp_path)
    stored = json.loads((served / "table.json").read_text())
    found = Predictor.load(tmp_path).predict(pd.DataFrame(stored["rows"]))
    # What Spark's own stages and the model gave.
    np.testing.assert_allclose(found, pd.DataFrame(stored["given"]), rtol=0, atol=1e-6)


def test_a_saved_estimator_has_the_params_it_had(spark: SparkSession) -> None:
    folder = FIXTURES / "model-format-1" / "estimator"
    (file,) = (folder / "metadata").glob("part-*")
    stored = json.loads(file.read_text())
    estimator = BSPAUCClassifier.load(str(folder))
    values = {**stored["defaultParamMap"], **stored["paramMap"]}
    assert {name: estimator.getOrDefault(name) for name in values} == values
    assert {param.name for param in estimator.params if estimator.isSet(param)} == set(stored["paramMap"])
