"""The two kinds of noise of the paper, for experiments: labels flipped far from a hyperplane, and poisonous rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bspauc_spark.arrays import FloatArray, is_sparse, labelled, need_both, ranges, squared_distances, stacked
from bspauc_spark.errors import InvalidParamError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# So many attack rows move together: there is room for a dense table of them.
_ATTACKED_TOGETHER = 1024

BoolArray: TypeAlias = npt.NDArray[np.bool_]


def flip_labels(
    features: Any,
    is_positive: npt.ArrayLike,
    proportion: float,
    far_quantile: float = 0.0,
    seed: int = 0,
) -> BoolArray:
    """Draw the rows whose labels are to be flipped: ``proportion`` of all rows, among those far from a hyperplane.

    Parameters
    ----------
    features
        Rows as a 2-d array or a scipy CSR matrix.
    is_positive
        True labels.
    proportion
        Share of all rows to flip, 0 to 1.
    far_quantile
        Rows whose distance from the hyperplane of a linear discriminant is below this quantile are spared: 0 draws
        among all rows, 0.25 among the farthest 75 %.
    seed
        Seed of the draw.

    Returns
    -------
    mask
        True for rows whose label is to be flipped.
    """
    x, y = labelled(features, is_positive)
    _check_shares(proportion, far_quantile)
    count = round(proportion * len(y))
    candidates = np.arange(len(y))
    if far_quantile > 0:
        need_both(y, "a linear discriminant")
        distance = np.abs(linear_margin(x, y))
        candidates = np.flatnonzero(distance >= np.quantile(distance, far_quantile))
    if count > len(candidates):
        raise InvalidParamError(
            f"proportion {proportion:g} of {len(y):,} rows is more than the {len(candidates):,} rows beyond "
            f"far_quantile {far_quantile:g}: lower one of them."
        )
    mask = np.zeros(len(y), dtype=bool)
    mask[np.random.default_rng(seed).choice(candidates, count, replace=False)] = True
    return mask


def _check_shares(proportion: float, far_quantile: float) -> None:
    # This way round the comparison refuses NaN too.
    if not 0 <= proportion <= 1:
        raise InvalidParamError(f"proportion must be 0 to 1, not {proportion:g}.")
    if not 0 <= far_quantile < 1:
        raise InvalidParamError(f"far_quantile must be at least 0 and below 1, not {far_quantile:g}.")


def linear_margin(features: Any, is_positive: BoolArray, ridge: float = 1.0) -> FloatArray:
    """Signed distance, up to a factor, from the hyperplane of an L2-penalised logistic regression.

    It is fitted by Newton steps. A scipy CSR matrix may have too many columns for them, so scikit-learn fits it.
    """
    if is_sparse(features):
        from sklearn.linear_model import LogisticRegression

        regression = LogisticRegression(C=1 / ridge, max_iter=1000).fit(features, is_positive)
        return np.asarray(regression.decision_function(features), dtype=np.float64)
    table = np.asarray(features, dtype=np.float64)
    x = np.column_stack([table, np.ones(len(table))])
    penalty = np.full(x.shape[1], ridge)
    penalty[-1] = 1e-8
    w = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(x @ w, -30, 30)))
        gradient = x.T @ (p - is_positive) + penalty * w
        hessian: Any = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        w = w - step
        if np.abs(step).max() < 1e-8:
            break
    margin: FloatArray = x @ w
    return margin


def poison(
    features: Any,
    is_positive: npt.ArrayLike,
    proportion: float,
    seed: int = 0,
    steps: int = 20,
    step_size: float = 0.1,
    subsample: int = 500,
    bounds: tuple[float, float] = (-1.0, 1.0),
) -> tuple[Any, BoolArray]:
    """Make poisonous rows, which mislead an SVM: the attack of Biggio, Nelson and Laskov (ICML 2012).

    Each attack row starts as a copy of a training row with the other label. It then moves in the direction in which the
    hinge loss rises that an SVM with a Gaussian kernel has on held-out rows. The published attack fits the SVM again
    after each step of each row, which takes seconds for a row. Here the SVM is fitted once, on ``subsample`` rows, and
    all attack rows move together. Rows of a scipy CSR matrix move only in the features that they have, because a sparse
    learner has no use for dense attack rows.

    Returns
    -------
    features, is_positive
        The rows to add, ``proportion`` times as many as were given, and the labels that they claim.
    """
    x, y = labelled(features, is_positive)
    x = x if is_sparse(x) else x.astype(np.float64)
    if not 0 <= proportion < np.inf:
        raise InvalidParamError(f"proportion must be at least 0 and finite, not {proportion:g}.")
    need_both(y, "an SVM")
    rng = np.random.default_rng(seed)
    count = round(proportion * len(y))
    start = rng.choice(len(y), count, replace=count > len(y))
    claimed = ~y[start]
    order = rng.permutation(len(y))
    need_both(y[order[:subsample]], "an SVM on a subsample")
    attacked = Attacked.fit(x[order[:subsample]], y[order[:subsample]])
    held = order[subsample : 2 * subsample] if len(y) > subsample else order
    reach = (bounds[1] - bounds[0]) * step_size / max(1, steps)
    pull = attacked.pull(x[held], y[held])
    parts = []
    for first in range(0, count, _ATTACKED_TOGETHER):
        some = slice(first, first + _ATTACKED_TOGETHER)
        sign = np.where(claimed[some], 1.0, -1.0)
        parts.append(_ascend(x[start[some]], pull, -sign, steps, reach, bounds))
    return stacked(x[:0], *parts), claimed


def _ascend(
    rows: Any,
    pull: Callable[[Any], FloatArray],
    sign: FloatArray,
    steps: int,
    reach: float,
    bounds: tuple[float, float],
) -> Any:
    """The rows after ``steps`` steps along ``sign * pull(rows)``; ``reach`` is a step's length per movable feature."""
    if not is_sparse(rows):
        for _ in range(steps):
            uphill = sign[:, None] * pull(rows)
            length = np.maximum(np.linalg.norm(uphill, axis=1, keepdims=True), 1e-300)
            rows = np.clip(rows + reach * np.sqrt(rows.shape[1]) * uphill / length, *bounds)
        return rows
    rows = rows.astype(np.float64)
    owner, counts = _owners(rows), np.diff(rows.indptr)
    for _ in range(steps):
        uphill = sign[owner] * pull(rows)
        length = np.maximum(np.sqrt(np.bincount(owner, np.square(uphill), len(counts))), 1e-300)
        rows.data = np.clip(rows.data + reach * (np.sqrt(counts) / length)[owner] * uphill, *bounds)
    return rows


