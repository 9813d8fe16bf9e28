"""What MLflow needs to serve a model elsewhere: versions, the package's own code, tables as the model takes them."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.resources
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bspauc_spark.rows.categories import EXACT

if TYPE_CHECKING:
    from importlib.abc import Traversable

_REQUIRED = ("mlflow", "pyspark", "torch", "numpy", "pandas", "pyarrow", "safetensors")
_OTHER_NAMES = {"mlflow": "mlflow-skinny"}


def requirements() -> list[str]:
    """What pip has to install where a model is served."""
    return [f"{name}=={_released(name)}" for name in _REQUIRED]


def _released(name: str) -> str:
    importlib.import_module(name)
    # 2.9.0+cpu and 4.1.0.dev2 are in no registry.
    return re.sub(r"\+.*|\.?dev.*", "", version_of(name))


def version_of(name: str) -> str:
    """The version that runs, or would if ``name`` were imported.

    Modules are asked first: on Databricks pyspark is no installed distribution, and mlflow is one of another name.
    """
    version = getattr(sys.modules.get(name), "__version__", None)
    if version is not None:
        return str(version)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if name not in _OTHER_NAMES:
            raise
        return importlib.metadata.version(_OTHER_NAMES[name])


def copy_code(folder: Path) -> Path:
    """A copy of the package in ``folder``, also of one that Python reads from an archive."""
    target = folder / "bspauc_spark"
    _copy(importlib.resources.files("bspauc_spark"), target)
    return target


def _copy(source: Traversable, target: Path) -> None:
    target.mkdir()
    for one in source.iterdir():
        if one.is_dir() and one.name != "__pycache__":
            _copy(one, target / one.name)
        elif one.name.endswith((".py", ".html", "py.typed")):
            (target / one.name).write_bytes(one.read_bytes())
    # What only holds other files has nothing to import.
    if not any(target.iterdir()):
        target.rmdir()


def welcome_whole_numbers() -> None:
    """Have MLflow hand our models whole numbers for columns declared as doubles, and categories of any type.

    MLflow checks a table before a model sees it, and refuses a column of 64-bit whole numbers where the signature says
    double. It has no type for "any number", and without a type Unity Catalog and Spark do not take the signature. It
    checks no signature that says it was made from type hints, but its server then takes no tables any more.
    """
    from mlflow.pyfunc import PyFuncModel

    checked = PyFuncModel.predict
    if hasattr(checked, "welcoming"):
        return

    @functools.wraps(checked)
    def predict(self: Any, data: Any, params: Any = None) -> Any:
        ours = type(self._model_impl).__module__.startswith("bspauc_spark.")
        schema = self.metadata.get_input_schema() if ours and isinstance(data, pd.DataFrame) else None
        if schema is not None and schema.has_input_names():
            data = declared(data, schema.input_types_dict())
        return checked(self, data, params)

    predict.welcoming = True  # type: ignore[attr-defined]
    PyFuncModel.predict = predict  # type: ignore[method-assign]


def declared(frame: pd.DataFrame, kinds: Mapping[str, Any]) -> pd.DataFrame:
    """The table with doubles where MLflow's ``kinds`` say so, and with objects where they say text.

    What a double cannot hold stays as it is.
    """
    from mlflow.types.schema import Array, DataType

    changed: dict[str, pd.Series[Any]] = {}
    for name, kind in kinds.items():
        values = frame[name] if name in frame.columns else None
        if not isinstance(values, pd.Series) or not isinstance(values.dtype, np.dtype):
            continue
        whole = values.dtype.kind in "biu"
        if kind == DataType.double and whole and not (values.abs() > EXACT).any():
            changed[name] = values.astype(np.float64)
        elif kind == DataType.string and (whole or values.dtype == np.float64):
            changed[name] = values.astype(object)
        elif isinstance(kind, Array) and kind.dtype == DataType.double:
            changed[name] = values.map(_doubles)
    return frame.assign(**changed) if changed else frame


def _doubles(row: Any) -> Any:
    given = np.asarray(row) if isinstance(row, list | np.ndarray) else np.empty(0)
    return given.astype(np.float64) if given.dtype.kind in "biu" else row
