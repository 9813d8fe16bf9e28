"""Models in MLflow: one that ``mlflow.spark`` loads, and that MLflow serves with neither Spark nor Java.

import bspauc_spark
bspauc_spark.log_model(pipeline_model, name="model")
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pyspark import SparkContext
from pyspark.ml import Model, PipelineModel
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st
from pyspark.sql.utils import is_remote

from bspauc_spark.errors import InvalidDataError, MalformedError
from bspauc_spark.model import BSPAUCModel
from bspauc_spark.results.served import copy_code, requirements, welcome_whole_numbers
from bspauc_spark.rows.columns import quoted
from bspauc_spark.serving import OUTPUTS, Predictor, ServedSteps, check_widths
from bspauc_spark.spark.stages import columns_read, first_labels, inputs_of, plain_steps

if TYPE_CHECKING:
    from mlflow.models.model import Model as MLflowModel
    from mlflow.models.model import ModelInfo
    from mlflow.models.signature import ModelSignature

_DATA = "bspauc"


def log_model(model: Model, name: str = "model", **options: Any) -> ModelInfo:
    """Log a ``BSPAUCModel``, or a ``PipelineModel`` that ends in one, to the active MLflow run.

    ``mlflow.spark.load_model`` gives it back for Spark, ``mlflow.pyfunc.load_model`` for pandas, without Spark where
    every stage before the model has a plain form: Imputer, StringIndexer, OneHotEncoder, VectorAssembler,
    StandardScaler, MinMaxScaler and MaxAbsScaler have. A client of Spark Connect logs the latter form alone.
    The package's own code goes with the model, so that it is served where the package was never installed.
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
    """Write the model in MLflow's format into the local folder ``path``.

    A signature and an example of one row are made where they are not given. Only a pipeline with a stage that has no
    plain form may need one: a table of pandas as ``input_example``.
    """
    from mlflow.models import Model as MLflowModel

    described = mlflow_model or MLflowModel()
    predictor = plain(spark_model)
    without_spark = is_remote() and SparkContext._gateway is None
    if predictor is not None:
        input_example = _example(predictor) if input_example is None else input_example
        signature = _signature(predictor) if signature is None else signature
    elif without_spark:
        raise InvalidDataError(
            "a client of Spark Connect can give MLflow only pipelines that work without Spark, and this one has a "
            "stage with no plain form. Save it by model.write().save(path), or log it from a classic session."
        )
    else:
        signature, input_example = _of_stages(_stages(spark_model), signature, input_example)
    with tempfile.TemporaryDirectory() as folder:
        told = {
            "mlflow_model": described,
            "signature": signature,
            "input_example": input_example,
            # Given and not inferred: MLflow would start another process and load the model there.
            "pip_requirements": [*requirements(), *(extra_pip_requirements or [])],
            "code_paths": _with_own_code(code_paths or [], Path(folder)),
            **options,
        }
        if without_spark:
            assert predictor is not None
            _save_plain(predictor, path, told)
        else:
            _save_for_spark(spark_model, predictor, path, told)


def _with_own_code(code_paths: list[str], folder: Path) -> list[str]:
    """These paths and the package's own, unless the user gives that."""
    if any(Path(path).name == "bspauc_spark" for path in code_paths):
        return code_paths
    return [*code_paths, str(copy_code(folder))]


def _save_for_spark(model: Model, predictor: Predictor | None, path: str, told: Mapping[str, Any]) -> None:
    """Spark's form, and a pyfunc that takes and gives the same tables with Spark and without."""
    import mlflow.pyfunc
    import mlflow.spark

    described = told["mlflow_model"]
    mlflow.spark.save_model(model, path, **told)
    kept = described.flavors[mlflow.pyfunc.FLAVOR_NAME]
    if predictor is not None:
        predictor.save(Path(path) / _DATA)
    mlflow.pyfunc.add_to_model(
        described,
        loader_module=__name__ if predictor is None else "bspauc_spark.serving",
        data=kept["data"] if predictor is None else _DATA,
        code=kept["code"],
        conda_env=kept["env"]["conda"],
        python_env=kept["env"]["virtualenv"],
    )
    described.save(str(Path(path) / "MLmodel"))


def _save_plain(predictor: Predictor, path: str, told: Mapping[str, Any]) -> None:
    """The pyfunc alone: MLflow copies a Spark model through a JVM, and a client of Spark Connect has none."""
    import mlflow.pyfunc

    with tempfile.TemporaryDirectory() as folder:
        predictor.save(Path(folder) / _DATA)
        mlflow.pyfunc.save_model(
            path, loader_module="bspauc_spark.serving", data_path=str(Path(folder) / _DATA), **told
        )