def _owners(rows: Any) -> npt.NDArray[np.intp]:
    """The row of each stored value."""
    return np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))


def _products_at(weights: FloatArray, x: Any, rows: Any) -> FloatArray:
    """``weights @ x``, but only where ``rows`` store a value: the whole product would be dense."""
    columns = x.tocsc()
    starts, counts = columns.indptr[rows.indices], np.diff(columns.indptr)[rows.indices]
    stored = ranges(starts, counts)
    owner = np.repeat(np.arange(len(counts)), counts)
    products = weights[_owners(rows)[owner], columns.indices[stored]] * columns.data[stored]
    return np.bincount(owner, products, len(counts)).astype(np.float64)


@dataclass(frozen=True)
class Attacked:
    """An SVM under attack: its rows, their multipliers, its offset, and the rows on its margin."""

    x: Any
    sign: FloatArray
    dual: FloatArray
    offset: float
    gamma: float
    margin: npt.NDArray[np.intp]

    @classmethod
    def fit(cls, x: Any, is_positive: BoolArray, cost: float = 1.0, gamma: float | None = None) -> Attacked:
        """Fit an SVM with a Gaussian kernel. By default γ is scaled as in scikit-learn."""
        from sklearn.svm import SVC

        spread = np.square(x.data).sum() / np.prod(x.shape) - x.mean() ** 2 if is_sparse(x) else x.var()
        width = 1.0 / max(x.shape[1] * spread, 1e-12) if gamma is None else gamma
        svm = SVC(C=cost, kernel="rbf", gamma=width, tol=1e-8).fit(x, is_positive)
        dual = np.zeros(x.shape[0])
        of_support = svm.dual_coef_.toarray() if is_sparse(x) else svm.dual_coef_
        dual[svm.support_] = np.abs(of_support[0])
        margin = np.flatnonzero((dual > 1e-6 * cost) & (dual < (1 - 1e-6) * cost))
        return cls(x, np.where(is_positive, 1.0, -1.0), dual, float(svm.intercept_[0]), width, margin)

    def decision(self, x: Any) -> FloatArray:
        """The SVM's score."""
        return self._kernel(x, self.x) @ (self.dual * self.sign) + self.offset

    def pull(self, held: Any, is_positive: BoolArray) -> Callable[[Any], FloatArray]:
        """A function of attack rows: how the hinge loss on ``held`` rows changes as they move.

        Each row's slope is right up to a positive factor, and for rows that claim to be negative; for the others it has
        the other sign. For a scipy CSR matrix the function gives the slopes of the stored values.

        Equation 10 of that paper: ``−Σ_k (M_k ∂Q_sc/∂x_c + ∂Q_kc/∂x_c)`` over held-out rows k with a loss, where s are
        the rows on the margin and ``M_k = −(Q_ks(ζ Q_ss⁻¹ − υυᵀ) + y_k υᵀ)/ζ``.
        """
        y_held = np.where(is_positive, 1.0, -1.0)
        lossy = y_held * self.decision(held) < 1
        k, y_k = held[lossy], y_held[lossy]
        s, y_s = self.x[self.margin], self.sign[self.margin]
        weights = np.zeros(len(y_s))
        if len(y_s) and len(y_k):
            q_ss = np.outer(y_s, y_s) * self._kernel(s, s) + 1e-9 * np.eye(len(y_s))
            inverse = np.linalg.inv(q_ss)
            upsilon = inverse @ y_s
            zeta = float(y_s @ upsilon)
            q_ks = np.outer(y_k, y_s) * self._kernel(k, s)
            m = -(q_ks @ (zeta * inverse - np.outer(upsilon, upsilon)) + np.outer(y_k, upsilon)) / zeta
            weights = m.sum(axis=0) * y_s
        return lambda rows: self._towards(rows, s, weights) + self._towards(rows, k, y_k)

    def _towards(self, rows: Any, x: Any, weights: FloatArray) -> FloatArray:
        """``Σ_j w_j ∂k(x_j, x_c)/∂x_c`` for each row c; for sparse rows, in their stored values."""
        weighted = self._kernel(rows, x) * weights
        total = weighted.sum(axis=1)
        if is_sparse(rows):
            towards: FloatArray = _products_at(weighted, x, rows) - total[_owners(rows)] * rows.data
        else:
            towards = weighted @ x - total[:, None] * rows
        return 2 * self.gamma * towards

    def _kernel(self, a: Any, b: Any) -> FloatArray:
        kernel: FloatArray = np.exp(-self.gamma * np.maximum(squared_distances(a, b), 0.0))
        return kernel


