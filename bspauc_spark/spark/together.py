"""Params that contradict each other, each of them fine by itself."""

from __future__ import annotations

from bspauc_spark.errors import InvalidParamError
from bspauc_spark.spark.params import BSPAUCParams, automatic_inputs


def check_together(params: BSPAUCParams) -> None:
    """Refuse Params that contradict each other, before anything long starts."""
    _check_inputs(params)
    if params.getOrDefault("selfPaced"):
        _check_pace(params)
    if params.isDefined("folds") and params.getOrDefault("folds") == 1:
        raise InvalidParamError("folds is 1, and a single fold leaves no rows to learn from. Set 0, or 2 or more.")
    if params.getOrDefault("patience") and not params.isDefined("validationIndicatorCol"):
        raise InvalidParamError(
            f"patience {params.getOrDefault('patience')} needs validation rows, and validationIndicatorCol is not set. "
            "Set validationIndicatorCol, or leave patience out."
        )
    if params.getOrDefault("ensureDescent") and params.getOrDefault("network") == "table":
        raise InvalidParamError(
            "ensureDescent repeats training steps at a lower learning rate, and network 'table' has no steps. Set "
            "another network, such as 'mlp', or leave ensureDescent out."
        )
    if params.getOrDefault("mixedPrecision") and not params.getOrDefault("useGpu"):
        raise InvalidParamError("mixedPrecision is for GPUs, and useGpu is False. Set useGpu=True, or leave it out.")
    if params.getOrDefault("mixedPrecision") and params.getOrDefault("network") == "kernel":
        raise InvalidParamError(
            "mixedPrecision is not for network 'kernel': angles of random features need all digits of float32. "
            "Leave mixedPrecision out."
        )


def _check_inputs(params: BSPAUCParams) -> None:
    network, inputs = (params.getOrDefault(name) for name in ("network", "inputs"))
    if params.isSet("inputs"):
        if network == "kernel" and inputs == "auto":
            raise InvalidParamError(
                "inputs 'auto' is not for network 'kernel', whose width is a distance of rows as they are. Leave one "
                "or the other out."
            )
        if network == "table" and inputs == "raw":
            raise InvalidParamError("network 'table' needs inputs 'auto', and inputs is 'raw'. Leave inputs out.")
    if params.getOrDefault("handleInvalid") == "keep" and not automatic_inputs(params):
        raise InvalidParamError(
            "handleInvalid is 'keep', and without inputs 'auto' a NaN would reach the network. Set inputs='auto', or "
            "impute and set handleInvalid='error'."
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
