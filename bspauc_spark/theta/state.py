"""The state of a worker as arrays by name: what its parts are called, and whether a checkpoint holds one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bspauc_spark.errors import MalformedError

# What Adam keeps of each parameter, once it has made a step.
_MOMENTS = ("exp_avg", "exp_avg_sq")
_MOST_STEPS = 2**40


# Of the moving average of θ, which scores and is saved; of the random draws to come.
_AVERAGE, _GENERATOR = "average.", "generator"

State: TypeAlias = Mapping[str, npt.NDArray[Any]]


def averaged(state: State) -> dict[str, npt.NDArray[np.float32]]:
    """A copy of the θ that scores, out of a worker's state."""
    return {name.removeprefix(_AVERAGE): array.copy() for name, array in state.items() if name.startswith(_AVERAGE)}


def with_averaged(state: State, weights: Mapping[str, npt.NDArray[np.float32]]) -> State:
    """The state with another θ that scores."""
    return {**state, **{f"{_AVERAGE}{name}": array for name, array in weights.items()}}


def draws_of(state: State) -> npt.NDArray[Any]:
    """Where the random draws stand."""
    return state[_GENERATOR]


def with_draws(state: State, draws: npt.NDArray[Any]) -> State:
    """An earlier state from which draws go on as they stand now, so that what is repeated sees other pairs."""
    return {**state, _GENERATOR: draws}


def check_state(
    state: State,
    tensors: Mapping[str, Tensor],
    parameters: Sequence[Tensor],
    generator: torch.Generator,
) -> None:
    """Refuse names, types, shapes or numbers that do not belong to these ``tensors`` and optimizer ``parameters``."""
    scalar = torch.zeros(())
    wanted = {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer.")}
    if any(name.startswith("optimizer.") for name in state):
        for number, parameter in enumerate(parameters):
            wanted |= {f"optimizer.{number}.{name}": parameter for name in _MOMENTS}
            wanted[f"optimizer.{number}.step"] = scalar
    wanted |= {_GENERATOR: generator.get_state(), "steps_done": torch.tensor(0)}
    if state.keys() != wanted.keys():
        raise MalformedError(f"the state has other parts than this fit's: {len(state):,}, not {len(wanted):,}")
    for name, tensor in wanted.items():
        array = state[name]
        if array.shape != tuple(tensor.shape) or torch.from_numpy(np.empty(0, array.dtype)).dtype != tensor.dtype:
            raise MalformedError(f"state.{name} is {array.dtype} {list(array.shape)}, not as this fit has it")
        if not np.isfinite(array).all():
            raise MalformedError(f"state.{name} holds NaN or infinite values")
        if name.endswith(".columns") and not np.array_equal(array, tensor.cpu().numpy()):
            raise MalformedError(f"state.{name} are other features than those of these rows")
        if ".inputs." in name and not np.array_equal(array, tensor.cpu().numpy()):
            raise MalformedError(f"state.{name} is not what these rows give")
        if name.endswith((".step", ".times", "steps_done")) and not (array >= 0).all() & (array < _MOST_STEPS).all():
            raise MalformedError(f"state.{name} counts no steps")
