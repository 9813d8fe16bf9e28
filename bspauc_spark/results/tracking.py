"""A fit as an MLflow run: Params and tags at its start, metrics after every round, artifacts at its end.

MLflow is spoken to in a thread of its own, so that a server that is slow does not slow the fit, and one that is down
does not kill it: what could not be delivered stays in a folder that the warning names. Nor does a full disk.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bspauc_spark.errors import BSPAUCWarning, cause, without_credentials
from bspauc_spark.results.history import Round
from bspauc_spark.results.served import version_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, RunTag

    from bspauc_spark.results.diagnostics import Diagnostics
    from bspauc_spark.results.headline import Headline
    from bspauc_spark.results.summary import TrainingSummary

# At the end of a fit a server is given up that has answered nothing for so long.
PATIENCE_SECONDS = 15.0

# Runs that hold a fit already: a second one in the same run becomes its child, because Params are logged only once.
_taken: set[str] = set()
_taken_lock = threading.Lock()


class Tracked(Protocol):
    """What a fit tells as it goes."""

    def log_round(self, row: Round) -> None:
        """A finished round."""

    def log_summary(self, summary: TrainingSummary) -> None:
        """The whole fit, at its end."""


def active_run() -> str | None:
    """The id of this thread's active MLflow run; who never imported mlflow has none."""
    mlflow = sys.modules.get("mlflow")
    run = mlflow.active_run() if mlflow is not None else None
    return run.info.run_id if run is not None else None


def versions() -> dict[str, str]:
    """Of this package and those whose version may change a result."""
    names = ("bspauc_spark", "pyspark", "torch", "numpy", "mlflow")
    return {name: _version(name) for name in names} | {"python": sys.version.split()[0]}


