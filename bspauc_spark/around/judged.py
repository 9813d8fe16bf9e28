"""What a fit learned beside its models: the scale of their scores, the selection, and what scores say about labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bspauc_spark.around.rounds import Outcome
from bspauc_spark.around.scale import Scale
from bspauc_spark.arrays import BoolArray, Float32Array, FloatArray
from bspauc_spark.schema import many, real, record
from bspauc_spark.scorer import LossCurves
from bspauc_spark.selection import Selection
from bspauc_spark.selection.label_noise import LabelNoise

AUDIT_COLUMNS = ("score", "loss", "weight", "suspicion")


@dataclass(frozen=True, eq=False)
class Judged:
    """Found on honest scores, and good for new rows' scores too, which have the same scale."""

    scale: Scale
    selection: Selection
    noise: LabelNoise
    curves: LossCurves

    @classmethod
    def of(cls, found: Outcome) -> Judged:
        """What the outcome's scores say."""
        pos, neg = found.classes
        kept = found.final.kept
        selection = kept.selection if kept else Selection.everything(pos, neg)
        curves = LossCurves.of(pos, neg, selection)
        # Without the scores of all rows, which would live as long as the model.
        return cls(found.scale, Selection.from_dict(selection.to_dict(objective=False)), found.noise, curves)

    def audit(self, scores: Float32Array, positive: BoolArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Loss, weight and suspicion of rows with these scores and labels."""
        v, u = self.selection.positive_weights(scores), self.selection.negative_weights(scores)
        return (
            self.curves.losses(scores, positive),
            np.where(positive, v, u),
            self.noise.suspicion(scores, positive),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "scale": self.scale.to_dict(),
            "selection": self.selection.to_dict(objective=False),
            "calibration": self.noise.to_dict(),
            "curves": {name: array.tolist() for name, array in vars(self.curves).items()},
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], where: str = "judged") -> Judged:
        """The inverse of ``to_dict``; ``MalformedError`` names the place ``where`` something is wrong."""
        values = _STORED(stored, where)
        curves = {name: np.array(array, dtype=np.float64) for name, array in values["curves"].items()}
        return cls(values["scale"], values["selection"], values["calibration"], LossCurves(**curves))


_STORED = record(
    {
        "scale": Scale.from_dict,
        "selection": Selection.from_dict,
        "calibration": LabelNoise.from_dict,
        "curves": record(dict.fromkeys(("scores", "positive", "negative"), many(real(), least=2))),
    }
)
