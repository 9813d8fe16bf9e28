"""Networks that give a score to each row of features."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bspauc_spark.errors import MalformedError
from bspauc_spark.rows.rows import Batch, SparseBatch
from bspauc_spark.schema import many, real, record, text, whole
from bspauc_spark.theta.first_layer import FirstLayer, affine, sums

MOST_LAYERS = 1000
MOST_FOLDS = 64
QUANTILES = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45),
    *(0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995),
)
"""At which members come to a common scale; close to each other at both ends, where rare classes have thresholds."""
MOST_FREQUENCY_BYTES = 2 << 30
"""The largest table of a kernel's frequencies."""


@dataclass(frozen=True)
class NetworkSpec:
    """All that is needed to build a network: its kind, and the widths of its input and of its hidden layers."""

    kind: str
    num_features: int
    hidden_layers: tuple[int, ...] = ()
    random_features: int = 0
    kernel_width: float = 1.0
    kernel_seed: int = 0
    members: int = 0
    """How many networks of this kind θ has, each with a fold of its own; 0: one network, without folds."""
    fold_seed: int = 0

    def member(self) -> NetworkSpec:
        """Of one of the members."""
        return replace(self, members=0, fold_seed=0)

    def build(self, generator: torch.Generator | None = None, columns: Tensor | None = None) -> ScoringNetwork:
        """One network, with initial weights from ``generator``; with ``columns``, for these features only."""
        if self.kind == "kernel":
            return KernelNetwork(self)
        return LayeredNetwork(self, generator, columns)

    def shapes(self, columns: int | None = None) -> dict[str, tuple[int, ...]]:
        """The shape of each part of θ, without building the network. ``columns``: how many features have weights."""
        if self.members:
            own = self.member().shapes(columns).items()
            every = {f"members.{k}.{name}": shape for k in range(self.members) for name, shape in own}
            points = len(QUANTILES)
            common = {"knots": (self.members, points), "levels": (points,), "mixed": (points,)}
            return {**every, **common}
        if self.kind == "kernel":
            return {"alpha": (2 * self.random_features, 1)}
        widths = self.widths
        shapes: dict[str, tuple[int, ...]] = {
            "first.weight": (self.num_features if columns is None else columns, widths[0]),
            "first.bias": (widths[0],),
        }
        for number, (given, made) in enumerate(pairwise(widths)):
            shapes |= {f"rest.{number}.weight": (made, given), f"rest.{number}.bias": (made,)}
        return shapes

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of outputs of each fully connected layer."""
        return (*self.hidden_layers, 1) if self.kind == "mlp" else (1,)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], where: str = "network") -> NetworkSpec:
        """From plain values of a file. ``MalformedError`` names the place where they are wrong, after ``where``."""
        spec = cls(**_STORED(stored, where))
        if spec.kind == "kernel" and not 0 < spec.random_features * spec.num_features * 4 <= MOST_FREQUENCY_BYTES:
            raise MalformedError(f"{where}.random_features is 0, or too large for {spec.num_features:,} features")
        return spec


_LAYER = whole(1, 2**31 - 1)
_STORED = record(
    {
        "kind": text("mlp", "linear", "kernel"),
        "num_features": _LAYER,
        "hidden_layers": many(_LAYER, most=MOST_LAYERS),
        "random_features": whole(0, 2**31 - 1),
        "kernel_width": real(above=0.0),
        "kernel_seed": whole(0, 2**32 - 1),
    },
    # The first files did not say it.
    optional={"members": whole(0, MOST_FOLDS), "fold_seed": whole(0, 2**64 - 1)},
)


class ScoringNetwork(nn.Module):
    """A function with parameters θ that gives each row one number."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.spec = spec

    @property
    def device(self) -> torch.device:
        """The device on which θ is."""
        return next(self.parameters()).device

    def penalty(self) -> Tensor:
        """``Ω(θ) = ½‖θ‖²``, in float64."""
        norms = (torch.linalg.vector_norm(p, dtype=torch.float64) for p in self.parameters())
        return 0.5 * sum((norm.square() for norm in norms), torch.zeros((), dtype=torch.float64))

    def restrict_gradients(self, step: int, features_per_step: int) -> None:
        """If the network has random features, keep only the gradients of this step's share of them; 0 keeps all."""

    def to_sequential(self) -> nn.Sequential:
        """The same function as plain torch layers, for dense input, with copied weights."""
        raise TypeError(f"{type(self).__name__} has no plain form")


