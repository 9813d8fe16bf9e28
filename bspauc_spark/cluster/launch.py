"""One launch of workers by TorchDistributor: its thread, its files, the talk with rank 0, and its end."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark import InheritableThread
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

from bspauc_spark import errors
from bspauc_spark.cluster import rank
from bspauc_spark.cluster.mailbox import Mailbox, Message, unreadable
from bspauc_spark.errors import BSPAUCError, PlacementError, StagingError, WorkerError, reason
from bspauc_spark.rows.storage import Folder, folder
from bspauc_spark.spark.session import is_connect

logger = logging.getLogger("bspauc_spark")

_PATIENCE = 60.0
# Over Spark Connect nobody can say whether there will ever be enough task slots.
_READY_SECONDS = 300.0
# Nothing that workers do takes so long without a sign of progress.
_HANG_SECONDS = 300.0
# An end that is waited for by a user at Ctrl-C: all of it together.
_END_SECONDS = 9.0
# Of these, for telling the workers, where the storage may be stuck.
_TELL_SECONDS = 2.0
_LONGEST_REASON = 3000
_WRAPPER = b"pyspark.ml.torch.torch_run_process_wrapper"


class WorkersLostError(Exception):
    """The workers of a launch are gone, through no fault of what they were asked."""


class _Distributor(TorchDistributor):
    """Gives a task's processes its module path, and leaves the task's environment as it was.

    Torch's own processes see what is installed, but not what Spark ships (``--py-files``), unless they are told. And
    Spark reuses its Python workers, where TorchDistributor believes the ``CUDA_VISIBLE_DEVICES`` that it finds: a fit
    on CPUs would hide the GPUs from the next one, and a fit on GPUs would hand on the device of another task.
    """

    def _get_spark_task_function(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        task = super()._get_spark_task_function(*args, **kwargs)

        def restoring(rows: Iterator[Any]) -> Iterator[Any]:
            import os
            import sys

            before = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "PYTHONPATH")}
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
            try:
                yield from task(rows)
            finally:
                for name, value in before.items():
                    os.environ.pop(name, None)
                    if value is not None:
                        os.environ[name] = value

        return restoring


class Launch:
    """One TorchDistributor run in a thread of its own, and the talk with its rank 0.

    Build it in the thread that calls fit: TorchDistributor asks for the thread's active session.
    """

    def __init__(self, spark: SparkSession, task: rank.Task, processes: int, local: bool) -> None:
        identity = uuid.uuid4().hex
        self.folder = folder(task.shards.directory).child("mailbox").child(identity)
        try:
            self.folder.create()
            self.folder.write(rank.HEARTBEAT, b"0")
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        self._spark, self._processes, self._local = spark, processes, local
        self._identity, self._tag = identity, f"bspauc-{identity}"
        self._task = replace(task, folder=self.folder.location)
        self._commands = Mailbox(self.folder, rank.TO_WORKERS)
        self._replies = Mailbox(self.folder, rank.TO_DRIVER)
        self._ended = threading.Event()
        self._problem: BaseException | None = None
        self._ready = self._stopped = self._hung = False
        self._looked = 0.0
        self._signs: list[bytes] = []
        # Nobody has shown life yet: waiting for slots may take any time.
        self._moved = math.inf
        self._refused: StagingError | None = None
        self._script: Path | None = None
        self.failure: Exception | None = None
        """Why the workers are gone, if the launch came to an end that nobody asked for; known after ``end``."""
        self._distributor = _Distributor(processes, local_mode=local, use_gpu=task.use_gpu)
        # It announces each start and end on stderr.
        self._distributor.logger.setLevel(logging.WARNING)
        # A classic session's own tags must not be touched, not even read: plans that hold the session, as MLlib's
        # models make them, could not be sent to executors any more. Its context has tags too.
        session = spark if is_connect(spark) else None
        self._run_thread = InheritableThread(self._run, session=session, name="bspauc-launch", daemon=True)
        self._beat_thread = threading.Thread(target=self._beat, name="bspauc-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the workers and wait until they are ready, which includes waiting for free task slots."""
        started = time.perf_counter()
        self._beat_thread.start()
        self._run_thread.start()
        while self._replies.receive(self._still_there, min(_PATIENCE, _READY_SECONDS)) is None:
            waited = time.perf_counter() - started
            waits_for_slots = not self._local and math.isinf(self._moved)
            if is_connect(self._spark) and waits_for_slots and waited > _READY_SECONDS:
                raise PlacementError(
                    f"{self._processes} workers were not ready after {waited:.0f} s. Over Spark Connect task slots "
                    f"cannot be counted: the cluster may have fewer than numProcesses {self._processes} of them, or "
                    "other jobs hold them. Lower numProcesses, add executors, or train in this process with "
                    "localMode=True and numProcesses=0."
                )
            hint = "; are other jobs holding the slots?" if waits_for_slots else ""
            logger.warning("still waiting for %d workers to start%s", self._processes, hint)
        self._ready = True
        self._find_script()
        logger.info("%d workers are ready after %.1f s", self._processes, time.perf_counter() - started)

    def ask(self, command: Message) -> Message:
        """Send a command and wait for its reply, as long as somebody is there to give it."""
        started = time.perf_counter()
        self._moved = time.monotonic()
        try:
            self._commands.send(command, self._still_there)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        reply = self._replies.receive(self._still_there)
        assert reply is not None
        logger.debug(
            "%s: %.3f s, of which the workers worked %.3f s",
            *(command.word, time.perf_counter() - started, reply.values["work_seconds"]),
        )
        return reply

    def end(self) -> None:
        """End workers, thread and Spark job, and remove the launch's files."""
        deadline = time.monotonic() + _END_SECONDS
        self._ended.set()
        if self._beat_thread.ident is not None:
            # It tells the workers; a write can be stuck for as long as the storage likes.
            self._beat_thread.join(_TELL_SECONDS)
        if self._run_thread.ident is not None:
            # Workers end by themselves within a grace; those that have not come up yet must be stopped.
            self._run_thread.join(4.0)
            if self._ready and not self._names(rank.ALIVE):
                # TorchDistributor is tidying up after them, and would leave its files behind if it were stopped.
                self._run_thread.join(deadline - time.monotonic() - 2.0)
            if self._run_thread.is_alive():
                self._stop()
                self._run_thread.join(deadline - time.monotonic())
            # A cancelled job returns before the processes on the executors are gone.
            while not self._local and time.monotonic() < deadline and self._names(rank.ALIVE):
                time.sleep(self.folder.polling.last)
            if self._stopped and self._script is not None:
                # A rank that hangs hears of nothing else.
                _signal(self._script, signal.SIGKILL)
            if self._run_thread.is_alive():
                logger.warning("the workers of a fit did not end in time; they end when they find their folder gone.")
        self.failure = self._judge()
        self.folder.remove()

    def tell_end(self) -> None:
        """To ranks that wait for a command as such, to those at work by the heartbeat; once, before the folder goes."""
        try:
            self._commands.send(Message(rank.END), patience=0.0)
            self.folder.write(rank.HEARTBEAT, rank.END.encode())
        except OSError as error:
            self._refused = _unwritable(self.folder, error)

    def _judge(self) -> Exception:
        """What a worker raised, what Spark said, or that workers were lost."""
        found = sorted(self._failures(), key=lambda one: (one["kind"] == rank.LOST, one["rank"]))
        if found and found[0]["kind"] != rank.LOST:
            return _as_raised(found[0])
        if self._refused is not None:
            return self._refused
        if self._hung and self._replies.problem is not None:
            return unreadable(self.folder, self._replies.problem)
        said = _without_java(str(self._problem)) if self._problem is not None else ""
        if self._problem is not None and not self._stopped and not _is_loss(said):
            return WorkerError(f"the launch of the workers failed: {type(self._problem).__name__}: {said}")
        reasons = [f"rank {one['rank']} on host {one['host']}: {one['message']}" for one in found]
        if self._hung:
            reasons.append(f"no worker got on for {_HANG_SECONDS:.0f} s")
        return WorkersLostError("\n".join([*reasons, said]).strip() or "the workers ended without a word")

    def _run(self) -> None:
        try:
            if is_connect(self._spark):
                self._spark.addTag(self._tag)
            else:
                self._spark.sparkContext.addJobTag(self._tag)
            self._distributor.run(rank.run_rank, self._task)
        except BaseException as error:
            self._problem = error

    def _beat(self) -> None:
        beats = 0
        while not self._ended.wait(self.folder.polling.beat):
            beats += 1
            try:
                self.folder.write(rank.HEARTBEAT, str(beats).encode())
                self._refused = None
            except OSError as error:
                # It may be for a moment; if the workers are lost meanwhile, this is why.
                self._refused = _unwritable(self.folder, error)
        self.tell_end()

    def _still_there(self) -> None:
        if not self._run_thread.is_alive():
            raise GoneError
        now = time.monotonic()
        if now - self._looked < self.folder.polling.watch:
            return
        self._looked = now
        if self._names(rank.FAILURE):
            raise GoneError
        if math.isinf(self._moved) and self._names(rank.ALIVE):
            self._moved = now
            self._find_script()
        # Signs are read only when there is reason to doubt: in an object store each of them is a request.
        if now - self._moved > min(self.folder.polling.beat * 4, _HANG_SECONDS / 2):
            self._refuse_hang(now)

    def _refuse_hang(self, now: float) -> None:
        """Give the workers up if none of them has got on for long."""
        with contextlib.suppress(OSError):
            signs = [self.folder.read(name) for name in self._names(rank.ALIVE)]
            if signs != self._signs:
                self._signs, self._moved = signs, now
        if now - self._moved > _HANG_SECONDS:
            self._hung = True
            raise GoneError

    def _names(self, start: str) -> list[str]:
        """The launch's files whose names start so; none where the storage fails for a moment."""
        try:
            return [name for name in self.folder.names() if name.startswith(start)]
        except OSError:
            return []

    def _failures(self) -> list[dict[str, Any]]:
        found = []
        for name in self._names(rank.FAILURE):
            try:
                found.append(json.loads(self.folder.read(name)))
            except (OSError, ValueError):
                continue
        return found

    def _find_script(self) -> None:
        """While it is there: ranks may remove it before they end."""
        if self._local and self._script is None:
            self._script = _script_of(self._identity)

    def _stop(self) -> None:
        self._stopped = True
        if self._local:
            self._find_script()
            if self._script is not None:
                # It takes its own children along.
                _signal(self._script, signal.SIGTERM, _WRAPPER)
        elif is_connect(self._spark):
            self._spark.interruptTag(self._tag)
        else:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)


