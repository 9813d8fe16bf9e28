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
from bspauc_spark.theta import table
from bspauc_spark.theta.honest import keys_of_rows
from bspauc_spark.theta.median import even_sample, median_distance, median_width
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings

T = TypeVar("T")

# A batch has as many rows of one class as of the other. So rows of the smaller one come again most often, and are
# learned by heart, wrong labels included, unless θ decays faster; much faster, and it shrinks to nothing
# (docs/defaults.md).
_LEAST_DECAY, _LARGEST_DECAY, _DECAY_ROWS = 0.3, 5.0, 3_000


def columns(params: Accessors) -> Columns:
    """The columns to learn from."""
    return Columns(
        params.getFeaturesCol(),
        params.getLabelCol(),
        optional(params, "validationIndicatorCol"),
        params.getPositiveLabel(),
        not params.isSet("positiveLabel"),
    )


def network(
    params: Accessors,
    num_features: int,
    rows: Callable[[], Mapping[str, Rows]],
    median: Callable[[], float] | None = None,
    members: int = 0,
    variants: int = 1,
    twins: int = 0,
) -> NetworkSpec:
    """What is to be learned; ``rows`` gives the rows, ``median`` their median distance if it can do without all."""
    kind = params.getNetwork()
    if kind != "kernel":
        auto = automatic_inputs(params)
        layers = hidden_layers(params)
        preflight.check_weights(num_features, layers, rows)
        return NetworkSpec(
            kind,
            num_features,
            layers,
            members=members,
            variants=variants,
            twins=twins,
            fold_seed=fold_seed(params) if members else 0,
            inputs="auto" if auto else "raw",
            gaps=gaps(params),
        )
    count, width = params.getNumRandomFeatures(), params.getKernelWidth()
    preflight.check_frequencies(num_features, count)
    if isinstance(width, str):
        width = median_width(_training(rows())) if median is None else median()
    # RandomState takes 32 bits.
    kernel_seed, seed = params.getSeed() % 2**32, fold_seed(params) if members else 0
    return NetworkSpec(kind, num_features, (), count, width, kernel_seed, members, seed)


def hidden_layers(params: Accessors) -> tuple[int, ...]:
    """``hiddenLayers``, or what stands for it where it is not set."""
    kind = params.getNetwork()
    if kind == "table" and not params.isSet("hiddenLayers"):
        return table.HIDDEN_LAYERS
    return tuple(params.getHiddenLayers()) if kind in ("mlp", "table") else ()


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
    wanted, seed = params.getFolds(), fold_seed(params)
    if not wanted:
        return 0
    return most_folds(wanted, {kind: counted(keys_of_rows(one, seed), wanted) for kind, one in _training(rows).items()})


def fold_seed(params: Accessors) -> int:
    """The seed of the hash that puts rows into folds."""
    return params.getSeed() % 2**64


def too_few_for_folds(wanted: int, found: int) -> str:
    """Why a fit has fewer folds than it was asked for."""
    instead = f"{found} folds" if found else "no folds, so that rows are judged by the network that learned from them"
    return f"not each of {wanted} folds would have {FEWEST_ROWS} different rows of both classes: the fit has {instead}."


def twins(params: Accessors, folds: int) -> bool:
    """Whether networks that learn from all rows stand beside those that learn from rows that the pace keeps."""
    return folds > 0 and params.getNetwork() == "table" and params.getSelfPaced()


def decays(params: Accessors, counts: Mapping[str, int], folds: int) -> tuple[float, ...]:
    """``regParam``, or what stands for it where it is not set, of each variant of the members."""
    own = _decays(params, counts, folds)
    return own * 2 if twins(params, folds) else own


def variants(params: Accessors, decays: tuple[float, ...], folds: int) -> tuple[int, int]:
    """How many variants a member has, and how many of these are twins."""
    return len(decays), len(decays) // 2 if twins(params, folds) else 0


def _decays(params: Accessors, counts: Mapping[str, int], folds: int) -> tuple[float, ...]:
    if params.isDefined("regParam"):
        return (params.getRegParam(),)
    if params.getNetwork() not in ("mlp", "table") or params.getOptimizer() != "adamw":
        return (_LEAST_DECAY,)
    if params.getNetwork() == "table" and folds:
        return table.DECAYS
    wanted = _DECAY_ROWS / min(counts[POSITIVES], counts[NEGATIVES])
    return (min(max(wanted, _LEAST_DECAY), _LARGEST_DECAY),)


def settings(params: Accessors, decays: tuple[float, ...]) -> TrainingSettings:
    """How a θ block is trained, with these decays."""
    return TrainingSettings(
        optimizer=params.getOptimizer(),
        learning_rate=params.getLearningRate(),
        batch_size=params.getBatchSize(),
        steps=params.getStepsPerRound(),
        tau=decays[0],
        variants=decays if len(decays) > 1 else (),
        pairing=params.getPairing(),
        averaging=params.getAveraging(),
        seed=params.getSeed() % 2**64,
        pretrain_steps=params.getPretrainSteps(),
        pretrain_fraction=params.getPretrainFraction(),
        features_per_step=params.getFeaturesPerStep(),
        all_steps=_all_steps(params) if params.getNetwork() == "table" else 0,
        exact_rows=params.getExactRows(),
        mixed_precision=params.getMixedPrecision(),
    )


def _all_steps(params: Accessors) -> int:
    return params.getPretrainSteps() + params.getRounds() * params.getStepsPerRound()


def pace(params: Accessors) -> Pace:
    """How λ rises, if it does."""
    if not params.getSelfPaced():
        return EveryRow()
    mu, first, last = (optional(params, name) for name in ("mu", "paceStart", "paceEnd"))
    if params.getPaceSchedule() == "fraction":
        if last is None:
            return AutomaticPace(first, params.getRounds(), params.getNu(), mu)
        return FractionPace(min(first or 0.5, last), last, params.getRounds(), params.getNu(), mu)
    largest = params.getLambdaMax()
    return ExplicitPace(
        first=optional(params, "lambdaInit"),
        largest=largest,
        rounds=params.getRounds(),
        growth=params.getLambdaGrowth() if params.getPaceSchedule() == "geometric" else None,
        mu=params.getNu() * largest if mu is None else mu,
        fraction=first or 0.5,
    )
