"""The progress bar, on terminals that work and on those that do not."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from bspauc_spark.results.history import Round
from bspauc_spark.results.progress import ProgressBar

ROUND = Round(**{**dict.fromkeys(Round.__dataclass_fields__, 0), "train_auc": 0.75, "positive_fraction": 0.5})


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def ascii_only() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def full() -> io.TextIOWrapper:
    return open("/dev/full", "w", buffering=1)


def show(rounds: int = 3, **settings: str) -> None:
    bar = ProgressBar(rounds, shown=True, **settings)
    for _ in range(rounds):
        bar.show(ROUND)
    bar.close()


def test_the_bar_says_what_a_round_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    show()
    assert "3/3" in sys.stderr.getvalue()
    assert "training AUC 0.7500, validation 0.0000, kept 50% + 0% -" in sys.stderr.getvalue()
    show(rows="out-of-fold")
    assert "out-of-fold AUC 0.7500, " in sys.stderr.getvalue()


@pytest.mark.parametrize(
    "stream",
    [Gone, ascii_only, closed, lambda: None, full],
    ids=["gone", "ascii", "closed", "none", "full"],
)
def test_a_terminal_that_takes_nothing_costs_no_fit(stream: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream())
    show()


def test_what_is_not_to_be_shown_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    bar = ProgressBar(2, shown=False)
    bar.show(ROUND)
    bar.close()
    assert sys.stderr.getvalue() == ""
