"""θ: the network, its moving average, and the optimizer that moves both."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bspauc_spark.rows.rows import Batch, SparseBatch
from bspauc_spark.theta.group import Group
from bspauc_spark.theta.lazy_layer import LazyLayer
from bspauc_spark.theta.networks import LayeredNetwork, NetworkSpec, ScoringNetwork
from bspauc_spark.theta.optimizers import TrainingSettings, adam_epsilon, make_optimizer, move_average


class Theta:
    """θ and all that the next step depends on. With sparse rows, only the ``columns`` that occur have weights.

    Every rank has the same θ: before a step moves it, the gradients of all ranks are summed.
    """

    def __init__(self, spec: NetworkSpec, settings: TrainingSettings, columns: Tensor | None, seed: int) -> None:
        self._settings = settings
        self.network = spec.build(torch.Generator().manual_seed(seed), columns)
        self.network.to(torch.device(settings.device))
        self.average = copy.deepcopy(self.network) if settings.averaging > 0 else self.network
        self.lazy = self._lazy_layer() if columns is not None else None
        self.parameters, self._averages = (self._moved(network) for network in (self.network, self.average))
        self.optimizer = make_optimizer(self.parameters, spec, settings)
        self.steps_done = 0

    def begin(self, rate: float, steps: int) -> None:
        """Prepare ``steps`` steps at ``rate`` times the learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * rate
        if self.lazy is not None:
            self.lazy.begin(self._settings.learning_rate * rate, steps, self.steps_done)

    def look_up(self, batch: Batch) -> Batch:
        """The batch in the form that the network takes."""
        if self.lazy is None:
            return batch
        assert isinstance(batch, SparseBatch)
        return self.lazy.multiply(batch)

    def step(self, batch: Batch, group: Group) -> None:
        """Move θ by the gradients of all ranks, and then its average."""
        group.sum_gradients(self.parameters)
        self.network.restrict_gradients(self.steps_done, self._settings.features_per_step)
        self.optimizer.step()
        if self.lazy is not None:
            assert isinstance(batch, SparseBatch)
            self.lazy.step(*group.sum_rows(*self.lazy.gradient(batch)))
        self.steps_done += 1
        if self.average is not self.network:
            move_average(self._averages, self.parameters, self._settings.averaging, self.steps_done)

    @torch.no_grad()
    def settle(self, group: Group) -> None:
        """After the last step: let the lazy layer catch up, and undo what rounding has parted between ranks."""
        if self.lazy is not None:
            self.lazy.settle()
        both = (*self.network.parameters(), *self.average.parameters())
        group.align([*(parameter.detach() for parameter in both), *self._moments()])

    def is_finite(self) -> bool:
        """Whether all numbers of θ are finite."""
        return _are_finite(self.network.parameters())

    def overflows(self) -> bool:
        """Whether Adam's squares of gradients are beyond float32. Such weights do not move any more."""
        return not _are_finite(self._moments())

    def _moments(self) -> list[Tensor]:
        own = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*own, *(self.lazy.moments.values() if self.lazy is not None else ())]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name. The number of steps is not among them."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors |= {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}
        for number, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in values.items()}
        if self.lazy is not None:
            tensors |= {f"lazy.{name}": tensor for name, tensor in self.lazy.moments.items()}
        return tensors

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """A copy of everything, as arrays by name."""
        return {**copies(self.tensors()), "steps_done": np.array(self.steps_done)}

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Return to a state that ``state`` gave, and that ``check_state`` has checked."""
        tensors: dict[str, dict[str, Tensor]] = {"network": {}, "average": {}, "optimizer": {}, "lazy": {}}
        for name, array in state.items():
            kind, _, rest = name.partition(".")
            if kind in tensors:
                tensors[kind][rest] = torch.from_numpy(array.copy())
        self.network.load_state_dict(tensors["network"])
        self.average.load_state_dict(tensors["average"])
        for name, tensor in tensors["lazy"].items():
            assert self.lazy is not None
            self.lazy.moments[name].copy_(tensor)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors["optimizer"].items():
            number, _, rest = name.partition(".")
            moments.setdefault(int(number), {})[rest] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self.steps_done = int(state["steps_done"])

    def _moved(self, network: ScoringNetwork) -> list[Tensor]:
        """The parameters that every step moves as a whole."""
        return [p for name, p in network.named_parameters() if self.lazy is None or name != "first.weight"]

    def _lazy_layer(self) -> LazyLayer:
        assert isinstance(self.network, LayeredNetwork)
        assert isinstance(self.average, LayeredNetwork)
        return LazyLayer(
            self.network.first,
            self.average.first,
            optimizer=self._settings.optimizer,
            tau=self._settings.tau,
            averaging=self._settings.averaging,
            epsilon=adam_epsilon(self.network.spec),
        )


def _are_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def copies(tensors: Mapping[str, Tensor]) -> dict[str, npt.NDArray[Any]]:
    """Copies of the tensors, as arrays."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}
