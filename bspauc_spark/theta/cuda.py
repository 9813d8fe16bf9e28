"""Every call of CUDA. With these few replaced, all that surrounds them runs the same on a machine without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

# Tensors on a GPU go by nccl; control and sorted statistics, which are on the CPU, by gloo.
BACKEND = "cpu:gloo,cuda:nccl"


def count() -> int:
    """Devices that torch finds; CUDA_VISIBLE_DEVICES is read once, when a process first asks."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device(index: int) -> torch.device:
    """The ``index``-th of them."""
    return torch.device("cuda", index)


def take(own: torch.device) -> None:
    """Make ``own`` this process's: nccl goes by the current device."""
    torch.cuda.set_device(own)


def free_bytes(own: torch.device) -> int:
    """Memory of the device that nobody uses."""
    return int(torch.cuda.mem_get_info(own)[0])


def pin(tensor: Tensor) -> Tensor:
    """A copy in host memory that a GPU can read by itself."""
    return tensor.pin_memory()
