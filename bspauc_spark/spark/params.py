"""The Params of ``BSPAUCClassifier`` and ``BSPAUCModel``: names, ranges, defaults, documentation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasValidationIndicatorCol,
)

from bspauc_spark.errors import InvalidParamError
from bspauc_spark.spark.converters import (
    anything,
    checked,
    choice,
    flag,
    integer,
    integers,
    location,
    number,
    param,
    text,
)
from bspauc_spark.theta.networks import MOST_LAYERS

if TYPE_CHECKING:
    from typing_extensions import Self

# Of λ, μ, ν: their products must be finite. Of η and τ: θ and the optimizers count in float32.
LARGEST, LARGEST_RATE = 1e30, 1e6
# Less than this of a class is lost in rounding.
LEAST_FRACTION = 1e-6
_NAME, _NAME_OR_EMPTY = "a column's name", "a column's name, or '' for none"


def _width(value: Any) -> float | str:
    return "median" if isinstance(value, str) and value == "median" else TypeConverters.toFloat(value)


def _can_be_width(value: float | str) -> bool:
    return isinstance(value, str) or 1e-30 <= value <= 1e30


class BSPAUCModelParams(HasFeaturesCol, HasLabelCol, HasPredictionCol, HasRawPredictionCol, HasProbabilityCol):
    """Params that the fitted model uses too."""

    # Spark's own, checked as ours are.
    featuresCol: Param[str] = text("featuresCol", "features column name", _NAME)
    labelCol: Param[str] = text("labelCol", "label column name", _NAME)
    predictionCol: Param[str] = text("predictionCol", "prediction column name", _NAME_OR_EMPTY, empty=True)
    rawPredictionCol: Param[str] = text("rawPredictionCol", "raw prediction column name", _NAME_OR_EMPTY, empty=True)
    probabilityCol: Param[str] = text("probabilityCol", "probability column name", _NAME_OR_EMPTY, empty=True)

    positiveLabel: Param[float] = number(
        "positiveLabel",
        "the label that counts as positive; every other label is negative",
        -math.inf,
    )
    threshold: Param[float] = number(
        "threshold",
        "rows that score above it are predicted positive; unset: the score that maximises balanced accuracy on "
        "the training rows",
        -math.inf,
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(positiveLabel=1.0)

    def _set(self, **values: Any) -> Self:
        """Set Params by name, also where ``copy`` is given values."""
        for name, value in values.items():
            if not self.hasParam(name):
                raise InvalidParamError(f"{type(self).__name__} has no Param {name!r}. explainParams() lists them.")
            if value is None:
                raise InvalidParamError(f"{name} cannot be None. Leave it out, or unset it by clear().")
        return super()._set(**values)

    def set(self, param: Param[Any], value: Any) -> None:
        """Set a Param; Spark's own would turn our error into one of its own."""
        self._shouldOwn(param)
        self._set(**{param.name: value})

    def _outputs(self) -> dict[str, str]:
        """The columns that a model adds, by their Params."""
        names = ("predictionCol", "rawPredictionCol", "probabilityCol")
        return {name: self.getOrDefault(name) for name in names}

    def getPositiveLabel(self) -> float:
        """Value of ``positiveLabel``."""
        return self.getOrDefault(self.positiveLabel)

    def getThreshold(self) -> float:
        """Value of ``threshold``."""
        return self.getOrDefault(self.threshold)


