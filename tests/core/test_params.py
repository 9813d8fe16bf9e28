"""Every Param refuses what is outside its range or of another type, however it is set."""

from __future__ import annotations

import inspect
import math
import pickle
from typing import Any

import numpy as np
import pytest
from pyspark.ml.param import Param
from pyspark.ml.tuning import ParamGridBuilder

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.errors import InvalidParamError
from bspauc_spark.spark.converters import declared
from bspauc_spark.spark.together import check_together

NUMBERS = (True, "1", None, math.nan, math.inf, -math.inf, [1.0], {}, b"1", 10**400, np.array([1.0, 2.0]))
WHOLE = (*NUMBERS, 1.5, -1, 2**41)
FLAGS = (0, 1, "True", None, math.nan, [True])
TEXTS = (1, 1.5, True, None, math.nan, ["x"], b"x")
BAD: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("featuresCol", "labelCol", "validationIndicatorCol"), (*TEXTS, "")),
    **dict.fromkeys(("stagingDir", "checkpointDir"), (*TEXTS, "", "a\0b", "\ud800")),
    **dict.fromkeys(("predictionCol", "rawPredictionCol", "probabilityCol"), TEXTS),
    **dict.fromkeys(
        ("network", "inputs", "handleInvalid", "paceSchedule", "optimizer", "pairing", "tracking"), (*TEXTS, "", "nope")
    ),
    **dict.fromkeys(("selfPaced", "ensureDescent", "localMode", "useGpu", "mixedPrecision", "verbose"), FLAGS),
    **dict.fromkeys(("positiveLabel", "threshold"), NUMBERS),
    **dict.fromkeys(("paceStart", "paceEnd"), (*NUMBERS, 0, -0.1, 1e-7, 1.1)),
    **dict.fromkeys(("lambdaInit", "lambdaMax"), (*NUMBERS, 0, -0.1, 1e31)),
    **dict.fromkeys(("nu", "mu"), (*NUMBERS, -0.1, 1e31)),
    "pretrainFraction": (*NUMBERS, 0, -0.1, 1.1),
    "learningRate": (*NUMBERS, 0, -0.1, 1e7),
    "regParam": (*NUMBERS, -0.1, 1e7),
    **dict.fromkeys(("rounds", "batchSize", "stepsPerRound", "numRandomFeatures"), (*WHOLE, 0)),
    **dict.fromkeys(
        ("pretrainSteps", "patience", "featuresPerStep", "numProcesses", "maxRestarts", "exactRows"), WHOLE
    ),
    "folds": (*WHOLE, 65),
    "averaging": (*NUMBERS, -0.1, 1.1),
    "lambdaGrowth": (*NUMBERS, 0.9, 1e31),
    "kernelWidth": (*NUMBERS, 0, -1, 1e-31, 1e31, "mean"),
    "hiddenLayers": (64, "64", None, [], [0], [1.5], [True], ["64"], [64, -1], {}, [1] * 1001),
    "seed": (True, "1", None, math.nan, math.inf, 1.5, [1]),
}


def test_every_param_is_in_the_table() -> None:
    assert {param.name for param in BSPAUCClassifier().params} == set(BAD)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_however_it_is_set(name: str) -> None:
    estimator = BSPAUCClassifier()
    param: Param[Any] = estimator.getParam(name)
    setter = getattr(estimator, f"set{name[0].upper()}{name[1:]}")
    for value in BAD[name]:
        ways = [
            lambda v: setter(v),
            lambda v: estimator.set(param, v),
            lambda v: estimator.copy({param: v}),
            lambda v: estimator.setParams(**{name: v}),
            lambda v: BSPAUCClassifier(**{name: v}),
            lambda v: ParamGridBuilder().addGrid(param, [v]).build(),
        ]
        # In the constructor and in setParams None stands for "leave it".
        for way in ways if value is not None else ways[:3]:
            with pytest.raises(InvalidParamError, match=f"^{name} (must be|cannot be None)"):
                way(value)
    assert not estimator.isSet(param)


