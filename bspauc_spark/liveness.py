"""A sign that a worker gets on: each step and each chunk counts one up. In a process that hangs the count stands."""

from __future__ import annotations

_beats = 0


def beat() -> None:
    """Count one up: something was done."""
    global _beats
    _beats += 1


def count() -> int:
    """How often this process has counted so far."""
    return _beats
