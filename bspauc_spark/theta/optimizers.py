"""How a step moves θ: the settings of the training, the optimizer, and the moving average of θ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bspauc_spark.theta.lazy_layer import average_decay
from bspauc_spark.theta.networks import NetworkSpec

# With more features than this, some are rare.
_WIDE = 1000


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a θ block. They have the names of the Params."""

    optimizer: str
    learning_rate: float
    batch_size: int
    steps: int
    tau: float
    pairing: str
    averaging: float
    seed: int
    pretrain_steps: int = 0
    pretrain_fraction: float = 0.0
    features_per_step: int = 0
    exact_rows: int = 50_000_000
    mixed_precision: bool = False
    device: str = "cpu"
    on_gpu: bool = False
    """Whether ``device`` is a GPU."""
    threads: int = 1
    """Of a scoring pass; a step is computed in one."""


@torch.no_grad()
def move_average(averages: list[Tensor], parameters: list[Tensor], averaging: float, steps: int) -> None:
    """The moving average of θ after its ``steps``-th step."""
    torch._foreach_lerp_(averages, parameters, 1 - average_decay(averaging, steps))


def make_optimizer(parameters: list[Tensor], spec: NetworkSpec, settings: TrainingSettings) -> torch.optim.Optimizer:
    """``"sgd"``: Algorithm 2's ``(1 − ητ)θ − η·gradient``. ``"adam"`` has τΩ in the gradient, ``"adamw"`` beside it."""
    rate, tau = settings.learning_rate, settings.tau
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, weight_decay=tau)
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=tau, eps=adam_epsilon(spec), fused=True)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=tau, eps=adam_epsilon(spec), fused=True)


def adam_epsilon(spec: NetworkSpec) -> float:
    """Adam's ε. Without it Adam moves every weight by the learning rate, however small its gradient is.

    Wide rows have rare features, which only few rows share. With torch's own ε of 1e-8 the weights of these features
    learn the few rows by heart within some steps, wrong labels included: on rcv1 with 30 % far flips the AUC is 0.74
    instead of 0.978. Narrow rows have no such features. There the larger ε would slow the first steps, whose gradients
    are small.
    """
    return 3e-4 if spec.kind != "kernel" and spec.num_features > _WIDE else 1e-8
