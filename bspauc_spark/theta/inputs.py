"""What a network is given of a row with ``inputs="auto"``: columns on scales that were found once in training rows.

A network is a function of raw rows. So these scales are part of it, in the state of a fit and in a saved model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bspauc_spark.errors import MalformedError
from bspauc_spark.rows.rows import Batch, SparseBatch

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

MOST_DENSE_COLUMNS = 1000
"""Sparse rows of at most so many columns become dense, a batch at a time."""
MOST_KNOTS = 1024
REACH = 3.0
"""No input of a number is farther from 0."""

# A chunk of dense rows takes at most 2 GiB.
_MOST_COLUMNS = 1 << 19
# Beyond it a scaled value counts as this: its square is finite.
_LARGEST = 1e6
_DENSE = ("numbers", "center", "spread", "knots", "ranks", "pairs", "low", "width", "gaps")
_SPARSE = ("scaled", "divisors")
_PLACES = ("numbers", "pairs", "gaps", "scaled")


@dataclass(frozen=True)
class Layout:
    """How many columns are numbers, how many have two values, how many had gaps; how many knots a number has."""

    numbers: int
    pairs: int
    gaps: int
    knots: int

    @property
    def inputs(self) -> int:
        """A number is two inputs, anything else is one."""
        return 2 * self.numbers + self.pairs + self.gaps

    @classmethod
    def largest(cls, num_features: int) -> Layout:
        """The most that so many columns can be."""
        return cls(num_features, num_features, num_features, MOST_KNOTS)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each array."""
        m, t = (self.numbers,), (self.pairs,)
        table = (self.numbers, self.knots)
        shapes = (m, m, m, table, table, t, t, t, (self.gaps,))
        return dict(zip(_DENSE, shapes, strict=True))


class Inputs(nn.Module):
    """From raw rows to what the first layer takes."""

    def __init__(self, arrays: Arrays, num_features: int, inputs: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.inputs = inputs
        """How many numbers the first layer takes."""
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(array)))


class DenseInputs(Inputs):
    """Of dense rows, which sparse ones become here.

    A number is two inputs. One is its rank among the training rows, as a quantile of the normal distribution. The other
    is its distance from the median by the interquartile range, with a limit that it approaches smoothly. Two values are
    −1 and 1. A column that had gaps has a flag. A gap itself is 0, the median.

    The inputs are in this order: ranks, scaled numbers, pairs of values, flags.
    """

    numbers: Tensor
    center: Tensor
    spread: Tensor
    knots: Tensor
    ranks: Tensor
    pairs: Tensor
    low: Tensor
    width: Tensor
    gaps: Tensor

    def __init__(self, arrays: Arrays, num_features: int) -> None:
        self.layout = layout_of(arrays)
        super().__init__(arrays, num_features, self.layout.inputs)

    def forward(self, rows: Batch) -> Tensor:
        """The inputs of each row. A row gets the same bits whatever stands around it."""
        x = as_dense(rows, self.num_features) if isinstance(rows, SparseBatch) else rows
        parts = []
        if self.layout.numbers:
            numbers = x.index_select(1, self.numbers)
            # NaN becomes 0.
            parts += [self._ranked(numbers).nan_to_num_(0.0), smooth((numbers - self.center) / self.spread)]
        if self.layout.pairs:
            parts.append(_beyond_one((x.index_select(1, self.pairs) - self.low) / self.width * 2 - 1))
        if self.layout.gaps:
            parts.append(x.index_select(1, self.gaps).isnan().float() * 2 - 1)
        return torch.cat(parts, dim=1)

    def scaled_numbers(self, inputs: Tensor) -> Tensor:
        """Of the inputs those that are scaled numbers."""
        return inputs[:, self.layout.numbers : 2 * self.layout.numbers]

    def _ranked(self, x: Tensor) -> Tensor:
        """The normal quantile of each number's rank, by a line between the two knots beside it.

        The search looks at one knot of every number at a time. ``torch.searchsorted`` takes five times as long.
        """
        size = self.layout.knots
        first = torch.arange(0, x.shape[1] * size, size, dtype=torch.int32, device=x.device)
        knots, ranks = self.knots.view(-1), self.ranks.view(-1)
        # How many knots are below x: a power of two of them are there, and the last one is not counted.
        place = first.repeat(len(x), 1)
        step = size // 2
        while step:
            place.add_(_at(knots[step - 1 :], place) < x, alpha=step)
            step //= 2
        upper = torch.maximum(place, first + 1)
        low, high = _at(knots, upper - 1), _at(knots, upper)
        start, end = _at(ranks, upper - 1), _at(ranks, upper)
        share = ((x - low) / (high - low)).clamp_(0.0, 1.0)
        return start + share * (end - start)


