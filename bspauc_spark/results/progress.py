"""The progress bar of a fit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from bspauc_spark.results.headline import SHORT, TRAINING
from bspauc_spark.results.history import Round


class ProgressBar:
    """Shows each round as it ends. If it cannot be written, it is given up, and the fit goes on."""

    def __init__(self, rounds: int, shown: bool, rows: str = TRAINING) -> None:
        self._bar: Any = None
        self._name = SHORT[rows]
        if shown:
            with self._trying():
                self._bar = tqdm(total=rounds, desc="BSPAUC", unit="round")

    def show(self, row: Round) -> None:
        """Show a round that has ended."""
        if self._bar is None:
            return
        with self._trying():
            self._bar.set_postfix_str(
                f"{self._name} {row.train_auc:.4f}"
                + (f", validation {row.validation_auc:.4f}" if np.isfinite(row.validation_auc) else "")
                + f", kept {row.positive_fraction:.0%} + {row.negative_fraction:.0%} -"
            )
            self._bar.update()

    def close(self) -> None:
        """Say that no round follows."""
        if self._bar is not None:
            with self._trying():
                self._bar.close()

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        try:
            yield
        # The terminal is gone, or there is none, or the disk behind it is full, or it cannot show a character.
        except (OSError, ValueError, AttributeError):
            if self._bar is not None:
                # The bar would write once more as it ends.
                self._bar.disable = True
            self._bar = None
