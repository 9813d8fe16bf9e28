"""The AUC with which a report begins: of which rows it is, and what it says about an AUC on true labels."""

from __future__ import annotations

from dataclasses import dataclass

VALIDATION, OUT_OF_FOLD, TRAINING = "validation", "out-of-fold", "training"
ROWS = (VALIDATION, OUT_OF_FOLD, TRAINING)

# In short, for axes and columns, and in full.
SHORT = {VALIDATION: "validation AUC", OUT_OF_FOLD: "out-of-fold AUC", TRAINING: "training AUC"}
NAMES = {
    VALIDATION: "validation AUC, labels as given",
    OUT_OF_FOLD: "out-of-fold AUC (a single member's, so a lower estimate), labels as given",
    TRAINING: "training AUC on rows the network learned from, labels as given",
}
ASSUMPTION = "estimated AUC on true labels, if wrong labels are spread evenly over the rows of their class"


@dataclass(frozen=True)
class Headline:
    """An AUC against labels as given, and of which rows it is."""

    auc: float
    rows: str
    """``validation``, ``out-of-fold`` or ``training``."""
    true_auc: float | None = None
    """The estimated AUC on true labels, if the labels of these rows tell how many of them are wrong."""

    @property
    def name(self) -> str:
        """What the AUC is, in words."""
        return NAMES[self.rows]


def true_auc(given: float, wrong_positives: float, wrong_negatives: float) -> float | None:
    """The AUC on true labels from the one on given labels and the shares of those that are wrong; None if none are.

    ``½ + (a − ½) / (1 − wrong⁺ − wrong⁻)``, at most 1: if wrong labels are spread evenly over the rows of their class,
    a pair of given labels is one of true labels, in the same order or in the opposite one, or a pair of the same class,
    which is in either order as often.
    """
    left = 1.0 - wrong_positives - wrong_negatives
    if left in (0.0, 1.0) or left < 0.0:
        return None
    return min(max(0.5 + (given - 0.5) / left, 0.0), 1.0)