class GoneError(Exception):
    """Nobody is left to reply."""


def _unwritable(place: Folder, error: OSError) -> StagingError:
    return StagingError(
        f"messages to the workers cannot be written to stagingDir {place}: {reason(error)}. Make room or give the "
        "right to write there, or set stagingDir to other storage."
    )


def _is_loss(said: str) -> bool:
    """Whether TorchDistributor or Spark reports dead processes, rather than a refusal or a cancelled job."""
    if "SPARK_JOB_CANCELLED" in said:
        return False
    return any(part in said for part in ("failed during training", "failed with return code", "due to stage failure"))


def _without_java(text: str) -> str:
    """The end of an error message, where the reason is, without Java's stack."""
    lines = [line for line in text.strip().splitlines() if not line.startswith("\tat ")]
    return "\n".join(lines)[-_LONGEST_REASON:]


def _as_raised(failure: dict[str, Any]) -> BSPAUCError:
    """A worker's exception as the driver raises it: an error of ours as it is, any other as a WorkerError."""
    where = f"rank {failure['rank']} on host {failure['host']}"
    raised = WorkerError(f"{where} raised {failure['kind']}: {failure['message']}\n\n{failure['traceback']}")
    kind = getattr(errors, failure["kind"], None)
    if not (isinstance(kind, type) and issubclass(kind, BSPAUCError)):
        return raised
    ours: BSPAUCError = kind(failure["message"])
    ours.__cause__ = raised
    return ours


def _script_of(mark: str) -> Path | None:
    """The script that TorchDistributor started locally for the launch ``mark``.

    TorchDistributor keeps the process to itself, so it is found by the function it was given, which names the launch.
    """
    for _, command in _commands():
        script = next((Path(os.fsdecode(part)) for part in command if part.endswith(b"train.py")), None)
        if script is None or _WRAPPER not in command:
            continue
        with contextlib.suppress(OSError):
            if any(mark.encode() in file.read_bytes() for file in script.parent.iterdir()):
                return script
    return None


def _signal(script: Path, number: int, also: bytes = b"") -> None:
    """Send a signal to the processes that run a launch's script, and have ``also`` in their command if it is given."""
    for pid, command in _commands():
        if os.fsencode(script) in command and (not also or also in command):
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def _commands() -> Iterator[tuple[int, list[bytes]]]:
    """The processes of this machine with their command lines."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")