class BSPAUCParams(BSPAUCModelParams, HasValidationIndicatorCol, HasSeed):
    """Params of the fit."""

    validationIndicatorCol: Param[str] = text(
        "validationIndicatorCol", "column name of the indicator: true for validation, false for training", _NAME
    )
    seed: Param[int] = param(
        "seed",
        "random seed (a whole number)",
        checked(TypeConverters.toInt, anything, "a whole number", "seed"),
    )
    network: Param[str] = choice(
        "network",
        "the scoring function: fully connected layers with ReLU, one linear layer, or random Fourier features of the "
        "Gaussian kernel",
        ("mlp", "linear", "kernel"),
    )
    hiddenLayers: Param[list[int]] = integers(
        "hiddenLayers",
        "widths of the hidden layers of the mlp; seven of them and the output make the paper's eight fully "
        "connected layers",
        1,
        MOST_LAYERS,
    )

    numRandomFeatures: Param[int] = integer(
        "numRandomFeatures", "random features D of the kernel; each is a cosine and a sine", 1
    )
    kernelWidth: Param[Any] = param(
        "kernelWidth",
        "width σ of the Gaussian kernel exp(−‖x − y‖²/2σ²): a number from 1e-30 to 1e30, or 'median', the median "
        "distance of rows",
        checked(_width, _can_be_width, "a number from 1e-30 to 1e30, or 'median'", "kernelWidth"),
    )
    featuresPerStep: Param[int] = integer(
        "featuresPerStep",
        "random features whose coefficients a step of the kernel's training moves, in turn; 1 is the paper's "
        "Algorithm 3, 0 moves all",
        0,
    )

    selfPaced: Param[bool] = flag(
        "selfPaced",
        "select easy rows round by round; False trains on all rows (the paper's DSAM, with the kernel TSAM)",
    )
    rounds: Param[int] = integer("rounds", "rounds T of selection and training", 1)
    paceStart: Param[float] = number(
        "paceStart",
        "fraction of the rows kept in round 1, (V + U)/2; unset: 0.5, or, where paceEnd is automatic, the automatic "
        "fractions from the first round on",
        LEAST_FRACTION,
        1,
    )
    paceEnd: Param[float] = number(
        "paceEnd",
        "fraction of the rows kept in the last round; unset: per class, one minus the estimated share of wrong "
        "labels, estimated anew each round",
        LEAST_FRACTION,
        1,
    )
    paceSchedule: Param[str] = choice(
        "paceSchedule",
        "what rises: the kept fraction, or λ itself, by the factor lambdaGrowth (Algorithm 1) or linearly",
        ("fraction", "geometric", "linear"),
    )
    lambdaInit: Param[float] = number(
        "lambdaInit", "λ of round 1; unset: the one that keeps paceStart of the rows", 0, LARGEST, open_low=True
    )
    lambdaGrowth: Param[float] = number("lambdaGrowth", "factor c of λ from round to round (geometric)", 1, LARGEST)
    lambdaMax: Param[float] = number(
        "lambdaMax",
        "largest λ, the paper's λ_∞; needed by the geometric and linear schedules",
        0,
        LARGEST,
        open_low=True,
    )
    nu: Param[float] = number("nu", "weight ν of the balance between the classes: μ = ν·λ", 0, LARGEST)
    mu: Param[float] = number("mu", "weight μ of the balance itself; unset: from nu", 0, LARGEST)

    optimizer: Param[str] = choice(
        "optimizer",
        "sgd is Algorithm 2; adam adds the penalty to the gradient, adamw decouples it",
        ("adam", "adamw", "sgd"),
    )
    learningRate: Param[float] = number("learningRate", "learning rate η", 0, LARGEST_RATE, open_low=True)
    batchSize: Param[int] = integer("batchSize", "positives, and as many negatives, per step", 1, 2**20)
    stepsPerRound: Param[int] = integer("stepsPerRound", "steps of the θ block in each round", 1)
    regParam: Param[float] = number(
        "regParam",
        "weight τ of the penalty Ω(θ) = ½‖θ‖² in the objective; with adamw, where the decay is decoupled, the rate of "
        "that decay, and the objective has no penalty; unset: 0.3, but for an mlp under adamw 6000 / rows, at most "
        "5, where that is more: few rows would be learned by heart",
        0,
        LARGEST_RATE,
    )
    pairing: Param[str] = choice(
        "pairing",
        "pairs of a batch: every one, or the j-th positive with the j-th negative (paper)",
        ("all", "matched"),
    )
    averaging: Param[float] = number(
        "averaging", "decay of the moving average of θ over steps, which scores and is saved; 0 is off", 0, 1
    )
    pretrainSteps: Param[int] = integer("pretrainSteps", "steps on a small share of the rows before round 1", 0)
    pretrainFraction: Param[float] = number(
        "pretrainFraction", "share of each class used by the pre-training", 0, 1, open_low=True
    )
    ensureDescent: Param[bool] = flag(
        "ensureDescent",
        "redo a θ block that raised its objective with half the learning rate, at most three times, then keep the "
        "old θ",
    )
    patience: Param[int] = integer(
        "patience",
        "with validationIndicatorCol: stop after so many rounds without a better validation AUC; 0: never",
        0,
    )
    stagingDir: Param[str] = location(
        "stagingDir",
        "folder that the driver and all executors see, or a URI of an object store, for the staged rows, which are "
        "removed after the fit; unset: the system's temporary folder, on a local master, and on Spark Connect that of "
        "the client, to which the rows then come",
    )
    numProcesses: Param[int] = integer(
        "numProcesses",
        "workers that train θ; 0: on a local master and on Spark Connect this process, on a cluster one per executor, "
        "with useGpu per GPU",
        0,
    )
    localMode: Param[bool] = flag(
        "localMode",
        "True: the workers are processes beside the driver, False: tasks on executors; unset: as the master is",
    )
    useGpu: Param[bool] = flag(
        "useGpu", "train on GPUs: each worker on the one that Spark assigned to it, this process on the first one"
    )
    mixedPrecision: Param[bool] = flag(
        "mixedPrecision", "on GPUs, compute the layers of a training step in bfloat16; θ and all scores stay float32"
    )
    checkpointDir: Param[str] = location(
        "checkpointDir",
        "folder, or URI of an object store, where each finished round is saved until the fit ends; a fit with the same "
        "Params and data that finds saved rounds there goes on after them",
    )
    maxRestarts: Param[int] = integer(
        "maxRestarts", "how often lost workers are started again, from the last finished round", 0
    )
    exactRows: Param[int] = integer(
        "exactRows",
        "scores of a class that are sorted on the driver, 4 bytes each; of a larger class histograms and the few bins "
        "that matter come to it, and the selection is the same",
        0,
        2**40,
    )
    tracking: Param[str] = choice(
        "tracking",
        "MLflow: 'auto' logs the fit to the active run, if there is one, 'on' to a run of its own, nested under an "
        "active one",
        ("auto", "on", "off"),
    )
    verbose: Param[bool] = flag("verbose", "show a progress bar over the rounds")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(**DEFAULTS)


