"""Every call of CUDA. A test replaces these few functions, and runs the rest on a machine without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

# nccl exchanges tensors on a GPU; gloo exchanges those on the CPU, such as scores and control messages.
BACKEND = "cpu:gloo,cuda:nccl"


def count() -> int:
    """How many devices torch finds. CUDA reads CUDA_VISIBLE_DEVICES once, when a process first asks."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device(index: int) -> torch.device:
    """The ``index``-th device."""
    return torch.device("cuda", index)


def take(own: torch.device) -> None:
    """Make ``own`` the current device of this process, which nccl uses."""
    torch.cuda.set_device(own)


def free_bytes(own: torch.device) -> int:
    """How many bytes of the device's memory are free."""
    return int(torch.cuda.mem_get_info(own)[0])


def pin(tensor: Tensor) -> Tensor:
    """A copy in host memory that a GPU can read by itself."""
    return tensor.pin_memory()
