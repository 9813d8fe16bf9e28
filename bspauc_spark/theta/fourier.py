"""Random Fourier features of the Gaussian kernel, and the tables of their frequencies, which networks share."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn


class FourierFeatures(nn.Module):
    """``x → [cos xΩ, sin xΩ]/√D`` with given frequencies Ω."""

    omega: Tensor

    def __init__(self, omega: Tensor) -> None:
        super().__init__()
        self.register_buffer("omega", omega)

    def forward(self, rows: Tensor) -> Tensor:
        """Features of dense rows."""
        return waves(rows @ self.omega)


def waves(angles: Tensor) -> Tensor:
    """``[cos, sin]/√D`` of the D angles of each row."""
    both: Tensor = torch.cat([angles.cos(), angles.sin()], 1) * angles.shape[1] ** -0.5
    return both


class Kernel(Protocol):
    """What frequencies are drawn by, of a network's specification."""

    @property
    def num_features(self) -> int:
        """How many features a row has."""

    @property
    def random_features(self) -> int:
        """D, how many frequencies are drawn."""

    @property
    def kernel_width(self) -> float:
        """σ of the Gaussian kernel."""

    @property
    def kernel_seed(self) -> int:
        """Where the draws begin."""


def frequencies(spec: Kernel, device: str) -> Tensor:
    """ω_1 … ω_D as columns, each drawn from ``N(0, σ⁻² I)`` with a seed of its own (Algorithm 4, line 3).

    A saved model holds the seed and not ω. ``RandomState`` is the only generator of numpy whose stream never changes.
    """
    drawn = np.empty((spec.num_features, spec.random_features), dtype=np.float32)
    for number in range(spec.random_features):
        drawn[:, number] = np.random.RandomState([spec.kernel_seed, number]).standard_normal(spec.num_features)
    drawn /= np.float32(spec.kernel_width)
    return torch.from_numpy(drawn).to(device)


class Frequencies:
    """Frequencies that networks share. The Python object of a bare tensor may die before or after its memory."""

    def __init__(self, omega: Tensor) -> None:
        self.omega = omega


# A table takes up to 2 GiB and is slow to draw. All networks share it, and it lives as long as one of them uses it.
_shared: weakref.WeakValueDictionary[tuple[Kernel, str], Frequencies] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def shared_frequencies(spec: Kernel, device: str) -> Frequencies:
    with _shared_lock:
        table = _shared.get((spec, device))
        if table is None:
            table = _shared[spec, device] = Frequencies(frequencies(spec, device))
        return table
