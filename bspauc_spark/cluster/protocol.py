"""The θ side as the loop sees it, wherever it runs: ``theta.worker`` in this process, ``cluster.remote`` elsewhere."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from bspauc_spark.selection import Selection
from bspauc_spark.theta.block import BlockReport
from bspauc_spark.theta.scores import Scores
from bspauc_spark.theta.state import State


class Workers(Protocol):
    """Who holds the rows and θ."""

    def pretrain(self, rate: float = 1.0) -> None:
        """Train on a share of all rows, at ``rate`` times the learning rate.

        As with ``train``, θ is left as it was when this diverges.
        """

    def score(self) -> Scores:
        """The scores of every row by the θ of now, with the seconds that the pass over the rows took.

        Whatever moves θ ends with that pass, and this call gives what it found.
        """

    def penalty(self) -> float:
        """``Ω(θ)``."""

    def train(self, selection: Selection, rate: float = 1.0) -> BlockReport:
        """Run the θ block on pairs of selected rows, at ``rate`` times the learning rate.

        A block that diverges leaves θ as it was and raises ``DivergedError``.
        """

    def undo(self) -> None:
        """Take the last θ block back; random draws go on."""

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """A copy of the θ that scores, by name."""

    def state(self) -> State:
        """All that the next block depends on, beside the rows."""

    def load(self, state: State) -> None:
        """Return to a state that ``state`` gave."""
