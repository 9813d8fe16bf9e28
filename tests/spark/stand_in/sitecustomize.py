"""The CPU in place of CUDA: on the PYTHONPATH of executors, Python takes this for ``bspauc_spark.theta.cuda``.

Every call leaves a line in the file that CUDA_CALLS names: rank, function, CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BACKEND = "gloo"


def count() -> int:
    return len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))


def device(index: int) -> torch.device:
    import torch

    note(f"device {index}")
    return torch.device("cpu")


def take(own: torch.device) -> None:
    note("take")


def free_bytes(own: torch.device) -> int:
    """Room for rows on rank 0 only."""
    return 1 << 30 if os.environ["RANK"] == "0" else 1000


def pin(tensor: torch.Tensor) -> torch.Tensor:
    note("pin")
    return tensor.clone()


def note(call: str) -> None:
    with open(os.environ["CUDA_CALLS"], "a") as file:
        file.write(f"{os.environ['RANK']} {call} {os.environ['CUDA_VISIBLE_DEVICES']}\n")


if "CUDA_CALLS" in os.environ:
    sys.modules["bspauc_spark.theta.cuda"] = sys.modules[__name__]
