"""Figures of a fit. They are drawn without pyplot, which has global state and may open windows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bspauc_spark.results.diagnostics import Diagnostics
from bspauc_spark.results.headline import TRAINING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POSITIVE, NEGATIVE, NEUTRAL, SECOND = "#c2410c", "#1d4ed8", "#374151", "#059669"

# The settings of Matplotlib are global, and fits may run in several threads.
drawing = threading.Lock()

Draw = Callable[["Axes"], None]


def plot_history(history: pd.DataFrame, best_round: int, rows: str = TRAINING) -> Figure:
    """Four panels over the rounds: AUC, kept fractions, λ and μ, the objective before and after each θ block."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    for axis, draw in zip(axes.flat, history_panels(history, best_round, rows).values(), strict=False):
        draw(axis)
        _finish(axis)
    for axis in axes[0]:
        axis.set_xlabel("")
    return figure


def plot_scores(found: Diagnostics) -> Figure:
    """Four panels: ROC, precision and recall, and for each class the scores of its kept and excluded rows."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    for axis, draw in zip(figure.subplots(2, 2).flat, score_panels(found).values(), strict=True):
        draw(axis)
        _finish(axis)
    return figure


def panel(draw: Draw) -> Figure:
    """One panel as a figure of its own."""
    figure = Figure(figsize=(4.6, 3.1), layout="constrained")
    axis = figure.subplots()
    draw(axis)
    _finish(axis)
    return figure


def history_panels(history: pd.DataFrame, best_round: int, rows: str = TRAINING) -> dict[str, Draw]:
    """The panels over the rounds, each by a sentence that describes it; ``rows`` says how training rows were judged."""
    return {
        "AUC after each round": partial(_auc, history=history, best_round=best_round, rows=rows),
        "Share of the positives and of the negatives kept in each round": partial(_fractions, history=history),
        "Pace λ and balance μ of each round": partial(_pace, history=history),
        "Objective before and after each θ block": partial(_objective, history=history),
        "Difference of the kept shares (APD) in each round": partial(_apd, history=history),
        "Seconds of scoring, solving and training in each round": partial(_seconds, history=history),
    }


def score_panels(found: Diagnostics) -> dict[str, Draw]:
    """The panels of the final scores, each by a sentence that describes it."""
    return {
        f"ROC curve of the {found.rows} rows": partial(_roc, found=found),
        f"Precision over recall of the {found.rows} rows": partial(_precision, found=found),
        "Histogram of the scores of kept and excluded positives": partial(_histogram, found=found, kind="positives"),
        "Histogram of the scores of kept and excluded negatives": partial(_histogram, found=found, kind="negatives"),
    }


def _finish(axis: Axes) -> None:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=9)


def _over_rounds(axis: Axes, title: str) -> None:
    axis.set_title(title, loc="left")
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _auc(axis: Axes, history: pd.DataFrame, best_round: int, rows: str) -> None:
    axis.plot(history["round"], history["train_auc"], "o-", color=NEUTRAL, ms=4, label=f"{rows} (labels as given)")
    if history["validation_auc"].notna().any():
        axis.plot(history["round"], history["validation_auc"], "s-", color=SECOND, ms=4, label="validation")
        axis.axvline(best_round, color=SECOND, ls=":", lw=1, label="round kept")
    _over_rounds(axis, "AUC after the round")


def _fractions(axis: Axes, history: pd.DataFrame) -> None:
    axis.plot(history["round"], history["positive_fraction"], "o-", color=POSITIVE, ms=4, label="positives, V")
    axis.plot(history["round"], history["negative_fraction"], "s-", color=NEGATIVE, ms=4, label="negatives, U")
    axis.set_ylim(0, 1.05)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _over_rounds(axis, "Rows kept for training")


def _apd(axis: Axes, history: pd.DataFrame) -> None:
    axis.plot(history["round"], history["apd"], "o-", color=NEUTRAL, ms=4)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    _over_rounds(axis, "APD, |V − U|")


def _seconds(axis: Axes, history: pd.DataFrame) -> None:
    below = np.zeros(len(history))
    for name, colour in (("train", SECOND), ("score", NEGATIVE), ("solve", POSITIVE)):
        seconds = history[f"{name}_seconds"].to_numpy()
        axis.bar(history["round"], seconds, bottom=below, color=colour, label=name)
        below = below + seconds
    _over_rounds(axis, "Seconds")


def _pace(axis: Axes, history: pd.DataFrame) -> None:
    axis.plot(history["round"], history["lam"], "o-", color=NEUTRAL, ms=4, label="λ")
    axis.plot(history["round"], history["mu"], "s--", color=SECOND, ms=4, label="μ")
    _over_rounds(axis, "Pace λ and balance μ")


def _objective(axis: Axes, history: pd.DataFrame) -> None:
    axis.plot(history["round"], history["objective_before"], "o--", color=NEUTRAL, ms=4, label="before the θ block")
    axis.plot(history["round"], history["objective_after"], "s-", color=SECOND, ms=4, label="after it")
    _over_rounds(axis, "Objective L(θ, v, u; λ)")


def _roc(axis: Axes, found: Diagnostics) -> None:
    axis.plot([0, *found.false_positive_rate, 1], [0, *found.true_positive_rate, 1], color=SECOND)
    axis.plot([0, 1], [0, 1], color=NEUTRAL, lw=1, ls=":")
    axis.set_title(f"ROC, {found.rows} rows", loc="left")
    axis.set_xlabel("negatives above the threshold")
    axis.set_ylabel("positives above it")


def _precision(axis: Axes, found: Diagnostics) -> None:
    axis.plot(found.true_positive_rate, found.precision, color=SECOND)
    axis.axhline(found.precision[-1], color=NEUTRAL, lw=1, ls=":", label="share of positives")
    axis.set_ylim(0, 1.05)
    axis.set_title(f"Precision and recall, {found.rows} rows", loc="left")
    axis.set_xlabel("recall")
    axis.set_ylabel("precision")


def _histogram(axis: Axes, found: Diagnostics, kind: str) -> None:
    edges = np.asarray(found.edges)
    middles, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    kept, excluded = np.asarray(found.kept[kind]), np.asarray(found.excluded[kind])
    axis.bar(middles, kept, width, color=POSITIVE if kind == "positives" else NEGATIVE, label="kept")
    axis.bar(middles, excluded, width, bottom=kept, color=NEUTRAL, alpha=0.6, label="excluded")
    axis.set_title(f"Scores of {kind}", loc="left")
    axis.set_xlabel("score")
    axis.set_ylabel("rows")
