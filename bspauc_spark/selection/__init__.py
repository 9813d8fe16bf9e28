"""Which rows to learn from now: ``solve`` gives v and u for λ and μ, ``calibrate`` the λ for a fraction."""

from bspauc_spark.selection.alternation import update_u, update_v
from bspauc_spark.selection.calibration import calibrate
from bspauc_spark.selection.solution import Selection, solve

__all__ = ["Selection", "calibrate", "solve", "update_u", "update_v"]
