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
from bspauc_spark.theta.inputs import Inputs
from bspauc_spark.theta.lazy_layer import LazyLayer
from bspauc_spark.theta.members import Members, build
from bspauc_spark.theta.networks import LayeredNetwork, NetworkSpec, ScoringNetwork
from bspauc_spark.theta.optimizers import TrainingSettings, adam_epsilon, make_optimizer, move_average


class Theta:
    """θ and all that the next step depends on. With sparse rows, only the ``columns`` that occur have weights.

    Every rank has the same θ: before a step moves it, the gradients of all ranks are summed.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        settings: TrainingSettings,
        columns: Tensor | None,
        seed: int,
        inputs: Inputs | None = None,
    ) -> None:
        self._settings = settings
        self.network = build(spec, torch.Generator().manual_seed(seed), columns, inputs)
        self.network.to(torch.device(settings.device))
        self.average = copy.deepcopy(self.network) if settings.averaging > 0 else self.network
        self.lazy = self._lazy_layers() if columns is not None else {}
        self.parameters, self._averages = (self._moved(network) for network in (self.network, self.average))
        self.optimizer = make_optimizer(self.parameters, spec, settings)
        self.steps_done = 0

    @property
    def columns(self) -> int:
        """How many scores a row has: one of each member, or a single one."""
        return max(1, self.network.spec.members)

    def begin(self, rate: float, steps: int) -> None:
        """Prepare ``steps`` steps at ``rate`` times the learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * rate
        for lazy in self.lazy.values():
            lazy.begin(self._settings.learning_rate * rate, steps, self.steps_done)

    def look_up(self, batch: Batch) -> list[Batch]:
        """The batch in the form that each network takes."""
        if not self.lazy:
            return [batch]
        prepared = self.network.prepare(batch)
        assert isinstance(prepared, SparseBatch)
        return [lazy.multiply(prepared) for lazy in self.lazy.values()]

    def scores(self, batches: list[Batch]) -> Tensor:
        """The scores of a batch by the θ that is trained: a column for each member, or only one."""
        if isinstance(self.network, Members):
            return self.network.each(batches if self.lazy else batches[0])
        scores: Tensor = self.network(batches[0])
        return scores[:, None]

    def step(self, batches: list[Batch], learned: Tensor | None, group: Group) -> None:
        """Move θ by the gradients of all ranks, and then its average.

        ``learned`` says which rows of the batch each member learns from; without it, all.
        """
        group.sum_gradients(self.parameters)
        self.network.restrict_gradients(self.steps_done, self._settings.features_per_step)
        self.optimizer.step()
        for number, (lazy, batch) in enumerate(zip(self.lazy.values(), batches, strict=False)):
            assert isinstance(batch, SparseBatch)
            rows = None if learned is None else learned[:, number]
            lazy.step(*group.sum_rows(*lazy.gradient(batch, rows)))
        self.steps_done += 1
        if self.average is not self.network:
            move_average(self._averages, self.parameters, self._settings.averaging, self.steps_done)

    @torch.no_grad()
    def settle(self, group: Group) -> None:
        """After the last step: let the lazy layer catch up, and undo what rounding has parted between ranks."""
        for lazy in self.lazy.values():
            lazy.settle()
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
        return [*own, *(moment for lazy in self.lazy.values() for moment in lazy.moments.values())]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name. The number of steps is not among them, nor are the inputs of one of two networks."""
        both = self.average is not self.network
        own = {name: t for name, t in self.network.state_dict().items() if not (both and name.startswith("inputs."))}
        tensors = {f"network.{name}": tensor for name, tensor in own.items()}
        tensors |= {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}
        for number, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in values.items()}
        for prefix, lazy in self.lazy.items():
            tensors |= {f"lazy.{prefix}{name}": tensor for name, tensor in lazy.moments.items()}
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
        inputs = {name: tensor for name, tensor in tensors["average"].items() if name.startswith("inputs.")}
        self.network.load_state_dict({**inputs, **tensors["network"]})
        self.average.load_state_dict(tensors["average"])
        for prefix, lazy in self.lazy.items():
            for name, moment in lazy.moments.items():
                moment.copy_(tensors["lazy"][f"{prefix}{name}"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors["optimizer"].items():
            number, _, rest = name.partition(".")
            moments.setdefault(int(number), {})[rest] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self.steps_done = int(state["steps_done"])

    def _moved(self, network: ScoringNetwork) -> list[Tensor]:
        """The parameters that every step moves as a whole."""
        return [p for name, p in network.named_parameters() if not self.lazy or not name.endswith("first.weight")]

    def _lazy_layers(self) -> dict[str, LazyLayer]:
        """One for each member, by what its tensors' names begin with."""
        if not isinstance(self.network, Members) or not isinstance(self.average, Members):
            return {"": self._lazy_layer(self.network, self.average)}
        both = zip(self.network.networks(), self.average.networks(), strict=True)
        return {f"members.{number}.": self._lazy_layer(*pair) for number, pair in enumerate(both)}

    def _lazy_layer(self, network: ScoringNetwork, average: ScoringNetwork) -> LazyLayer:
        assert isinstance(network, LayeredNetwork)
        assert isinstance(average, LayeredNetwork)
        return LazyLayer(
            network.first,
            average.first,
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
