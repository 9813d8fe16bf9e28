"""A sign that a worker gets on: steps and blocks of rows count up, and a process that hangs does not."""

from __future__ import annotations

_beats = 0


def beat() -> None:
    """Something was done."""
    global _beats
    _beats += 1


def count() -> int:
    """How much was done so far, in this process."""
    return _beats
