"""Models in MLflow: one that ``mlflow.spark`` loads, and that MLflow serves with neither Spark nor Java.

import bspauc_spark
bspauc_spark.log_model(pipeline_model, name="model")
"""

from __future__ import annotations

import importlib.metadata
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pyspark import SparkContext
from pyspark.ml import Model, PipelineModel
from pyspark.ml import feature as spark_features
from pyspark.sql.utils import is_remote

from bspauc_spark.errors import InvalidDataError, MalformedError
from bspauc_spark.model import BSPAUCModel
from bspauc_spark.rows.categories import are_flags
from bspauc_spark.serving import OUTPUTS, Predictor, ServedSteps, Step, check_widths

if TYPE_CHECKING:
    from mlflow.models.model import Model as MLflowModel
    from mlflow.models.model import ModelInfo
    from mlflow.models.signature import ModelSignature

_DATA = "bspauc"
_REQUIRED = ("bspauc_spark", "mlflow", "pyspark", "torch", "numpy", "pandas", "pyarrow", "safetensors")


def log_model(model: Model, name: str = "model", **options: Any) -> ModelInfo:
    """Log a ``BSPAUCModel``, or a ``PipelineModel`` that ends in one, to the active MLflow run.

    ``mlflow.spark.load_model`` gives it back for Spark, ``mlflow.pyfunc.load_model`` for pandas, without Spark where
    every stage before the model has a plain form: Imputer, StringIndexer, OneHotEncoder, VectorAssembler,
    StandardScaler, MinMaxScaler and MaxAbsScaler have. A client of Spark Connect logs the latter form alone.
    ``options`` are those of :func:`save_model` and of MLflow's ``Model.log``, such as ``registered_model_name``.
    """
    from mlflow.models import Model as MLflowModel

    info: ModelInfo = MLflowModel.log(
        artifact_path=None, name=name, flavor=sys.modules[__name__], spark_model=model, **options
    )
    return info


def save_model(
    spark_model: Model,
    path: str,
    mlflow_model: MLflowModel | None = None,
    signature: ModelSignature | None = None,
    input_example: Any = None,
    extra_pip_requirements: list[str] | None = None,
    code_paths: list[str] | None = None,
    **options: Any,
) -> None:
    """Write the model in MLflow's format into the local folder ``path``."""
    import mlflow.pyfunc
    import mlflow.spark
    from mlflow.models import Model as MLflowModel

    described = mlflow_model or MLflowModel()
    predictor = plain(spark_model)
    if predictor is not None:
        input_example = _example(predictor) if input_example is None else input_example
        signature = _signature(predictor) if signature is None else signature
    told = {
        "mlflow_model": described,
        "signature": signature,
        "input_example": input_example,
        # Given and not inferred: MLflow would start another process and load the model there.
        "pip_requirements": [*_requirements(), *(extra_pip_requirements or [])],
        "code_paths": code_paths,
        **options,
    }
    if is_remote() and SparkContext._gateway is None:
        _save_plain(predictor, path, told)
        return
    mlflow.spark.save_model(spark_model, path, **told)
    if predictor is not None:
        predictor.save(Path(path) / _DATA)
        kept = {key: described.flavors[mlflow.pyfunc.FLAVOR_NAME].get(key) for key in ("env", "code")}
        mlflow.pyfunc.add_to_model(
            described,
            loader_module="bspauc_spark.serving",
            data=_DATA,
            code=kept["code"],
            conda_env=kept["env"]["conda"],
            python_env=kept["env"]["virtualenv"],
        )
        described.save(str(Path(path) / "MLmodel"))


def _save_plain(predictor: Predictor | None, path: str, told: Mapping[str, Any]) -> None:
    """The pyfunc alone: MLflow copies a Spark model through a JVM, and a client of Spark Connect has none."""
    import mlflow.pyfunc

    if predictor is None:
        raise InvalidDataError(
            "a client of Spark Connect can give MLflow only pipelines that work without Spark, and this one has a "
            "stage with no plain form. Save it by model.write().save(path), or log it from a classic session."
        )
    with tempfile.TemporaryDirectory() as folder:
        predictor.save(Path(folder) / _DATA)
        mlflow.pyfunc.save_model(
            path, loader_module="bspauc_spark.serving", data_path=str(Path(folder) / _DATA), **told
        )


def plain(model: Model) -> Predictor | None:
    """``model`` without Spark, or None where one of its stages, or what they hand on, has no plain form."""
    *before, last = _stages(model)
    if not isinstance(last, BSPAUCModel):
        return None
    steps: list[Step] = []
    for stage in before:
        translate = _PLAIN.get(type(stage).__name__)
        if translate is None:
            return None
        steps += translate(stage)
    plan = ServedSteps(
        steps=steps,
        features=last.getFeaturesCol(),
        positive_label=last.getPositiveLabel(),
        threshold=last.getThreshold(),
        inputs=_inputs(steps),
    )
    try:
        check_widths(plan, last.scorer.spec.num_features)
    except MalformedError:
        return None
    return Predictor(last.scorer, plan)


def _stages(model: Model) -> list[Any]:
    if isinstance(model, PipelineModel):
        return [inner for stage in model.stages for inner in _stages(stage)]  # type: ignore[arg-type]
    return [model]


