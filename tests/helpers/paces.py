"""A look at each round of a fit, or a stone in its way, from where its pace selects rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bspauc_spark.selection import Selection
from bspauc_spark.selection.pace import AutomaticPace, EveryRow, ExplicitPace, FractionPace
from bspauc_spark.statistics import OrderedScores

Seen = Callable[[int, OrderedScores, OrderedScores, Selection], None]


def before_each_round(patch: pytest.MonkeyPatch, do: Callable[[int], None]) -> None:
    """Call ``do`` with the number of each round before its rows are selected."""
    _around(patch, do, lambda *_: None)


def after_each_selection(patch: pytest.MonkeyPatch, see: Seen) -> None:
    """Show each round's number, scores and selection."""
    _around(patch, lambda t: None, see)


def _around(patch: pytest.MonkeyPatch, before: Callable[[int], None], after: Seen) -> None:
    for kind in (AutomaticPace, EveryRow, ExplicitPace, FractionPace):

        def select(
            self: Any,
            t: int,
            pos: OrderedScores,
            neg: OrderedScores,
            previous: Selection | None,
            own: Callable[..., Selection] = kind.select,
        ) -> Selection:
            before(t)
            selection = own(self, t, pos, neg, previous)
            after(t, pos, neg, selection)
            return selection

        patch.setattr(kind, "select", select)


def interrupt_in_round_2(t: int) -> None:
    if t == 2:
        raise KeyboardInterrupt
