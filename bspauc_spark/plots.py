"""Figures of a fit. They are drawn without pyplot, so that no global state or window is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POSITIVE, _NEGATIVE, _NEUTRAL, _SECOND = "#c2410c", "#1d4ed8", "#374151", "#059669"


def plot_history(history: pd.DataFrame, best_round: int) -> Figure:
    """Four panels over the rounds: AUC, kept fractions, λ and μ, objective before and after each block."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    _auc(axes[0][0], history, best_round)
    _fractions(axes[0][1], history)
    _pace(axes[1][0], history)
    _objective(axes[1][1], history)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend(frameon=False, fontsize=9)
    for axis in axes[1]:
        axis.set_xlabel("round")
    return figure


def _auc(axis: Axes, history: pd.DataFrame, best_round: int) -> None:
    axis.plot(history["round"], history["train_auc"], "o-", color=_NEUTRAL, ms=4, label="training (labels as given)")
    if history["validation_auc"].notna().any():
        axis.plot(history["round"], history["validation_auc"], "s-", color=_SECOND, ms=4, label="validation")
        axis.axvline(best_round, color=_SECOND, ls=":", lw=1, label="round kept")
    axis.set_title("AUC after the round", loc="left")


def _fractions(axis: Axes, history: pd.DataFrame) -> None:
    axis.plot(history["round"], history["positive_fraction"], "o-", color=_POSITIVE, ms=4, label="positives, V")
    axis.plot(history["round"], history["negative_fraction"], "s-", color=_NEGATIVE, ms=4, label="negatives, U")
    axis.set_ylim(0, 1.05)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_title("Rows kept for training", loc="left")


def _pace(axis: Axes, history: pd.DataFrame) -> None:
    axis.plot(history["round"], history["lam"], "o-", color=_NEUTRAL, ms=4, label="λ")
    axis.plot(history["round"], history["mu"], "s--", color=_SECOND, ms=4, label="μ")
    axis.set_title("Pace λ and balance μ", loc="left")


def _objective(axis: Axes, history: pd.DataFrame) -> None:
    axis.plot(history["round"], history["objective_before"], "o--", color=_NEUTRAL, ms=4, label="before the θ block")
    axis.plot(history["round"], history["objective_after"], "s-", color=_SECOND, ms=4, label="after it")
    axis.set_title("Objective L(θ, v, u; λ)", loc="left")