def _inputs(steps: list[Step]) -> dict[str, str]:
    """Columns that are read before a step makes them."""
    made: set[str] = set()
    read: dict[str, str] = {}
    for step in steps:
        for name in step.get("inputs", [step.get("input")]):
            if name not in made:
                read.setdefault(name, _kind(step))
        made.add(step["output"])
    return read


def _kind(step: Step) -> str:
    if step["kind"] != "index":
        return "number"
    # Whole numbers and doubles as Spark writes them, and text that looks like them, such as 01.
    number = r"-?(\d+(\.\d+)?(E-?\d+)?|Infinity)"
    labels = step["labels"]
    return "code" if are_flags(labels) or all(re.fullmatch(number, label) for label in labels) else "text"


def _columns(stage: Any) -> Iterator[tuple[str, str]]:
    """Input and output columns of a stage that takes one or several."""
    if stage.isSet("inputCols"):
        return zip(stage.getInputCols(), stage.getOutputCols(), strict=True)
    return iter([(stage.getInputCol(), stage.getOutputCol())])


def _index(stage: spark_features.StringIndexerModel) -> list[Step]:
    return [
        {"kind": "index", "input": given, "output": made, "labels": list(labels), "invalid": stage.getHandleInvalid()}
        for (given, made), labels in zip(_columns(stage), stage.labelsArray, strict=True)
    ]


def _one_hot(stage: spark_features.OneHotEncoderModel) -> list[Step]:
    common = {"kind": "one_hot", "drop_last": bool(stage.getDropLast()), "invalid": stage.getHandleInvalid()}
    return [
        {**common, "input": given, "output": made, "size": int(size)}
        for (given, made), size in zip(_columns(stage), stage.categorySizes, strict=True)
    ]


def _assemble(stage: spark_features.VectorAssembler) -> list[Step]:
    names, made = stage.getInputCols(), stage.getOutputCol()
    return [{"kind": "assemble", "inputs": list(names), "output": made, "invalid": stage.getHandleInvalid()}]


def _impute(stage: spark_features.ImputerModel) -> list[Step]:
    values, missing = stage.surrogateDF.first(), stage.getMissingValue()
    assert values is not None
    common = {"kind": "impute", "missing": None if math.isnan(missing) else missing}
    return [{**common, "input": given, "output": made, "value": values[given]} for given, made in _columns(stage)]


def _standard(stage: spark_features.StandardScalerModel) -> list[Step]:
    deviation = stage.std.toArray()
    # As Spark does: a column that never varies becomes 0.
    factor = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation != 0)
    return _scaled(
        stage,
        stage.mean.toArray() if stage.getWithMean() else 0.0 * deviation,
        factor if stage.getWithStd() else np.ones_like(deviation),
    )


def _min_max(stage: spark_features.MinMaxScalerModel) -> list[Step]:
    low, high = stage.originalMin.toArray(), stage.originalMax.toArray()
    width = stage.getMax() - stage.getMin()
    factor = np.divide(width, high - low, out=np.zeros_like(low), where=high != low)
    # As Spark does: a column that never varies becomes the middle.
    return _scaled(stage, low, factor, np.where(high == low, (stage.getMax() + stage.getMin()) / 2, stage.getMin()))


def _max_abs(stage: spark_features.MaxAbsScalerModel) -> list[Step]:
    largest = stage.maxAbs.toArray()
    return _scaled(stage, 0.0 * largest, 1.0 / np.where(largest == 0, 1.0, largest))


def _scaled(stage: Any, shift: Any, factor: Any, offset: Any = 0.0) -> list[Step]:
    values = {"shift": shift, "factor": factor, "offset": np.broadcast_to(offset, np.shape(factor))}
    plain_values = {name: np.asarray(value, dtype=np.float64).tolist() for name, value in values.items()}
    return [{"kind": "scale", "input": stage.getInputCol(), "output": stage.getOutputCol(), **plain_values}]


_PLAIN: Mapping[str, Callable[[Any], list[Step]]] = {
    "StringIndexerModel": _index,
    "OneHotEncoderModel": _one_hot,
    "VectorAssembler": _assemble,
    "ImputerModel": _impute,
    "StandardScalerModel": _standard,
    "MinMaxScalerModel": _min_max,
    "MaxAbsScalerModel": _max_abs,
}


def _example(predictor: Predictor) -> pd.DataFrame:
    """One row that the model takes."""
    plan = predictor.plan
    if not plan.steps:
        return pd.DataFrame({plan.features: [[0.0] * predictor.scorer.spec.num_features]})
    texts = {step["input"]: step["labels"][0] for step in plan.steps if step["kind"] == "index"}
    return pd.DataFrame({name: [0.0 if kind == "number" else texts[name]] for name, kind in plan.inputs.items()})


def _signature(predictor: Predictor) -> ModelSignature:
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType, Array, DataType

    plan = predictor.plan
    # A column declared as double refuses whole numbers; ours are checked when they are converted.
    kinds: dict[str, Any] = dict.fromkeys(("number", "code"), AnyType())  # type: ignore[no-untyped-call]
    kinds["text"] = DataType.string
    inputs: list[ColSpec | TensorSpec] = [ColSpec(kinds[kind], name) for name, kind in plan.inputs.items()]
    outputs = Schema([ColSpec(DataType.double, name) for name in OUTPUTS])
    return ModelSignature(Schema(inputs or [ColSpec(Array(DataType.double), plan.features)]), outputs)


def _requirements() -> list[str]:
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in _REQUIRED]