class SparseInputs(Inputs):
    """Of wide sparse rows: absent entries stay absent, and columns of very large or very small values are divided."""

    scaled: Tensor
    divisors: Tensor

    def __init__(self, arrays: Arrays, num_features: int) -> None:
        super().__init__(arrays, num_features, num_features)

    def forward(self, rows: Batch) -> Batch:
        """The rows, with their values divided; a gap counts as 0."""
        if not isinstance(rows, SparseBatch):
            rows = rows.where(~rows.isnan(), 0.0)
            if len(self.scaled):
                rows[:, self.scaled] = smooth(rows.index_select(1, self.scaled) / self.divisors)
            return rows
        if rows.product is not None:
            # The lazy layer has multiplied what came from here.
            return rows
        values = rows.values.where(~rows.values.isnan(), 0.0)
        if len(self.scaled):
            found = torch.searchsorted(self.scaled, rows.indices, out_int32=True).clamp_max_(len(self.scaled) - 1)
            divided = smooth(values / self.divisors.index_select(0, found))
            values = torch.where(self.scaled.index_select(0, found) == rows.indices, divided, values)
        return SparseBatch(rows.indices, values, rows.offsets)


def smooth(x: Tensor) -> Tensor:
    """``x / √(1 + (x/3)²)``: nearly x around 0, and never beyond 3. NaN becomes 0."""
    x = torch.nan_to_num(x, 0.0, _LARGEST, -_LARGEST).clamp_(-_LARGEST, _LARGEST)
    return x / (1 + (x / REACH).square()).sqrt()


def _beyond_one(x: Tensor) -> Tensor:
    """Keep x up to ±1, and give what is beyond it a limit that it approaches smoothly. NaN becomes 0."""
    x = torch.nan_to_num(x, 0.0, _LARGEST, -_LARGEST).clamp_(-_LARGEST, _LARGEST)
    within = x.clamp(-1.0, 1.0)
    beyond = x - within
    return within + beyond / (1 + (beyond / (REACH - 1)).square()).sqrt()


def _at(table: Tensor, places: Tensor) -> Tensor:
    return table.index_select(0, places.view(-1)).view(places.shape)


def as_dense(rows: SparseBatch, num_features: int) -> Tensor:
    """The rows as a matrix. What is given twice is added up."""
    matrix = rows.values.new_zeros(len(rows), num_features)
    matrix.index_put_((rows.owners(), rows.indices.long()), rows.values, accumulate=True)
    return matrix


def layout_of(arrays: Arrays) -> Layout:
    """Of arrays that may come from a file."""
    numbers, pairs, gaps = (arrays[name].size if name in arrays else 0 for name in ("numbers", "pairs", "gaps"))
    knots = arrays.get("knots")
    return Layout(numbers, pairs, gaps, knots.shape[1] if knots is not None and knots.ndim == 2 else 0)


def inputs_of(arrays: Arrays, num_features: int) -> Inputs | None:
    """From the arrays of a model by name; None where there are none."""
    own = {name.removeprefix("inputs."): array for name, array in arrays.items() if name.startswith("inputs.")}
    if not own:
        return None
    return (SparseInputs if "scaled" in own else DenseInputs)(own, num_features)


def stored_shapes(arrays: Arrays) -> dict[str, tuple[type, tuple[int, ...]]]:
    """The arrays that inputs have, by name: what type and shape belongs to each, by the sizes of those that are there.

    ``arrays`` are those of a file, of which nothing is sure yet.
    """
    if "scaled" in arrays:
        shapes: Mapping[str, tuple[int, ...]] = dict.fromkeys(_SPARSE, (arrays["scaled"].size,))
    else:
        shapes = layout_of(arrays).shapes()
    return {name: (np.int32 if name in _PLACES else np.float32, shape) for name, shape in shapes.items()}


def check_stored(arrays: Arrays, num_features: int) -> None:
    """Refuse arrays of a file with which a row would get no inputs, or inputs that are not finite."""
    for name in _PLACES:
        places = arrays.get(name, np.empty(0, dtype=np.int32))
        if len(places) and not (places[0] >= 0 and places[-1] < num_features and (places[1:] > places[:-1]).all()):
            raise MalformedError(f"inputs.{name} are not numbers of features in ascending order")
    for name in ("spread", "width", "divisors"):
        if not (arrays.get(name, np.ones(1)) > 0).all():
            raise MalformedError(f"inputs.{name} is not positive")
    if "scaled" in arrays:
        return
    layout = layout_of(arrays)
    if num_features > _MOST_COLUMNS:
        raise MalformedError(f"{num_features:,} features are more than dense rows have")
    if not 0 < layout.inputs <= 3 * num_features:
        raise MalformedError(f"there are {layout.inputs:,} inputs of {num_features:,} features")
    knots, ranks = arrays["knots"], arrays["ranks"]
    size = layout.knots
    if not 2 <= size <= MOST_KNOTS or size & (size - 1):
        raise MalformedError(f"inputs.knots has {size:,} knots, where a power of two of at most {MOST_KNOTS} belongs")
    # After the last one it stands again in the places that are left.
    rises = (knots[:, 1:] > knots[:, :-1]) | (knots[:, 1:] == knots[:, -1:])
    if not rises.all() or not (knots[:, 1:2] > knots[:, :1]).all():
        raise MalformedError("inputs.knots do not rise")
    if (np.abs(knots) > LARGEST_KNOT).any():
        raise MalformedError("inputs.knots are too large")
    if (np.abs(ranks) > REACH).any() or not (ranks[:, 1:] >= ranks[:, :-1]).all():
        raise MalformedError("inputs.ranks do not rise from -3 to 3")


LARGEST_KNOT = 1e37
"""The distance of two knots is finite."""
