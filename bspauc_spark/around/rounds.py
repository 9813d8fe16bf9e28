"""The self-paced loop around any learners: fit outside each fold, score the fold, select, and judge the selection.

It is the same on arrays and on a cluster: rows, learners and models are the business of a ``Side``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from bspauc_spark.around.blend import blended
from bspauc_spark.around.scale import Folds, Scale
from bspauc_spark.around.verdict import compared, pays, told
from bspauc_spark.arrays import BoolArray, Float32Array, FloatArray
from bspauc_spark.errors import CollapseError
from bspauc_spark.selection import Selection
from bspauc_spark.selection.label_noise import LabelNoise, estimate_label_noise
from bspauc_spark.selection.pace import Pace
from bspauc_spark.statistics import OrderedScores
from bspauc_spark.statistics.binned import auc

View: TypeAlias = str
OWN, JUDGED = "own", "judged"


@dataclass(frozen=True, eq=False)
class Kept:
    """Which rows of a view are kept: a selection on a scale of the scores that ``scored`` holds."""

    scored: Scored
    view: View
    scale: Scale
    selection: Selection


@dataclass(frozen=True)
class Fit:
    """A fit of all learners on the rows outside some folds, of which those are left out that are not ``kept``."""

    left_out: frozenset[int]
    kept: Kept | None = None


@dataclass(frozen=True)
class Sample:
    """Rows of both classes, as many as evidence needs: their folds, and learners × rows of scores for each view."""

    positive: BoolArray
    fold: Folds
    raw: Mapping[View, Float32Array]


class Scored(Protocol):
    """Scores of all rows, in one or more views: each has a model for each fold that did not learn from the fold."""

    def sample(self) -> Sample:
        """Some rows with their scores."""

    def classes(self, view: View, scale: Scale) -> tuple[OrderedScores, OrderedScores]:
        """The scores of all positives and of all negatives of a view."""


class Side(Protocol):
    """The rows, the learners, and the models that were fitted."""

    @property
    def folds(self) -> int:
        """The number of folds."""

    def scored(self, views: Mapping[View, Mapping[int, Fit]]) -> contextlib.AbstractContextManager[Scored]:
        """Make the fits that were not made yet, and score the folds of each view by the fits that it names for them."""


@dataclass(frozen=True)
class Round:
    """A selection and what it was made from."""

    round: int
    auc: float
    """Of the honest scores that the round selects by, against labels as given."""
    wrong_positives: float
    wrong_negatives: float
    lam: float
    mu: float
    lead: float
    positive_fraction: float
    negative_fraction: float


@dataclass(frozen=True)
class Outcome:
    """What the loop found: the fit that the model is to be made by, and why."""

    final: Fit
    scale: Scale
    classes: tuple[OrderedScores, OrderedScores]
    """The honest scores of both classes, on this scale, of models like the final one."""
    noise: LabelNoise
    pays: bool
    why: str
    rounds: Sequence[Round]
    models: Mapping[int, Fit]
    """For each fold a fit like the final one, which did not learn from the fold."""
    verdict: FloatArray | None = None


@contextlib.contextmanager
def self_paced(side: Side, pace: Pace) -> Iterator[Outcome]:
    """Fit, select, and judge; the side keeps the scores that the outcome needs as long as the context is open.

    Round 1 selects by the scores of models that learned from all rows outside a fold. To know whether that pays, each
    fold has a judge: the learners, fitted on the rows outside the fold that are kept. They are kept by scores of models
    that saw neither a row's own fold nor the judge's, so the judge's training labels were chosen without help of the
    rows that it judges. Round 2 selects by the judges' scores, for the final fit.
    """
    folds, none = range(side.folds), frozenset[int]()
    own = {k: Fit(frozenset([k])) for k in folds}
    history: list[Round] = []

    def all_rows(found: Judgement, why: str, **more: Any) -> Outcome:
        return Outcome(Fit(none), found.scale, found.classes, found.noise, False, why, history, own, **more)

    with contextlib.ExitStack() as held:
        first = Judgement.of(held.enter_context(side.scored({OWN: own})), OWN, folds, pace, 1)
        history.append(first.round(1))
        if first.keeps_all:
            yield all_rows(first, "All rows are kept, since honest scores show no wrong labels.")
            return
        views = {_without(k): {j: Fit(frozenset([j, k])) for j in folds if j != k} for k in folds}
        with side.scored(views) as nested:
            judges = {k: Fit(frozenset([k]), _kept(nested, k, folds, pace)) for k in folds}
            last = held.enter_context(side.scored({OWN: own, JUDGED: judges}))
        second = Judgement.of(last, JUDGED, folds, pace, 2)
        verdict = compared(*_stacked(last.sample(), first.scale, second.scale))
        if second.keeps_all or not pays(verdict):
            yield all_rows(first, told(verdict), verdict=verdict)
            return
        history.append(second.round(2))
        final = Fit(none, Kept(last, JUDGED, second.scale, second.selection))
        yield Outcome(
            final, second.scale, second.classes, second.noise, True, told(verdict), history, judges, verdict=verdict
        )


def _without(k: int) -> View:
    return f"without {k}"


def _kept(nested: Scored, k: int, folds: Sequence[int], pace: Pace) -> Kept:
    """What is kept for the judge of fold ``k``, by scores of models that did not see the fold."""
    view = _without(k)
    found = Judgement.of(nested, view, [j for j in folds if j != k], pace, 1)
    return Kept(nested, view, found.scale, found.selection)


@dataclass(frozen=True)
class Judgement:
    """The honest scores of a view, and which rows they would keep."""

    scale: Scale
    classes: tuple[OrderedScores, OrderedScores]
    noise: LabelNoise
    selection: Selection

    @classmethod
    def of(cls, scored: Scored, view: View, folds: Sequence[int], pace: Pace, t: int) -> Judgement:
        """Put models and learners on one scale, and select."""
        scale = _scale(scored.sample(), view, folds)
        pos, neg = scored.classes(view, scale)
        try:
            selection = pace.select(t, pos, neg, None)
        except CollapseError:
            selection = Selection.everything(pos, neg)
        return cls(scale, (pos, neg), estimate_label_noise(pos, neg), selection)

    @property
    def keeps_all(self) -> bool:
        """Whether no row is left out."""
        return min(self.selection.fractions) >= 1.0

    def round(self, number: int) -> Round:
        """For the history."""
        one = self.selection
        wrong, kept = self.noise.wrong_shares, one.fractions
        return Round(number, auc(*self.classes), *wrong, one.lam, one.mu, one.lead, *kept)


def _scale(sample: Sample, view: View, folds: Sequence[int]) -> Scale:
    scale = Scale.of(sample.raw[view], sample.fold, folds)
    if len(sample.raw[view]) == 1:
        return scale
    inside = np.isin(sample.fold, list(folds))
    every = scale.each(sample.raw[view], sample.fold)
    return scale.with_shares(blended(every[:, inside & sample.positive], every[:, inside & ~sample.positive]))


def _stacked(sample: Sample, own: Scale, judged: Scale) -> tuple[Float32Array, Float32Array]:
    """Scores without and with selection, a row of each array, of positives and of negatives."""
    every = np.stack([own.scores(sample.raw[OWN], sample.fold), judged.scores(sample.raw[JUDGED], sample.fold)])
    return every[:, sample.positive], every[:, ~sample.positive]
