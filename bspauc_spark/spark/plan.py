"""What the Params of a fit ask for, as the plain values that the algorithm and the workers take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from bspauc_spark.cluster import preflight
from bspauc_spark.rows.columns import Columns
from bspauc_spark.rows.folds import FEWEST_ROWS, counted, most_folds
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import Rows
from bspauc_spark.rows.shards import Shards
from bspauc_spark.selection.pace import AutomaticPace, EveryRow, ExplicitPace, FractionPace, Pace
from bspauc_spark.spark.accessors import Accessors
from bspauc_spark.spark.params import automatic_inputs, optional
from bspauc_spark.theta.honest import keys_of_rows
from bspauc_spark.theta.inputs import MOST_DENSE_COLUMNS
from bspauc_spark.theta.median import even_sample, median_distance, median_width
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.table import LANDMARKS

T = TypeVar("T")

# A batch has as many rows of one class as of the other. So rows of the smaller one come again most often, and are
# learned by heart, wrong labels included, unless θ decays faster; much faster, and it shrinks to nothing
# (docs/defaults.md).
_LEAST_DECAY, _LARGEST_DECAY, _DECAY_ROWS = 0.3, 5.0, 3_000

# Of dense rows. Twice as many columns make a fit eight times as long.
_MOST_TABLE_COLUMNS = 2_000

ROUNDS, TABLE_ROUNDS, TABLE_FOLDS = 10, 3, 4
"""Where they are not set."""


def columns(params: Accessors) -> Columns:
    """The columns to learn from."""
    return Columns(
        params.getFeaturesCol(),
        params.getLabelCol(),
        optional(params, "validationIndicatorCol"),
        params.getPositiveLabel(),
        not params.isSet("positiveLabel"),
    )


def kind(params: Accessors, sparse: bool, num_features: int) -> str:
    """Which network: wide rows get layers in place of a table.

    Distances of wide sparse rows say little, and the products of all pairs of very many columns take too long.
    """
    wide = num_features > (MOST_DENSE_COLUMNS if sparse else _MOST_TABLE_COLUMNS)
    return "mlp" if params.getNetwork() == "table" and wide else params.getNetwork()


def network(
    params: Accessors,
    num_features: int,
    rows: Callable[[], Mapping[str, Rows]],
    median: Callable[[], float] | None = None,
    members: int = 0,
    counts: Mapping[str, int] | None = None,
    sparse: bool = False,
) -> NetworkSpec:
    """What is to be learned; ``rows`` gives the rows, ``median`` their median distance if it can do without all."""
    found = kind(params, sparse, num_features)
    if found == "table":
        counts = {name: len(one) for name, one in rows().items()} if counts is None else counts
        positives, negatives = counts[POSITIVES], counts[NEGATIVES]
        return NetworkSpec(
            found,
            num_features,
            members=members,
            fold_seed=fold_seed(params) if members else 0,
            inputs="auto",
            gaps=gaps(params),
            landmarks=min(LANDMARKS, min(positives, LANDMARKS // 2) + negatives),
        )
    if found != "kernel":
        layers = tuple(params.getHiddenLayers()) if found == "mlp" else ()
        preflight.check_weights(num_features, layers, rows)
        return NetworkSpec(
            found,
            num_features,
            layers,
            members=members,
            fold_seed=fold_seed(params) if members else 0,
            inputs="auto" if automatic_inputs(params) else "raw",
            gaps=gaps(params),
        )
    count, width = params.getNumRandomFeatures(), params.getKernelWidth()
    preflight.check_frequencies(num_features, count)
    if isinstance(width, str):
        width = median_width(_training(rows())) if median is None else median()
    # RandomState takes 32 bits.
    kernel_seed, seed = params.getSeed() % 2**32, fold_seed(params) if members else 0
    return NetworkSpec(found, num_features, (), count, width, kernel_seed, members, seed)


def gaps(params: Accessors) -> bool:
    """Whether features may be NaN."""
    return params.getHandleInvalid() == "keep"


def staged_median(shards: Shards) -> float:
    """``median_width`` of staged rows: of all files, which may be far away, few hold a row of the sample."""
    return median_distance(
        [shards.take(kind, index) for kind, index in even_sample(_training(shards.counts())).items()]
    )


def _training(by_kind: Mapping[str, T]) -> dict[str, T]:
    return {kind: one for kind, one in by_kind.items() if kind in (POSITIVES, NEGATIVES)}


def folds(params: Accessors, rows: Mapping[str, Rows]) -> int:
    """How many folds these rows allow, of those that ``folds`` wants."""
    wanted, seed = wanted_folds(params), fold_seed(params)
    if not wanted:
        return 0
    return most_folds(wanted, {kind: counted(keys_of_rows(one, seed), wanted) for kind, one in _training(rows).items()})


def wanted_folds(params: Accessors) -> int:
    """``folds``, or what stands for it where it is not set."""
    if params.isDefined("folds"):
        return params.getFolds()
    return TABLE_FOLDS if params.getNetwork() == "table" else 0


def wanted_rounds(params: Accessors, spec: NetworkSpec) -> int:
    """``rounds``, or what stands for it where it is not set."""
    if params.isDefined("rounds"):
        return params.getRounds()
    return TABLE_ROUNDS if spec.kind == "table" else ROUNDS


def fold_seed(params: Accessors) -> int:
    """The seed of the hash that puts rows into folds."""
    return params.getSeed() % 2**64


def too_few_for_folds(wanted: int, found: int) -> str:
    """Why a fit has fewer folds than it was asked for."""
    instead = f"{found} folds" if found else "no folds, so that rows are judged by the network that learned from them"
    return f"not each of {wanted} folds would have {FEWEST_ROWS} different rows of both classes: the fit has {instead}."


def decay(params: Accessors, counts: Mapping[str, int], sparse: bool, num_features: int) -> float:
    """``regParam``, or what stands for it where it is not set; below 0: honest scores choose."""
    if params.isDefined("regParam"):
        return params.getRegParam()
    found = kind(params, sparse, num_features)
    if found == "table":
        return -1.0
    if found != "mlp" or params.getOptimizer() != "adamw":
        return _LEAST_DECAY
    wanted = _DECAY_ROWS / min(counts[POSITIVES], counts[NEGATIVES])
    return min(max(wanted, _LEAST_DECAY), _LARGEST_DECAY)


def settings(params: Accessors, tau: float) -> TrainingSettings:
    """How a θ block is trained, with this decay."""
    return TrainingSettings(
        optimizer=params.getOptimizer(),
        learning_rate=params.getLearningRate(),
        batch_size=params.getBatchSize(),
        steps=params.getStepsPerRound(),
        tau=tau,
        pairing=params.getPairing(),
        averaging=params.getAveraging(),
        seed=params.getSeed() % 2**64,
        pretrain_steps=params.getPretrainSteps(),
        pretrain_fraction=params.getPretrainFraction(),
        features_per_step=params.getFeaturesPerStep(),
        exact_rows=params.getExactRows(),
        mixed_precision=params.getMixedPrecision(),
    )


def pace(params: Accessors, spec: NetworkSpec) -> Pace:
    """How λ rises, if it does."""
    if not params.getSelfPaced():
        return EveryRow()
    rounds = wanted_rounds(params, spec)
    mu, first, last = (optional(params, name) for name in ("mu", "paceStart", "paceEnd"))
    if params.getPaceSchedule() == "fraction":
        if last is None:
            # What does not pay in a table is not left out.
            guess = spec.kind == "table" and spec.members > 0
            return AutomaticPace(first, rounds, params.getNu(), mu, guess)
        return FractionPace(min(first or 0.5, last), last, rounds, params.getNu(), mu)
    largest = params.getLambdaMax()
    return ExplicitPace(
        first=optional(params, "lambdaInit"),
        largest=largest,
        rounds=rounds,
        growth=params.getLambdaGrowth() if params.getPaceSchedule() == "geometric" else None,
        mu=params.getNu() * largest if mu is None else mu,
        fraction=first or 0.5,
    )