def _version(name: str) -> str:
    try:
        return version_of(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@contextlib.contextmanager
def run(mode: str, remembered: str | None, about: Mapping[str, Any]) -> Iterator[Tracked]:
    """The MLflow run of a fit by the Param ``tracking``; without one, something that logs nothing.

    ``remembered`` is the run that was active when the estimator was copied, for fits in threads that have none.
    """
    active = active_run()
    parent = active or remembered
    if mode == "off" or (mode == "auto" and parent is None):
        yield _Untracked()
        return
    joins = mode == "auto" and active is not None and _take(active)
    tracker = Tracker(active if joins else None, parent, about)
    try:
        yield tracker
    except BaseException:
        tracker.end("FAILED")
        raise
    tracker.end("FINISHED")


def _take(run_id: str) -> bool:
    with _taken_lock:
        free = run_id not in _taken
        _taken.add(run_id)
        return free


class _Untracked:
    def log_round(self, row: Round) -> None:
        pass

    def log_summary(self, summary: TrainingSummary) -> None:
        pass


@dataclass
class _Outbox:
    """What is still to be delivered."""

    rounds: list[tuple[Round, int]] = field(default_factory=list)
    headline: Headline | None = None
    artifacts: Path | None = None
    status: str | None = None
    """How the fit ended; None while it runs."""


class Tracker:
    """Delivers a fit to MLflow from a thread.

    With ``run_id`` into that run, which belongs to the caller and stays open; otherwise into a run of its own, nested
    under ``parent`` if there is one, which it also ends.
    """

    def __init__(self, run_id: str | None, parent: str | None, about: Mapping[str, Any]) -> None:
        # Here and not in the thread: importing is slow, and errors of an installation belong to the caller.
        import mlflow

        self._mlflow = mlflow
        self._run_id, self._parent, self._about = run_id, parent, about
        self._folder: Path | None = None
        self._history: list[Round] = []
        self._outbox, self._changed = _Outbox(), threading.Condition()
        self._answered = time.monotonic()
        self._error: Exception | None = None
        self._warned = self._abandoned = False
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="bspauc-run-"))
        except OSError as error:
            self._warn(f"The figures of this fit have no temporary folder ({_named(error)})")
        self._keep_history()
        self._thread = threading.Thread(target=self._deliver, name="bspauc-mlflow", daemon=True)
        self._thread.start()

    def log_round(self, row: Round) -> None:
        """Metrics of a finished round, at the time of the call."""
        self._history.append(row)
        self._keep_history()
        with self._changed:
            self._outbox.rounds.append((row, int(time.time() * 1000)))
            self._changed.notify()
        if self._error is not None:
            self._refused(_named(self._error))

    def log_summary(self, summary: TrainingSummary) -> None:
        """The headline; artifacts: the history, the plots, the report."""
        with self._changed:
            self._outbox.headline = summary.headline
        self._keep_history()
        self._keep("rounds.png", lambda path: _draw(summary, path))
        if summary.diagnostics is not None:
            self._keep("scores.png", lambda path: _draw(summary, path, summary.diagnostics))
        self._keep("report.html", summary.report)

    def end(self, status: str) -> None:
        """Wait until all is delivered, as long as the server answers; then forget the local copy."""
        with self._changed:
            self._outbox.artifacts, self._outbox.status = self._folder, status
            self._answered = max(self._answered, time.monotonic())
            self._changed.notify()
        while self._thread.is_alive() and self._error is None and time.monotonic() - self._answered < PATIENCE_SECONDS:
            self._thread.join(0.05)
        if self._error is not None:
            self._refused(_named(self._error))
        elif self._thread.is_alive():
            self._abandoned = True
            self._refused(f"no answer for {PATIENCE_SECONDS:g} s")
        elif self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _refused(self, reason: str) -> None:
        said = without_credentials(f"MLflow at {self._mlflow.get_tracking_uri()} did not take this fit ({reason})")
        self._warn(said, f"; its figures are kept in {self._folder}")

    def _warn(self, said: str, rest: str = "") -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"{said}. The fit goes on{rest}.", BSPAUCWarning, stacklevel=2)

    def _keep_history(self) -> None:
        """The figures so far, on disk: they are there whatever becomes of the server or of this process."""
        values = {**self._about, "history": [row.to_dict() for row in self._history]}
        self._keep("history.json", lambda path: path.write_text(json.dumps(values, indent=1, default=str)))

    def _keep(self, name: str, write: Callable[[Path], object]) -> None:
        if self._folder is None:
            return
        try:
            write(self._folder / name)
        except Exception as error:  # Of the disk, of matplotlib: none of it is worth a model.
            with contextlib.suppress(OSError):
                # Half of a file is none.
                (self._folder / name).unlink()
            self._warn(f"{name} of this fit was not written to {self._folder} ({_named(error)})")

    def _deliver(self) -> None:
        try:
            client = self._mlflow.MlflowClient()
            run_id = self._run_id or self._start_run()
            self._describe(client, run_id)
            self._answered = time.monotonic()
            status = None
            while status is None and not self._abandoned:
                taken = self._take_pending()
                status = taken.status
                if taken.rounds:
                    metrics = [metric for row, at in taken.rounds for metric in _metrics(row, at)]
                    client.log_batch(run_id, metrics=metrics)
                    self._answered = time.monotonic()
                if taken.headline is not None:
                    metrics, name = _headline(taken.headline)
                    client.log_batch(run_id, metrics=metrics, tags=[name])
                    self._answered = time.monotonic()
                for file in sorted(taken.artifacts.iterdir()) if taken.artifacts else ():
                    client.log_artifact(run_id, str(file))
                    self._answered = time.monotonic()
            self._end_run()
        except Exception as error:  # MLflow and its stores raise of everything, and none of it may end a fit.
            self._error = error
            with contextlib.suppress(Exception):
                self._end_run()

    def _end_run(self) -> None:
        """End the run that this thread started, if it did, and what MLflow started with it, such as system metrics."""
        self._mlflow.end_run(self._outbox.status or "FAILED")

    def _take_pending(self) -> _Outbox:
        with self._changed:
            while not self._outbox.rounds and self._outbox.status is None:
                self._changed.wait()
            taken, self._outbox = self._outbox, _Outbox(status=self._outbox.status)
        return taken

    def _start_run(self) -> str:
        """A run of its own. MLflow's active run is per thread, so the caller's stays what it was."""
        name = f"bspauc-{time.strftime('%Y%m%d-%H%M%S')}"
        started = self._mlflow.start_run(run_name=name, nested=self._parent is not None, parent_run_id=self._parent)
        run_id: str = started.info.run_id
        return run_id

    def _describe(self, client: MlflowClient, run_id: str) -> None:
        from mlflow.entities import Param, RunTag

        data = {f"data.{name}": value for name, value in self._about["data"].items()}
        named = {f"version.{name}": value for name, value in self._about["versions"].items()}
        tags = {**data, **named, "workers": self._about["workers"]}
        client.log_batch(
            run_id,
            params=[Param(name, str(value)) for name, value in self._about["params"].items()],
            tags=[RunTag(f"bspauc.{name}", str(value)) for name, value in tags.items()],
        )


def _metrics(row: Round, at: int) -> list[Metric]:
    from mlflow.entities import Metric

    values = row.to_dict()
    return [Metric(n, float(v), at, row.round) for n, v in values.items() if v is not None and n != "round"]


def _headline(found: Headline) -> tuple[list[Metric], RunTag]:
    from mlflow.entities import Metric, RunTag

    values = {"auc": found.auc, "estimated_true_auc": found.true_auc}
    now = int(time.time() * 1000)
    metrics = [Metric(name, value, now, 0) for name, value in values.items() if value is not None]
    return metrics, RunTag("bspauc.auc", found.name)


def _draw(summary: TrainingSummary, path: Path, found: Diagnostics | None = None) -> None:
    """The scores that were ``found``, or the rounds."""
    from bspauc_spark.results.plots import drawing, plot_scores

    with drawing:
        (plot_scores(found) if found is not None else summary.plot()).savefig(path, dpi=120)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {cause(error)[:200].rstrip(' .')}"
