"""Small functions on numpy arrays and scipy CSR matrices: what is refused, and sums."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bspauc_spark.errors import InvalidFeaturesError, InvalidLabelError

FloatArray: TypeAlias = npt.NDArray[np.float64]
Float32Array: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


def is_sparse(x: Any) -> bool:
    """Whether ``x`` is a scipy matrix."""
    return hasattr(x, "tocsr")


def stacked(first: Any, *others: Any) -> Any:
    """Rows of arrays or of CSR matrices one below the other, in the number type of the first."""
    if not is_sparse(first):
        return np.concatenate([first, *others]).astype(first.dtype, copy=False)
    from scipy import sparse

    return sparse.vstack([first, *others]).tocsr().astype(first.dtype)


def squared_distances(x: Any, y: Any) -> FloatArray:
    """``‖x_i − y_j‖²``, by one matrix product; rounding may leave a distance just below 0."""
    products = x @ y.T
    products = products.toarray() if is_sparse(products) else products
    squares: FloatArray = norms(x)[:, None] + norms(y)[None, :] - 2 * products
    return squares


def norms(x: Any) -> FloatArray:
    """``‖x_i‖²``."""
    squares: FloatArray = np.asarray((x.multiply(x) if is_sparse(x) else np.square(x)).sum(axis=1)).ravel()
    return squares.astype(np.float64)


def ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """``[s₀, s₀ + 1, …, s₀ + l₀ − 1, s₁, …]``."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    steps: IntArray = np.arange(total, dtype=np.int64)
    shifts: IntArray = np.repeat(starts - (ends - lengths), lengths)
    return steps + shifts


def labelled(features: Any, is_positive: npt.ArrayLike) -> tuple[Any, BoolArray]:
    """Rows as a 2-d array or a CSR matrix of finite numbers, and as many labels as booleans."""
    x = finite(features)
    try:
        y = np.asarray(is_positive).astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidLabelError("labels must be booleans, or numbers of which 0 is negative.") from None
    if y.shape != (x.shape[0],):
        raise InvalidLabelError(f"labels have shape {y.shape}; there are {x.shape[0]:,} rows. Give one label a row.")
    bad = int(np.isnan(y).sum())
    if bad:
        raise InvalidLabelError(f"{bad:,} of {len(y):,} labels are NaN or missing. Drop their rows.")
    return x, y.astype(bool)


def finite(features: Any) -> Any:
    """A 2-d array or a CSR matrix of finite numbers, in the number type that was given."""
    x: Any
    try:
        x = features.tocsr() if is_sparse(features) else np.asarray(features)
        x = x if x.dtype.kind in "biufmMc" else x.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        # The reason would repeat a value of a row.
        raise InvalidFeaturesError("features must be a 2-d array or a CSR matrix of numbers.") from None
    if x.ndim != 2 or x.dtype.kind in "mMc":
        raise InvalidFeaturesError(f"features are {x.dtype} of shape {x.shape}; a 2-d array of numbers is needed.")
    values = x.data if is_sparse(x) else x
    bad = values.size - int(np.isfinite(values).sum())
    if bad:
        raise InvalidFeaturesError(f"features hold {bad:,} NaN or infinite values. Impute them or drop their rows.")
    return x


def need_both(is_positive: BoolArray, what: str) -> None:
    """Refuse labels of one class only, or none."""
    if is_positive.all() or not is_positive.any():
        kinds = "no rows" if not len(is_positive) else f"{len(is_positive):,} rows of one class only"
        raise InvalidLabelError(f"{what} needs rows of both classes, but there are {kinds}.")


def as_array(features: Any) -> npt.NDArray[Any]:
    """An array of whatever was given, as long as nothing in it is masked."""
    if np.ma.is_masked(features):
        raise InvalidFeaturesError("features hold masked values. Impute them before scoring.")
    try:
        return np.asarray(features)
    except (TypeError, ValueError):
        raise InvalidFeaturesError("features are rows of differing sizes or kinds; a 2-d array is needed.") from None


def as_csr(matrix: Any) -> Any:
    """A scipy matrix by rows; neither scipy nor torch looks again at indices that were changed."""
    if matrix.ndim == 2 and matrix.format in ("csr", "csc"):
        outer, inner = matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
        indices, pointers = matrix.indices, matrix.indptr
        fit = len(pointers) == outer + 1 and pointers[0] == 0 and bool((pointers[1:] >= pointers[:-1]).all())
        fit = fit and pointers[-1] <= min(len(indices), len(matrix.data))
        indices = indices[: pointers[-1]]
        if not fit or (len(indices) and (indices.min() < 0 or indices.max() >= inner)):
            raise InvalidFeaturesError(f"the sparse matrix has indices outside its shape {matrix.shape}.")
    return matrix.tocsr()


def finite_floats(values: npt.NDArray[Any], gaps: bool = False) -> npt.NDArray[np.float32]:
    """Float32, all of it finite, or NaN where there may be ``gaps``."""
    # numpy makes numbers of times without a word, and drops imaginary parts.
    none = (np.datetime64, np.timedelta64, np.complexfloating)
    numbers = values.dtype.kind not in "mMc"
    numbers = numbers and not (values.dtype == object and any(isinstance(value, none) for value in values.flat))
    try:
        # What float32 cannot hold becomes infinite.
        with np.errstate(over="ignore"):
            found = np.ascontiguousarray(values, dtype=np.float32) if numbers else None
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None:
        # The reason would repeat a value of a row.
        raise InvalidFeaturesError(f"features have type {values.dtype}; numbers are needed.")
    if not (np.isfinite(found) | (gaps & np.isnan(found))).all():
        problem = "infinite values. Mend" if gaps else "NaN or infinite values. Impute"
        raise InvalidFeaturesError(f"features hold {problem} them before scoring.")
    return found