class LayeredNetwork(ScoringNetwork):
    """Fully connected layers with ReLU between them. ``"linear"`` has only one layer."""

    def __init__(
        self, spec: NetworkSpec, generator: torch.Generator | None = None, columns: Tensor | None = None
    ) -> None:
        super().__init__(spec)
        widths = spec.widths
        self.first = FirstLayer(spec.num_features, widths[0], columns)
        # Their constructor must not initialise them: it would draw from the generator of the process.
        linear = functools.partial(nn.utils.skip_init, nn.Linear)
        self.rest = nn.ModuleList(linear(a, b) for a, b in pairwise(widths))
        self._initialise(generator)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator | None) -> None:
        """``U(−1/√fan_in, 1/√fan_in)`` as in torch, but drawn from the generator of the fit: fits may share a process.

        With small initial weights the network learns simple functions first. This keeps wrong labels out of the first
        selections. He's initial weights are larger, and fit wrong labels early (docs/defaults.md).
        """
        for parameter, fan_in in (
            (self.first.weight, self.spec.num_features),
            (self.first.bias, self.spec.num_features),
            *((p, layer.in_features) for layer in self.linears() for p in (layer.weight, layer.bias)),
        ):
            bound = max(1, fan_in) ** -0.5
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def linears(self) -> list[nn.Linear]:
        """The layers after the first."""
        return [layer for layer in self.rest if isinstance(layer, nn.Linear)]

    def forward(self, rows: Batch) -> Tensor:
        """Scores of ``rows``, one number each."""
        hidden: Tensor = self.first(rows)
        for layer in self.linears():
            hidden = affine(hidden.relu_(), layer.weight.T, layer.bias)
        return hidden[:, 0]

    def to_sequential(self) -> nn.Sequential:
        """The same function as plain torch layers, for dense input, with copied weights."""
        layers: list[nn.Module] = [nn.Linear(self.spec.num_features, self.first.weight.shape[1])]
        weights = [self.first.whole().T, *(layer.weight for layer in self.linears())]
        biases = [self.first.bias, *(layer.bias for layer in self.linears())]
        for layer in self.linears():
            layers += [nn.ReLU(), nn.Linear(layer.in_features, layer.out_features)]
        linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for linear, weight, bias in zip(linears, weights, biases, strict=True):
                linear.weight.copy_(weight)
                linear.bias.copy_(bias)
        return nn.Sequential(*layers, nn.Flatten(0))


class KernelNetwork(ScoringNetwork):
    """``f(x) = Σ_i α_i φ_{ω_i}(x)``: random Fourier features of the Gaussian kernel (Algorithm 4).

    ``φ_ω(x) = [cos ωx, sin ωx]/√D``, so that ``φ(x)·φ(y)`` approaches ``exp(−‖x − y‖²/2σ²)``. θ is α alone: each
    process that uses the network draws the frequencies ω from their seeds, once for all networks with the same ones.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__(spec)
        self.alpha = nn.Parameter(torch.zeros(2 * spec.random_features, 1))
        self._frequencies: _Frequencies | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy of this network finds the table in the same place.
        return {**self.__dict__, "_frequencies": None}

    def omega(self) -> Tensor:
        """ω_1 … ω_D as columns, on the device of θ."""
        if self._frequencies is None or self._frequencies.omega.device != self.device:
            self._frequencies = _shared_frequencies(self.spec, str(self.device))
        return self._frequencies.omega

    def features(self, rows: Batch) -> Tensor:
        """``φ(x)`` of each row: D cosines, then D sines."""
        omega = self.omega()
        return _waves(sums(rows, omega) if isinstance(rows, SparseBatch) else rows @ omega)

    def forward(self, rows: Batch) -> Tensor:
        """Scores of ``rows``, one number each."""
        scores: Tensor = self.features(rows) @ self.alpha
        return scores[:, 0]

    @torch.no_grad()
    def restrict_gradients(self, step: int, features_per_step: int) -> None:
        """Algorithm 3, line 6: a step moves the coefficients of some random features; the optimizer decays the others.

        The features are random, so to take them in turn is a random choice without replacement.
        """
        count = self.spec.random_features
        if not 0 < features_per_step < count or self.alpha.grad is None:
            return
        chosen = (torch.arange(features_per_step) + step * features_per_step) % count
        moved = torch.cat([chosen, chosen + count]).to(self.device)
        block = torch.zeros_like(self.alpha.grad)
        block[moved] = self.alpha.grad[moved]
        self.alpha.grad = block

    def to_sequential(self) -> nn.Sequential:
        """The same function as plain torch modules, for dense input, with copied weights."""
        last = nn.Linear(len(self.alpha), 1, bias=False)
        with torch.no_grad():
            last.weight.copy_(self.alpha.T)
        return nn.Sequential(FourierFeatures(self.omega().to("cpu", copy=True)), last, nn.Flatten(0))


class FourierFeatures(nn.Module):
    """``x → [cos xΩ, sin xΩ]/√D`` with given frequencies Ω."""

    omega: Tensor

    def __init__(self, omega: Tensor) -> None:
        super().__init__()
        self.register_buffer("omega", omega)

    def forward(self, rows: Tensor) -> Tensor:
        """Features of dense rows."""
        return _waves(rows @ self.omega)


def _waves(angles: Tensor) -> Tensor:
    """``[cos, sin]/√D`` of the D angles of each row."""
    both: Tensor = torch.cat([angles.cos(), angles.sin()], 1) * angles.shape[1] ** -0.5
    return both


def frequencies(spec: NetworkSpec, device: str) -> Tensor:
    """ω_1 … ω_D as columns, each drawn from ``N(0, σ⁻² I)`` with a seed of its own (Algorithm 4, line 3).

    A saved model holds the seed and not ω. ``RandomState`` is the only generator of numpy whose stream never changes.
    """
    drawn = np.empty((spec.num_features, spec.random_features), dtype=np.float32)
    for number in range(spec.random_features):
        drawn[:, number] = np.random.RandomState([spec.kernel_seed, number]).standard_normal(spec.num_features)
    drawn /= np.float32(spec.kernel_width)
    return torch.from_numpy(drawn).to(device)


class _Frequencies:
    """Frequencies that networks share. The Python object of a bare tensor may die before or after its memory."""

    def __init__(self, omega: Tensor) -> None:
        self.omega = omega


# A table takes up to 2 GiB and is slow to draw. All networks share it, and it lives as long as one of them uses it.
_shared: weakref.WeakValueDictionary[tuple[NetworkSpec, str], _Frequencies] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def _shared_frequencies(spec: NetworkSpec, device: str) -> _Frequencies:
    with _shared_lock:
        table = _shared.get((spec, device))
        if table is None:
            table = _shared[spec, device] = _Frequencies(frequencies(spec, device))
        return table
