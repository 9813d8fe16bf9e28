"""The Params of ``BSPAUCClassifier`` and ``BSPAUCModel``: names, ranges, defaults, documentation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
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

T = TypeVar("T")


def _checked(convert: Callable[[Any], T], valid: Callable[[T], bool], wanted: str, name: str) -> Callable[[Any], T]:
    """A type converter that also checks the range, so that a bad value is refused when it is set."""

    def convert_and_check(value: Any) -> T:
        try:
            converted = convert(value)
        except (TypeError, ValueError) as error:
            raise InvalidParamError(f"{name} must be {wanted}; got {value!r}.") from error
        if not valid(converted):
            raise InvalidParamError(f"{name} must be {wanted}; got {value!r}.")
        return converted

    return convert_and_check


def _number(name: str, doc: str, low: float, high: float = math.inf, *, open_low: bool = False) -> Any:
    wanted = f"a number in {'(' if open_low else '['}{low:g}, {high:g}{']' if math.isfinite(high) else ')'}"

    def valid(x: float) -> bool:
        return math.isfinite(x) and (low < x if open_low else low <= x) and x <= high

    return _param(name, f"{doc} ({wanted})", _checked(TypeConverters.toFloat, valid, wanted, name))


def _integer(name: str, doc: str, low: int) -> Any:
    wanted = f"a whole number of at least {low}"
    return _param(name, f"{doc} ({wanted})", _checked(TypeConverters.toInt, lambda x: x >= low, wanted, name))


def _choice(name: str, doc: str, options: tuple[str, ...]) -> Any:
    wanted = "one of " + ", ".join(repr(option) for option in options)
    return _param(name, f"{doc} ({wanted})", _checked(TypeConverters.toString, options.__contains__, wanted, name))


def _flag(name: str, doc: str) -> Any:
    return _param(name, doc, _checked(TypeConverters.toBoolean, lambda _: True, "True or False", name))


def _param(name: str, doc: str, converter: Callable[[Any], Any]) -> Any:
    return Param(Params._dummy(), name, doc, typeConverter=converter)


class BSPAUCModelParams(HasFeaturesCol, HasLabelCol, HasPredictionCol, HasRawPredictionCol, HasProbabilityCol):
    """Params that the fitted model uses too."""

    positiveLabel: Param[float] = _number(
        "positiveLabel",
        "the label that counts as positive; every other label is negative",
        -math.inf,
    )
    threshold: Param[float] = _number(
        "threshold",
        "rows that score above it are predicted positive; unset: the score that maximises balanced accuracy on "
        "the training rows",
        -math.inf,
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(positiveLabel=1.0)

    def getPositiveLabel(self) -> float:
        """Value of ``positiveLabel``."""
        return self.getOrDefault(self.positiveLabel)

    def getThreshold(self) -> float:
        """Value of ``threshold``."""
        return self.getOrDefault(self.threshold)


class BSPAUCParams(BSPAUCModelParams, HasValidationIndicatorCol, HasSeed):
    """Params of the fit."""

    network: Param[str] = _choice(
        "network",
        "the scoring function: fully connected layers with ReLU, one linear layer, or random Fourier features of the "
        "Gaussian kernel",
        ("mlp", "linear", "kernel"),
    )
    hiddenLayers: Param[list[int]] = _param(
        "hiddenLayers",
        "widths of the hidden layers of the mlp; seven of them and the output make the paper's eight fully "
        "connected layers (a list of whole numbers of at least 1)",
        _checked(
            TypeConverters.toListInt,
            lambda widths: len(widths) > 0 and min(widths) >= 1,
            "a list of whole numbers of at least 1",
            "hiddenLayers",
        ),
    )

    numRandomFeatures: Param[int] = _integer(
        "numRandomFeatures", "random features D of the kernel; each is a cosine and a sine", 1
    )
    kernelWidth: Param[Any] = _param(
        "kernelWidth",
        "width σ of the Gaussian kernel exp(−‖x − y‖²/2σ²): a number > 0, or 'median', the median distance of rows",
        _checked(
            lambda value: value if value == "median" else TypeConverters.toFloat(value),
            lambda value: value == "median" or (math.isfinite(value) and value > 0),
            "a number > 0 or 'median'",
            "kernelWidth",
        ),
    )
    featuresPerStep: Param[int] = _integer(
        "featuresPerStep",
        "random features whose coefficients a step of the kernel's training moves, in turn; 1 is the paper's "
        "Algorithm 3, 0 moves all",
        0,
    )

    selfPaced: Param[bool] = _flag(
        "selfPaced",
        "select easy rows round by round; False trains on all rows (the paper's DSAM, with the kernel TSAM)",
    )
    rounds: Param[int] = _integer("rounds", "rounds T of selection and training", 1)
    paceStart: Param[float] = _number(
        "paceStart",
        "fraction of the rows kept in round 1, (V + U)/2; unset: 0.5, or, where paceEnd is automatic, the automatic "
        "fractions from the first round on",
        0,
        1,
        open_low=True,
    )
    paceEnd: Param[float] = _number(
        "paceEnd",
        "fraction of the rows kept in the last round; unset: per class, one minus the estimated share of wrong "
        "labels, estimated anew each round",
        0,
        1,
        open_low=True,
    )
    paceSchedule: Param[str] = _choice(
        "paceSchedule",
        "what rises: the kept fraction, or λ itself, by the factor lambdaGrowth (Algorithm 1) or linearly",
        ("fraction", "geometric", "linear"),
    )
    lambdaInit: Param[float] = _number(
        "lambdaInit", "λ of round 1; unset: the one that keeps paceStart of the rows", 0, open_low=True
    )
    lambdaGrowth: Param[float] = _number("lambdaGrowth", "factor c of λ from round to round (geometric)", 1)
    lambdaMax: Param[float] = _number(
        "lambdaMax",
        "largest λ, the paper's λ_∞; needed by the geometric and linear schedules",
        0,
        open_low=True,
    )
    nu: Param[float] = _number("nu", "weight ν of the balance between the classes: μ = ν·λ", 0)
    mu: Param[float] = _number("mu", "weight μ of the balance itself; unset: from nu", 0)

    optimizer: Param[str] = _choice(
        "optimizer",
        "sgd is Algorithm 2; adam adds the penalty to the gradient, adamw decouples it",
        ("adam", "adamw", "sgd"),
    )
    learningRate: Param[float] = _number("learningRate", "learning rate η", 0, open_low=True)
    batchSize: Param[int] = _integer("batchSize", "positives, and as many negatives, per step", 1)
    stepsPerRound: Param[int] = _integer("stepsPerRound", "steps of the θ block in each round", 1)
    regParam: Param[float] = _number(
        "regParam",
        "weight τ of the penalty Ω(θ) = ½‖θ‖² in the objective; with adamw, where the decay is decoupled, the rate of "
        "that decay, and the objective has no penalty; unset: 0.3, but for an mlp under adamw 6000 / rows, at most "
        "5, where that is more: few rows would be learned by heart",
        0,
    )
    pairing: Param[str] = _choice(
        "pairing",
        "pairs of a batch: every one, or the j-th positive with the j-th negative (paper)",
        ("all", "matched"),
    )
    averaging: Param[float] = _number(
        "averaging", "decay of the moving average of θ over steps, which scores and is saved; 0 is off", 0, 1
    )
    pretrainSteps: Param[int] = _integer("pretrainSteps", "steps on a small share of the rows before round 1", 0)
    pretrainFraction: Param[float] = _number(
        "pretrainFraction", "share of each class used by the pre-training", 0, 1, open_low=True
    )
    ensureDescent: Param[bool] = _flag(
        "ensureDescent",
        "redo a θ block that raised its objective with half the learning rate, at most three times, then keep the "
        "old θ",
    )
    patience: Param[int] = _integer(
        "patience",
        "with validationIndicatorCol: stop after so many rounds without a better validation AUC; 0: never",
        0,
    )
    stagingDir: Param[str] = _param(
        "stagingDir",
        "folder that the driver and all executors see, for the staged rows, which are removed after the fit; unset: "
        "the system's temporary folder, on a local master only",
        TypeConverters.toString,
    )
    numProcesses: Param[int] = _integer(
        "numProcesses",
        "workers that train θ; 0: on a local master this process, on a cluster one per executor, with useGpu per GPU",
        0,
    )
    localMode: Param[bool] = _flag(
        "localMode",
        "True: the workers are processes beside the driver, False: tasks on executors; unset: as the master is",
    )
    useGpu: Param[bool] = _flag(
        "useGpu", "train on GPUs: each worker on the one that Spark assigned to it, this process on the first one"
    )
    mixedPrecision: Param[bool] = _flag(
        "mixedPrecision", "on GPUs, compute the layers of a training step in bfloat16; θ and all scores stay float32"
    )
    checkpointDir: Param[str] = _param(
        "checkpointDir",
        "folder where each finished round is saved until the fit ends; a fit with the same Params and data that finds "
        "saved rounds there goes on after them",
        TypeConverters.toString,
    )
    maxRestarts: Param[int] = _integer(
        "maxRestarts", "how often lost workers are started again, from the last finished round", 0
    )
    exactRows: Param[int] = _integer(
        "exactRows",
        "scores of a class that are sorted on the driver, 4 bytes each; of a larger class histograms and the few bins "
        "that matter come to it, and the selection is the same",
        0,
    )
    tracking: Param[str] = _choice(
        "tracking",
        "MLflow: 'auto' logs the fit to the active run, if there is one, 'on' to a run of its own, nested under an "
        "active one",
        ("auto", "on", "off"),
    )
    verbose: Param[bool] = _flag("verbose", "show a progress bar over the rounds")

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


def learning_params(params: BSPAUCParams) -> dict[str, Any]:
    """The Params that decide what is learned from given rows, by name."""
    values = {param.name: params.getOrDefault(param) for param in params.params if params.isDefined(param)}
    return {name: value for name, value in values.items() if name not in _NOT_LEARNING}


def check_together(params: BSPAUCParams) -> None:
    """Refuse Params that contradict each other, before anything long starts."""
    schedule = params.getOrDefault(params.paceSchedule)
    given = [name for name in ("lambdaInit", "lambdaMax") if params.isDefined(name)]
    if schedule == "fraction":
        if given:
            raise InvalidParamError(
                f"{' and '.join(given)} set while paceSchedule is 'fraction', which finds λ by itself. "
                "Set paceSchedule to 'geometric' or 'linear', or clear them."
            )
        if (
            params.isDefined("paceEnd")
            and params.isDefined("paceStart")
            and params.getOrDefault("paceEnd") < params.getOrDefault("paceStart")
        ):
            raise InvalidParamError(
                f"paceEnd {params.getOrDefault('paceEnd'):g} is below paceStart "
                f"{params.getOrDefault('paceStart'):g}; the kept fraction rises from paceStart to paceEnd."
            )
    else:
        if not params.isDefined("lambdaMax"):
            raise InvalidParamError(f"paceSchedule {schedule!r} needs lambdaMax, the largest λ.")
        if params.isDefined("lambdaInit") and params.getOrDefault("lambdaInit") > params.getOrDefault("lambdaMax"):
            raise InvalidParamError(
                f"lambdaInit {params.getOrDefault('lambdaInit'):g} is above lambdaMax "
                f"{params.getOrDefault('lambdaMax'):g}."
            )
    if params.getOrDefault("mixedPrecision") and not params.getOrDefault("useGpu"):
        raise InvalidParamError("mixedPrecision is for GPUs, and useGpu is False. Set useGpu=True, or leave it out.")
    if params.getOrDefault("mixedPrecision") and params.getOrDefault("network") == "kernel":
        raise InvalidParamError(
            "mixedPrecision is not for network 'kernel': angles of random features need all digits of float32."
        )
    columns = {name: params.getOrDefault(name) for name in ("predictionCol", "rawPredictionCol", "probabilityCol")}
    named = [column for column in columns.values() if column]
    if len(set(named)) < len(named):
        raise InvalidParamError(f"output columns must have different names; got {columns}.")