@dataclass(frozen=True)
class SparkPredictor:
    """Scores tables of pandas by a pipeline that needs Spark, and gives the columns that ``Predictor`` gives."""

    model: PipelineModel
    inputs: st.StructType

    def predict(self, frame: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """``score``, ``probability`` of a positive label and ``prediction`` of each row."""
        raw, probability, prediction = map(quoted, self._named_outputs())
        scored = self.model.transform(self._rows(frame))
        wanted = (vector_to_array(raw)[1], vector_to_array(probability)[1], prediction)
        chosen = scored.select(*(column.alias(name) for column, name in zip(wanted, OUTPUTS, strict=True)))
        found = pd.DataFrame(chosen.toPandas())
        if len(found) != len(frame):
            raise InvalidDataError(
                f"{len(frame) - len(found):,} of {len(frame):,} rows were left out by a stage of the pipeline. Fit its "
                "stages with another handleInvalid than 'skip', or leave these rows out."
            )
        return found.set_index(frame.index)

    def _named_outputs(self) -> tuple[str, str, str]:
        """The model's output columns, all of them, whatever it was told to leave out."""
        last = next(stage for stage in reversed(_stages(self.model)) if isinstance(stage, BSPAUCModel))
        for param in (last.rawPredictionCol, last.probabilityCol, last.predictionCol):
            if not last.getOrDefault(param):
                last._set(**{param.name: f"bspauc__{param.name}"})
        return last.getRawPredictionCol(), last.getProbabilityCol(), last.getPredictionCol()

    def _rows(self, frame: pd.DataFrame) -> DataFrame:
        missing = [name for name in self.inputs.names if name not in frame.columns]
        if missing:
            raise InvalidDataError(f"column {missing[0]!r} is missing; the model reads {', '.join(self.inputs.names)}.")
        vectors = [field.name for field in self.inputs if isinstance(field.dataType, VectorUDT)]
        numbers = st.ArrayType(st.DoubleType())
        kinds = st.StructType(
            [st.StructField(field.name, numbers if field.name in vectors else field.dataType) for field in self.inputs]
        )
        table = pd.DataFrame({field.name: _as_kind(frame[field.name], field.dataType) for field in kinds})
        rows = SparkSession.active().createDataFrame(table, kinds)
        return rows.select(*(array_to_vector(quoted(n)).alias(n) if n in vectors else quoted(n) for n in kinds.names))


def _as_kind(values: pd.Series[Any], kind: st.DataType) -> pd.Series[Any]:
    """Values as Spark takes them for this type: Arrow makes no doubles of objects, nor text of numbers."""
    try:
        if kind == st.DoubleType():
            return values.astype(np.float64)
        if kind == st.ArrayType(st.DoubleType()):
            return values.map(lambda row: np.asarray(row, dtype=np.float64).tolist())
    except (TypeError, ValueError):
        # The reason would repeat a value of a row.
        raise InvalidDataError(f"column {values.name!r} must hold numbers.") from None
    if kind == st.StringType():
        return values.map(lambda value: value if value is None or isinstance(value, str) else str(value))
    return values


def _load_pyfunc(path: str) -> SparkPredictor:
    """MLflow's entry point for a pipeline that needs Spark."""
    import mlflow.spark
    from mlflow.models import Model as MLflowModel

    welcome_whole_numbers()
    signature = MLflowModel.load(str(Path(path).parent / "MLmodel")).signature
    model = mlflow.spark._load_pyfunc(path).get_raw_model()
    return SparkPredictor(model, _rows_read(signature, _stages(model)))


def _rows_read(signature: ModelSignature, stages: Sequence[Any]) -> st.StructType:
    """The columns of a signature as these stages read them: what is an array of numbers there may be a vector here."""
    from mlflow.types.schema import Array, DataType

    kinds = {spec.name: spec.type for spec in signature.inputs}
    arrays = [name for name, kind in kinds.items() if isinstance(kind, Array) and kind.dtype == DataType.double]
    spark_kinds = {name: VectorUDT() if name in arrays else _spark_type(kind) for name, kind in kinds.items()}
    if arrays and columns_read(SparkSession.active(), stages, spark_kinds) is None:
        spark_kinds |= dict.fromkeys(arrays, st.ArrayType(st.DoubleType()))
    return st.StructType([st.StructField(name, kind) for name, kind in spark_kinds.items()])


def _spark_type(kind: Any) -> st.DataType:
    """Spark's type for one of MLflow's, which has none for arrays."""
    found: st.DataType = kind.to_spark() if hasattr(kind, "to_spark") else st.ArrayType(_spark_type(kind.dtype))
    return found


def plain(model: Model) -> Predictor | None:
    """``model`` without Spark, or None where one of its stages, or what they hand on, has no plain form."""
    *before, last = _stages(model)
    if not isinstance(last, BSPAUCModel):
        return None
    steps = plain_steps(before)
    if steps is None:
        return None
    plan = ServedSteps(
        steps=steps,
        features=last.getFeaturesCol(),
        positive_label=last.getPositiveLabel(),
        threshold=last.getThreshold(),
        inputs=inputs_of(steps),
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


def _example(predictor: Predictor) -> pd.DataFrame:
    """One row that the model takes."""
    plan = predictor.plan
    if not plan.steps:
        return pd.DataFrame({plan.features: [[0.0] * predictor.scorer.spec.num_features]})
    texts = {step["input"]: step["labels"][0] for step in plan.steps if step["kind"] == "index"}
    return pd.DataFrame({name: [0.0 if kind == "number" else texts[name]] for name, kind in plan.inputs.items()})


def _signature(predictor: Predictor) -> ModelSignature:
    plan = predictor.plan
    # A category of any type is looked up by its text.
    kinds = {name: st.DoubleType() if kind == "number" else st.StringType() for name, kind in plan.inputs.items()}
    return _signature_of(kinds or {plan.features: st.ArrayType(st.DoubleType())})


def _signature_of(kinds: Mapping[str, st.DataType]) -> ModelSignature:
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec
    from mlflow.types.schema import Array, DataType

    known: dict[st.DataType, Any] = {
        st.DoubleType(): DataType.double,
        st.StringType(): DataType.string,
        st.BooleanType(): DataType.boolean,
        st.TimestampType(): DataType.datetime,
        st.ArrayType(st.DoubleType()): Array(DataType.double),
        st.ArrayType(st.StringType()): Array(DataType.string),
        # MLflow's own type for vectors has no counterpart in Spark's schemas.
        VectorUDT(): Array(DataType.double),
    }
    inputs: list[ColSpec | TensorSpec] = [ColSpec(known[kind], name) for name, kind in kinds.items()]
    return ModelSignature(Schema(inputs), Schema([ColSpec(DataType.double, name) for name in OUTPUTS]))


def _of_stages(
    stages: Sequence[Any], signature: ModelSignature | None, example: Any
) -> tuple[ModelSignature, pd.DataFrame | Any]:
    """Signature and example of a pipeline that needs Spark, as far as they are not given."""
    spark = SparkSession.active()
    advice = "Give a table of pandas with one row as input_example."
    if not any(isinstance(stage, BSPAUCModel) for stage in stages):
        raise InvalidDataError("this pipeline has no BSPAUCModel. Log it with mlflow.spark.log_model.")
    if signature is None:
        known = {name: _kind(values) for name, values in example.items()} if isinstance(example, pd.DataFrame) else {}
        kinds = columns_read(spark, stages, known)
        if kinds is None:
            raise InvalidDataError(f"what columns this pipeline reads cannot be told from its stages. {advice}")
        signature = _signature_of(kinds)
    if example is not None:
        return signature, example
    schema = _rows_read(signature, stages)
    texts, width = first_labels(stages), stages[-1].numFeatures if isinstance(stages[-1], BSPAUCModel) else 1
    example = pd.DataFrame({field.name: [_value(field, texts, width)] for field in schema})
    try:
        SparkPredictor(PipelineModel(list(stages)), schema).predict(example)
    except Exception as error:
        raise InvalidDataError(f"no row could be made up that this pipeline takes. {advice}") from error
    return signature, example


def _kind(values: pd.Series[Any]) -> st.DataType:
    first = values.iloc[0]
    if isinstance(first, str):
        return st.StringType()
    if pd.api.types.is_list_like(first):
        return st.ArrayType(st.StringType()) if len(first) and isinstance(first[0], str) else VectorUDT()
    if values.dtype.kind == "b":
        return st.BooleanType()
    return st.TimestampType() if values.dtype.kind == "M" else st.DoubleType()


def _value(field: st.StructField, texts: Mapping[str, str], width: int) -> Any:
    """Some value of a column."""
    values = {
        st.StringType(): texts.get(field.name, ""),
        st.BooleanType(): False,
        st.TimestampType(): pd.Timestamp(0),
        st.ArrayType(st.StringType()): [""],
    }
    if isinstance(field.dataType, VectorUDT) or field.dataType == st.ArrayType(st.DoubleType()):
        return [0.0] * width
    return values.get(field.dataType, 0.0)