DEFAULTS: dict[str, Any] = {
    "seed": 0,
    "network": "mlp",
    "hiddenLayers": [64] * 7,
    "numRandomFeatures": 1000,
    "kernelWidth": "median",
    "featuresPerStep": 0,
    "selfPaced": True,
    "rounds": 10,
    "paceSchedule": "fraction",
    "lambdaGrowth": 1.2,
    "nu": 1.0,
    "optimizer": "adamw",
    "learningRate": 3e-3,
    "batchSize": 256,
    "stepsPerRound": 60,
    "pairing": "all",
    "averaging": 0.99,
    "pretrainSteps": 60,
    "pretrainFraction": 1.0,
    "ensureDescent": False,
    "patience": 0,
    "numProcesses": 0,
    "useGpu": False,
    "mixedPrecision": False,
    "maxRestarts": 2,
    "exactRows": 50_000_000,
    "tracking": "auto",
    "verbose": True,
}


# Params that say where a fit runs and what its output is called, not what it learns.
_NOT_LEARNING = {
    *("featuresCol", "labelCol", "predictionCol", "rawPredictionCol", "probabilityCol", "validationIndicatorCol"),
    *("numProcesses", "localMode", "useGpu", "stagingDir", "checkpointDir", "maxRestarts", "tracking", "verbose"),
    "threshold",
}


def optional(params: BSPAUCParams, name: str) -> Any:
    """The Param's value, or None where it has none."""
    return params.getOrDefault(name) if params.isDefined(name) else None


def learning_params(params: BSPAUCParams) -> dict[str, Any]:
    """The Params that decide what is learned from given rows, by name."""
    values = {param.name: params.getOrDefault(param) for param in params.params if params.isDefined(param)}
    return {name: value for name, value in values.items() if name not in _NOT_LEARNING}


def check_together(params: BSPAUCParams) -> None:
    """Refuse Params that contradict each other, before anything long starts."""
    if params.getOrDefault("selfPaced"):
        _check_pace(params)
    if params.getOrDefault("patience") and not params.isDefined("validationIndicatorCol"):
        raise InvalidParamError(
            f"patience {params.getOrDefault('patience')} needs validation rows, and validationIndicatorCol is not set. "
            "Set validationIndicatorCol, or leave patience out."
        )
    if params.getOrDefault("mixedPrecision") and not params.getOrDefault("useGpu"):
        raise InvalidParamError("mixedPrecision is for GPUs, and useGpu is False. Set useGpu=True, or leave it out.")
    if params.getOrDefault("mixedPrecision") and params.getOrDefault("network") == "kernel":
        raise InvalidParamError(
            "mixedPrecision is not for network 'kernel': angles of random features need all digits of float32. "
            "Leave mixedPrecision out."
        )


def _check_pace(params: BSPAUCParams) -> None:
    schedule = params.getOrDefault("paceSchedule")
    if schedule == "fraction":
        _refuse_set(
            params, ("lambdaInit", "lambdaGrowth", "lambdaMax"), "paceSchedule is 'fraction', which finds λ itself"
        )
        _check_order(params, "paceStart", "paceEnd")
    else:
        _refuse_set(params, ("paceEnd",), f"paceSchedule is {schedule!r}, which ends at lambdaMax")
        if schedule == "linear":
            _refuse_set(params, ("lambdaGrowth",), "paceSchedule is 'linear', which rises by equal steps")
        if not params.isDefined("lambdaMax"):
            raise InvalidParamError(f"paceSchedule {schedule!r} needs lambdaMax, the largest λ. Set lambdaMax.")
        if params.isDefined("lambdaInit"):
            _refuse_set(params, ("paceStart",), "lambdaInit is set, which is the start itself")
        _check_order(params, "lambdaInit", "lambdaMax")
    if params.isDefined("mu"):
        _refuse_set(params, ("nu",), "mu is set, which nu would give")


def _refuse_set(params: BSPAUCParams, names: tuple[str, ...], reason: str) -> None:
    given = [name for name in names if params.isSet(name)]
    if given:
        raise InvalidParamError(f"{' and '.join(given)} cannot be set while {reason}. Leave one or the other out.")


def _check_order(params: BSPAUCParams, first: str, last: str) -> None:
    if not (params.isDefined(first) and params.isDefined(last)):
        return
    start, end = params.getOrDefault(first), params.getOrDefault(last)
    if start > end:
        raise InvalidParamError(f"{first} {start:g} is above {last} {end:g}, and the pace rises. Swap them.")