def flip_dataframe(
    dataset: DataFrame,
    proportion: float,
    far_quantile: float = 0.0,
    seed: int = 0,
    features: str = "features",
    label: str = "label",
    positive_label: float = 1.0,
    negative_label: float = 0.0,
    flipped: str = "flipped",
) -> DataFrame:
    """Flip some labels of a DataFrame, and add the column ``flipped``, which says which ones.

    The discriminant is MLlib's logistic regression. A hash of the contents of a row and of the seed decides whether the
    row is flipped, so partitions do not matter. About ``proportion`` of all rows are flipped.
    """
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as sf

    _check_shares(proportion, far_quantile)
    share = proportion / (1 - far_quantile)
    if share > 1:
        raise InvalidParamError(
            f"proportion {proportion:g} is more than the {1 - far_quantile:.0%} of rows beyond far_quantile "
            f"{far_quantile:g}: lower one of them."
        )
    truth = sf.col(label) == positive_label
    candidate = sf.lit(True)
    rows = dataset
    if far_quantile > 0:
        training = dataset.select(sf.col(features).alias("features"), truth.cast("double").alias("label"))
        model = LogisticRegression(regParam=1e-4).fit(training)
        model = (
            model.setFeaturesCol(features).setRawPredictionCol("__margin").setProbabilityCol("").setPredictionCol("")
        )
        rows = model.transform(dataset)
        distance = sf.abs(vector_to_array(sf.col("__margin"))[1])
        rows = rows.withColumn("__distance", distance)
        (cut,) = rows.approxQuantile("__distance", [far_quantile], 0.0)
        candidate = sf.col("__distance") >= cut
    # 53 bits of a hash as a number in [0, 1).
    drawn = sf.shiftrightunsigned(sf.xxhash64(sf.lit(seed), sf.col(features), sf.col(label)), 11) / sf.lit(2.0**53)
    rows = rows.withColumn(flipped, candidate & (drawn < share))
    other = sf.when(truth, negative_label).otherwise(positive_label)
    rows = rows.withColumn(label, sf.when(sf.col(flipped), other).otherwise(sf.col(label)))
    return rows.drop("__margin", "__distance")