def test_numbers_and_flags_of_numpy_are_taken_whatever_their_size() -> None:
    estimator = BSPAUCClassifier(
        learningRate=np.float32(0.5),  # type: ignore[arg-type]
        rounds=np.int8(3),  # type: ignore[arg-type]
        selfPaced=np.False_,  # type: ignore[arg-type]
        hiddenLayers=np.array([3, 4], dtype=np.int32),  # type: ignore[arg-type]
    )
    assert estimator.getLearningRate() == 0.5
    assert type(estimator.getRounds()) is int
    assert estimator.getSelfPaced() is False
    assert estimator.getHiddenLayers() == [3, 4]
    assert estimator.setHiddenLayers([np.int16(5)]).getHiddenLayers() == [5]


@pytest.mark.parametrize("name", BAD)
def test_every_param_has_a_getter_and_a_setter_that_say_what_it_is(name: str) -> None:
    estimator = BSPAUCClassifier()
    param = declared(BSPAUCClassifier)[name]
    getter, setter = (getattr(estimator, f"{verb}{name[0].upper()}{name[1:]}") for verb in ("get", "set"))
    value = {"float": 0.5, "int": 2, "str": "a", "bool": True}[param.kind] if param.default is None else param.default
    assert setter(value) is estimator
    assert estimator.isSet(name)
    assert getter() == value
    assert setter.__doc__ == f"Set ``{name}``: {param.doc}."
    assert name in getter.__doc__


def test_the_constructor_shows_every_param_as_a_keyword_with_its_default() -> None:
    estimator = BSPAUCClassifier()
    shown = {
        name: one.default
        for name, one in inspect.signature(BSPAUCClassifier).parameters.items()
        if one.kind is one.KEYWORD_ONLY
    }
    defaults = {one.name: estimator.getOrDefault(one) for one in estimator.params if estimator.hasDefault(one)}
    assert shown == {**dict.fromkeys(BAD), **defaults}


def test_the_constructor_takes_keywords_that_it_knows_and_no_others() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'roundz'"):
        BSPAUCClassifier(roundz=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        BSPAUCClassifier("features")  # type: ignore[call-arg]


def test_a_name_that_is_no_param_is_refused() -> None:
    with pytest.raises(InvalidParamError, match=r"BSPAUCClassifier has no Param 'roundz'\. explainParams"):
        BSPAUCClassifier().setParams(roundz=3)


def test_a_pace_that_is_not_used_is_not_checked() -> None:
    check_together(BSPAUCClassifier(selfPaced=False, paceSchedule="linear"))
    with pytest.raises(InvalidParamError, match="needs lambdaMax"):
        check_together(BSPAUCClassifier(paceSchedule="linear"))


def test_a_models_params_are_checked_too() -> None:
    model = BSPAUCModel()
    with pytest.raises(InvalidParamError, match="threshold must be a number"):
        model.setThreshold(math.nan)
    with pytest.raises(InvalidParamError, match="predictionCol cannot be None"):
        model.setPredictionCol(None)  # type: ignore[arg-type]


def test_a_param_of_another_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="does not belong"):
        BSPAUCClassifier().set(BSPAUCClassifier().rounds, 3)


def test_an_estimator_can_be_pickled_and_still_checks_its_params() -> None:
    estimator = BSPAUCClassifier(rounds=3, hiddenLayers=[4], kernelWidth=2.0, stagingDir="a")
    again = pickle.loads(pickle.dumps(estimator))
    assert {p.name: v for p, v in again.extractParamMap().items()} == {
        p.name: v for p, v in estimator.extractParamMap().items()
    }
    for name in ("rounds", "hiddenLayers", "learningRate", "network", "stagingDir", "selfPaced", "kernelWidth", "seed"):
        with pytest.raises(InvalidParamError, match=f"^{name} must be"):
            again.set(again.getParam(name), [object()])
