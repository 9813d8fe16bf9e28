"""The Params of ``BSPAUCClassifier`` and ``BSPAUCModel``: names, ranges, defaults, documentation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasValidationIndicatorCol,
)

from bspauc_spark.spark.converters import (
    CheckedParam,
    CheckedParams,
    anything,
    choice,
    column,
    declared,
    flag,
    integer,
    integers,
    location,
    number,
)
from bspauc_spark.theta.networks import MOST_FOLDS, MOST_LAYERS

if TYPE_CHECKING:
    pass

# Of λ, μ, ν: their products must be finite. Of η and τ: θ and the optimizers count in float32.
LARGEST, LARGEST_RATE = 1e30, 1e6
# Less than this of a class is lost in rounding.
LEAST_FRACTION = 1e-6


def _width(value: Any) -> float | str:
    return "median" if isinstance(value, str) and value == "median" else TypeConverters.toFloat(value)


def _can_be_width(value: float | str) -> bool:
    return isinstance(value, str) or 1e-30 <= value <= 1e30


class BSPAUCModelParams(
    CheckedParams, HasFeaturesCol, HasLabelCol, HasPredictionCol, HasRawPredictionCol, HasProbabilityCol
):
    """Params that the fitted model uses too."""

    # Spark's own, checked as ours are.
    featuresCol = column("features column name", default="features")
    labelCol = column("label column name", default="label")
    predictionCol = column("prediction column name", empty=True, default="prediction")
    rawPredictionCol = column("raw prediction column name", empty=True, default="rawPrediction")
    probabilityCol = column("probability column name", empty=True, default="probability")

    positiveLabel = number("the label that counts as positive; every other label is negative", -math.inf, default=1.0)
    threshold = number(
        "rows that score above it are predicted positive; unset: the score that maximises balanced accuracy on "
        "the training rows",
        -math.inf,
        learning=False,
    )

    def _outputs(self) -> dict[str, str]:
        """The columns that a model adds, by their Params."""
        names = ("predictionCol", "rawPredictionCol", "probabilityCol")
        return {name: self.getOrDefault(name) for name in names}

    def getPositiveLabel(self) -> float:
        """Value of ``positiveLabel``."""
        return self.getOrDefault(self.positiveLabel)


class BSPAUCParams(BSPAUCModelParams, HasValidationIndicatorCol, HasSeed):
    """Params of the fit."""

    validationIndicatorCol = column("column name of the indicator: true for validation, false for training")
    seed = CheckedParam(
        "int", "random seed (a whole number)", "a whole number", TypeConverters.toInt, anything, default=0
    )
    network = choice(
        "the scoring function: 'mlp': fully connected layers with ReLU; 'linear': one linear layer; 'kernel': random "
        "Fourier features of the Gaussian kernel; 'table': how near a row is to some training rows, by two measures, "
        "and a line, with inputs 'auto' and folds; its θ block is solved in closed form instead of by steps; rows "
        "of more than 2,000 features, or sparse ones of more than 1,000, get the mlp in its place",
        ("mlp", "linear", "kernel", "table"),
        default="table",
    )
    inputs = choice(
        "'auto': the fit puts the columns on scales that the network can use, by a sample of the training rows, and "
        "the model holds them: two values become −1 and 1, any other number its rank and its distance from the median; "
        "'raw': the network takes columns as they are; unset: 'raw', but network 'table' always has 'auto'",
        ("raw", "auto"),
        default="raw",
    )
    handleInvalid = choice(
        "what becomes of NaN in features: 'error': fit and transform refuse it; 'keep', which needs inputs 'auto': "
        "it is a gap, with a flag of its own in columns that had gaps in training, and otherwise the column's median",
        ("error", "keep"),
        default="error",
    )
    hiddenLayers = integers(
        "widths of the hidden layers of the mlp; seven of them and the output make the paper's eight fully connected "
        "layers",
        1,
        MOST_LAYERS,
        default=[64] * 7,
    )

    numRandomFeatures = integer(
        "for the kernel: the number D of random features; each of them is a cosine and a sine", 1, default=1000
    )
    kernelWidth: CheckedParam[float | str] = CheckedParam(
        "float | str",
        "width σ of the Gaussian kernel exp(−‖x − y‖²/2σ²): a number from 1e-30 to 1e30, or 'median', the median "
        "distance of rows",
        "a number from 1e-30 to 1e30, or 'median'",
        _width,
        _can_be_width,
        default="median",
    )
    featuresPerStep = integer(
        "for the kernel: of how many random features a step moves the coefficients; steps take the features in turn; "
        "1 is the paper's Algorithm 3, 0 moves all in every step",
        0,
        default=0,
    )

    folds = integer(
        "number of folds of cross-fitting: θ is so many members, each learns from the rows outside its own fold, and "
        "every row is judged by the member that did not learn from it; 0: one network, which judges the rows that it "
        "learned from, as in the paper; unset: 4 for network 'table', otherwise 0",
        0,
        MOST_FOLDS,
    )
    selfPaced = flag(
        "True: each round trains on the rows that it selects; False: every round trains on all rows (this is the "
        "paper's DSAM, and TSAM with the kernel)",
        default=True,
    )
    rounds = integer(
        "number T of rounds; a round selects rows and trains on them; unset: 10, but 3 for network 'table', whose "
        "rounds go all the way",
        1,
    )
    paceStart = number(
        "fraction of the rows that round 1 keeps, (V + U)/2; unset: 0.5, but if paceEnd is unset too, every round "
        "keeps the automatic fractions",
        LEAST_FRACTION,
        1,
    )
    paceEnd = number(
        "fraction of the rows that the last round keeps; unset: each class keeps all rows but its share of wrong "
        "labels, which every round estimates anew",
        LEAST_FRACTION,
        1,
    )
    paceSchedule = choice(
        "what rises from round to round: 'fraction': the kept fraction; 'geometric': λ, by the factor lambdaGrowth, "
        "as in Algorithm 1; 'linear': λ, by equal steps",
        ("fraction", "geometric", "linear"),
        default="fraction",
    )
    lambdaInit = number("λ of round 1; unset: the λ that keeps paceStart of the rows", 0, LARGEST, open_low=True)
    lambdaGrowth = number("for the geometric schedule: the factor c by which λ rises", 1, LARGEST, default=1.2)
    lambdaMax = number(
        "the largest λ, λ_∞ in the paper; the geometric and the linear schedule need it",
        0,
        LARGEST,
        open_low=True,
    )
    nu = number(
        "weight ν of the balance between the classes, relative to λ: μ = ν·λ, or ν·λ_∞ where λ has a schedule",
        0,
        LARGEST,
        default=1.0,
    )
    mu = number("weight μ of the balance between the classes; unset: nu gives it", 0, LARGEST)

    optimizer = choice(
        "'sgd' is Algorithm 2; 'adam' adds the gradient of the penalty to that of the loss; 'adamw' shrinks θ beside "
        "the gradient (decoupled decay)",
        ("adam", "adamw", "sgd"),
        default="adamw",
    )
    learningRate = number("learning rate η", 0, LARGEST_RATE, open_low=True, default=3e-3)
    batchSize = integer("how many positives, and as many negatives, are in the batch of a step", 1, 2**20, default=256)
    stepsPerRound = integer("training steps in each round", 1, default=60)
    regParam = number(
        "weight τ of the penalty Ω(θ) = ½‖θ‖² in the objective; with optimizer 'adamw' the objective has no penalty, "
        "and this is the rate of the decoupled decay; network 'table' is pulled to 0 as by so many rows; unset: 0.3, "
        "but with 'adamw' an mlp gets 3000 / rows of the smaller class if these are below 10,000, at most 5, since "
        "otherwise it would learn them by heart, and for a table honest scores choose",
        0,
        LARGEST_RATE,
    )
    pairing = choice(
        "which pairs of a batch count: 'all' of them, or, as in the paper, 'matched': the j-th positive with the "
        "j-th negative",
        ("all", "matched"),
        default="all",
    )
    averaging = number(
        "decay of the moving average of θ over the steps; the averaged θ is the one that scores and is saved; 0: θ "
        "itself",
        0,
        1,
        default=0.99,
    )
    pretrainSteps = integer(
        "training steps before round 1, on pretrainFraction of the rows of each class; 0: none", 0, default=60
    )
    pretrainFraction = number(
        "share of each class on which the pre-training steps train", 0, 1, open_low=True, default=1.0
    )
    ensureDescent = flag(
        "repeat the training of a round that raised its objective, with half the learning rate, at most three times; "
        "if it still rises, keep the old θ; not for network 'table', which has no steps",
        default=False,
    )
    patience = integer(
        "needs validationIndicatorCol: stop after so many rounds without a better validation AUC; 0: never",
        0,
        default=0,
    )
    stagingDir = location(
        "folder that the driver and all executors see, or URI of an object store; the fit writes its rows there, and "
        "removes them at its end; unset: on a local master the system's temporary folder; on Spark Connect that of "
        "the client, which then fetches the rows"
    )
    numProcesses = integer(
        "number of workers that train; 0: on a local master and on Spark Connect this process alone; on a cluster "
        "one per executor, or with useGpu one per GPU",
        0,
        default=0,
        learning=False,
    )
    localMode = flag(
        "where the workers run: True: in processes beside the driver; False: in tasks on executors; unset: True on a "
        "local master and, without numProcesses, on Spark Connect; otherwise False",
        learning=False,
    )
    useGpu = flag(
        "train on GPUs: a worker on the GPU that Spark assigns to its task, a fit in this process on the first GPU",
        default=False,
        learning=False,
    )
    mixedPrecision = flag(
        "on GPUs, compute the layers of a training step in bfloat16; θ and all scores stay float32", default=False
    )
    checkpointDir = location(
        "folder, or URI of an object store, where the fit saves each finished round until it succeeds; a fit with "
        "the same Params and data that finds saved rounds there goes on after them"
    )
    maxRestarts = integer(
        "how often a fit starts lost workers again, from the last finished round", 0, default=2, learning=False
    )
    exactRows = integer(
        "up to so many rows of a class the driver sorts all scores, 4 bytes each; of a larger class it gets a "
        "histogram and the few bins that matter, and the selection is the same",
        0,
        2**40,
        default=50_000_000,
    )
    tracking = choice(
        "MLflow: 'auto' logs the fit to the active run, if there is one; 'on' to a run of its own, nested under an "
        "active one; 'off' logs nothing",
        ("auto", "on", "off"),
        default="auto",
        learning=False,
    )
    verbose = flag("show a progress bar over the rounds", default=True, learning=False)


def optional(params: BSPAUCParams, name: str) -> Any:
    """The Param's value, or None where it has none."""
    return params.getOrDefault(name) if params.isDefined(name) else None


def learning_params(params: BSPAUCParams) -> dict[str, Any]:
    """The Params that decide what is learned from given rows, by name."""
    names = [name for name, param in declared(type(params)).items() if param.learning and params.isDefined(name)]
    return {name: params.getOrDefault(name) for name in names}


def automatic_inputs(params: BSPAUCParams) -> bool:
    """Whether the fit finds scales for the columns."""
    network: str = params.getOrDefault("network")
    auto: bool = params.getOrDefault("inputs") == "auto"
    return network == "table" or (network != "kernel" and auto)
