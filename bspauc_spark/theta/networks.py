"""Networks that give a score to each row of features."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from bspauc_spark.errors import MalformedError
from bspauc_spark.rows.rows import Batch, SparseBatch
from bspauc_spark.schema import flag, many, real, record, text, whole
from bspauc_spark.theta.first_layer import FirstLayer, affine, sums
from bspauc_spark.theta.fourier import FourierFeatures, Frequencies, shared_frequencies, waves
from bspauc_spark.theta.inputs import Inputs, Layout

MOST_LAYERS = 1000
MOST_FOLDS = 64
MOST_LANDMARKS = 1000
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
    """How many folds there are, and so how many members judge the rows of one; 0: one network, without folds."""
    fold_seed: int = 0
    inputs: str = "raw"
    """Whether the network takes columns as they are, or on scales that the fit finds: ``"raw"`` or ``"auto"``."""
    gaps: bool = False
    """Whether a feature may be NaN."""
    landmarks: int = 0
    """To how many training rows the distance of a row is a feature of it."""

    def member(self) -> NetworkSpec:
        """Of one of the members."""
        return replace(self, members=0, fold_seed=0)

    def build(
        self,
        generator: torch.Generator | None = None,
        columns: Tensor | None = None,
        inputs: Inputs | None = None,
    ) -> ScoringNetwork:
        """One network, with initial weights from ``generator``; with ``columns``, for these features only."""
        if self.kind == "kernel":
            return KernelNetwork(self)
        return LayeredNetwork(self, generator, columns, inputs)

    def shapes(self, columns: int | None = None, layout: Layout | None = None) -> dict[str, tuple[int, ...]]:
        """The shape of each part of θ, without building the network. ``columns``: how many features have weights.

        ``layout`` is that of dense inputs, whose own arrays are not among these.
        """
        mixed = dict.fromkeys(("judged", "mixed"), (len(QUANTILES),))
        if self.kind == "table":
            inputs = 0 if layout is None else layout.inputs
            coefficients = (1 + inputs + 2 * self.landmarks, max(1, self.members))
            own = {"landmarks": (self.landmarks, inputs), "widths": (2,), "verdict": (4,)}
            return {"coefficients": coefficients, **own, **mixed}
        if self.members:
            own = self.member().shapes(columns, layout)
            every = {f"members.{k}.{name}": shape for k in range(self.members) for name, shape in own.items()}
            return {**every, "knots": (self.members, len(QUANTILES)), "levels": (len(QUANTILES),), **mixed}
        if self.kind == "kernel":
            return {"alpha": (2 * self.random_features, 1)}
        widths, given = self.widths, self.num_features if layout is None else layout.inputs
        shapes: dict[str, tuple[int, ...]] = {
            "first.weight": (given if columns is None else columns, widths[0]),
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
        if spec.inputs == "raw" and spec.gaps:
            raise MalformedError(f"{where}.gaps is true, and {where}.inputs is 'raw', which takes none")
        if spec.kind == "table" and spec.inputs == "raw":
            raise MalformedError(f"{where}.inputs is 'raw', and a table has 'auto'")
        if spec.kind == "kernel" and spec.inputs != "raw":
            raise MalformedError(f"{where}.inputs is {spec.inputs!r}, and the kernel takes raw columns")
        return spec


_LAYER = whole(1, 2**31 - 1)
_STORED = record(
    {
        "kind": text("mlp", "linear", "kernel", "table"),
        "num_features": _LAYER,
        "hidden_layers": many(_LAYER, most=MOST_LAYERS),
        "random_features": whole(0, 2**31 - 1),
        "kernel_width": real(above=0.0),
        "kernel_seed": whole(0, 2**32 - 1),
    },
    # The first files did not say it.
    optional={
        "members": whole(0, MOST_FOLDS),
        "landmarks": whole(0, MOST_LANDMARKS),
        "fold_seed": whole(0, 2**64 - 1),
        "inputs": text("raw", "auto"),
        "gaps": flag,
    },
)


class ScoringNetwork(nn.Module):
    """A function with parameters θ that gives each row one number."""

    def __init__(self, spec: NetworkSpec, inputs: Inputs | None = None) -> None:
        super().__init__()
        self.spec = spec
        # In a tuple it is no part of this module: members share it, and it is a part of what holds them.
        self._inputs = (inputs,)

    @property
    def device(self) -> torch.device:
        """The device on which θ is."""
        return next(self.parameters()).device

    def prepare(self, rows: Batch) -> Batch:
        """What the first layer takes of raw rows."""
        (inputs,) = self._inputs
        prepared: Batch = rows if inputs is None else inputs(rows)
        return prepared

    def for_scoring(self) -> Callable[[Batch], Tensor]:
        """The function that scores rows, prepared to score many of them with θ as it is now."""
        return self

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
        self,
        spec: NetworkSpec,
        generator: torch.Generator | None = None,
        columns: Tensor | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        super().__init__(spec, inputs)
        widths, given = spec.widths, spec.num_features if inputs is None else inputs.inputs
        self.first = FirstLayer(given, widths[0], columns)
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
            (self.first.weight, self.first.num_features),
            (self.first.bias, self.first.num_features),
            *((p, layer.in_features) for layer in self.linears() for p in (layer.weight, layer.bias)),
        ):
            bound = max(1, fan_in) ** -0.5
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def linears(self) -> list[nn.Linear]:
        """The layers after the first."""
        return [layer for layer in self.rest if isinstance(layer, nn.Linear)]

    def forward(self, rows: Batch) -> Tensor:
        """Scores of ``rows``, one number each."""
        hidden: Tensor = self.first(self.prepare(rows))
        for layer in self.linears():
            hidden = affine(hidden.relu_(), layer.weight.T, layer.bias)
        return hidden[:, 0]

    def to_sequential(self) -> nn.Sequential:
        """The same function as plain torch modules, for dense input, with copied weights."""
        (inputs,) = self._inputs
        return nn.Sequential(*([] if inputs is None else [copy.deepcopy(inputs).cpu()]), *self.plain_layers())

    def plain_layers(self) -> list[nn.Module]:
        """What comes after the inputs."""
        layers: list[nn.Module] = [nn.Linear(self.first.num_features, self.first.weight.shape[1])]
        weights = [self.first.whole().T, *(layer.weight for layer in self.linears())]
        biases = [self.first.bias, *(layer.bias for layer in self.linears())]
        for layer in self.linears():
            layers += [nn.ReLU(), nn.Linear(layer.in_features, layer.out_features)]
        linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for linear, weight, bias in zip(linears, weights, biases, strict=True):
                linear.weight.copy_(weight)
                linear.bias.copy_(bias)
        return [*layers, nn.Flatten(0)]


class KernelNetwork(ScoringNetwork):
    """``f(x) = Σ_i α_i φ_{ω_i}(x)``: random Fourier features of the Gaussian kernel (Algorithm 4).

    ``φ_ω(x) = [cos ωx, sin ωx]/√D``, so that ``φ(x)·φ(y)`` approaches ``exp(−‖x − y‖²/2σ²)``. θ is α alone: each
    process that uses the network draws the frequencies ω from their seeds, once for all networks with the same ones.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__(spec)
        self.alpha = nn.Parameter(torch.zeros(2 * spec.random_features, 1))
        self._frequencies: Frequencies | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy of this network finds the table in the same place.
        return {**self.__dict__, "_frequencies": None}

    def omega(self) -> Tensor:
        """ω_1 … ω_D as columns, on the device of θ."""
        if self._frequencies is None or self._frequencies.omega.device != self.device:
            self._frequencies = shared_frequencies(self.spec, str(self.device))
        return self._frequencies.omega

    def features(self, rows: Batch) -> Tensor:
        """``φ(x)`` of each row: D cosines, then D sines."""
        omega = self.omega()
        return waves(sums(rows, omega) if isinstance(rows, SparseBatch) else rows @ omega)

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
