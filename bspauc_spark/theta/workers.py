"""The worker that a network needs."""

from __future__ import annotations

from collections.abc import Mapping

from bspauc_spark.rows.rows import Rows
from bspauc_spark.theta.group import Group
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.table_worker import TableWorker
from bspauc_spark.theta.worker import Worker


def make_worker(
    rows: Mapping[str, Rows], spec: NetworkSpec, settings: TrainingSettings, group: Group | None = None
) -> Worker:
    """A worker whose θ is solved in closed form where that is possible, and descended by steps elsewhere."""
    kind = TableWorker if spec.kind == "table" else Worker
    return kind(rows, spec, settings, group)
