"""What every TorchDistributor worker runs: meet the others, then do what the driver asks until it says "end"."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bspauc_spark import liveness
from bspauc_spark.cluster.mailbox import Mailbox, Message
from bspauc_spark.errors import DeviceError, DivergedError
from bspauc_spark.rows.shards import Shards
from bspauc_spark.rows.storage import DiskFolder, Folder, folder
from bspauc_spark.selection import Selection
from bspauc_spark.statistics.binned import Histogram
from bspauc_spark.theta import cuda
from bspauc_spark.theta.device import choose_device, device_name
from bspauc_spark.theta.group import Group, PeerLostError, TorchGroup
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.worker import Worker
from bspauc_spark.theta.workers import make_worker

TO_WORKERS, TO_DRIVER = "driver", "worker"
# The last command, and then also what the heartbeat says.
END = "end"
# Files of a launch, beside the messages.
HEARTBEAT, FAILURE, ALIVE = "heartbeat", "failure-", "alive-"
LOST = "PeerLostError"

_BEAT_TIMEOUT = 120.0
# How often a rank looks whether its parent is gone.
_WATCH = 0.25
# Ranks that wait for a command end by themselves; those in the middle of work are ended after this many seconds.
_GRACE = 1.5
# Rank 0 says "nothing yet" to the others this often, so that no collective waits long.
_NOTHING_YET = 5.0
# A command that is there and cannot be read for so long will not be readable.
_UNREADABLE_SECONDS = 60.0


@dataclass(frozen=True)
class Task:
    """What a launch needs to know; plain values, the same for every rank."""

    shards: Shards
    spec: NetworkSpec
    settings: TrainingSettings
    use_gpu: bool = False
    folder: str = ""


def run_rank(task: Task) -> None:
    """Run one rank. Nothing is raised: torchrun would only print it; failures go to the driver as files."""
    rank, talk = int(os.environ["RANK"]), folder(task.folder)
    # A terminal's Ctrl-C goes to every process; the driver decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # torchrun ends its ranks by SIGTERM, Spark's Python daemon by SIGHUP when its executor is gone. A thread answers
    # them, since this one may be deep inside a collective.
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGHUP, lambda *_: None)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    alive = _Alive(talk, f"{ALIVE}{rank}")
    threading.Thread(target=_exit_when_abandoned, args=(talk, alive, os.getppid(), told), daemon=True).start()
    try:
        torch.set_num_threads(1)
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        device = choose_device(task.use_gpu, rank, local_rank)
        if task.use_gpu:
            cuda.take(device)
        with TorchGroup.connected(task.use_gpu) as group:
            if task.use_gpu:
                _refuse_shared_device(group, device_name(local_rank))
            settings = dataclasses.replace(task.settings, device=str(device), on_gpu=task.use_gpu)
            worker = make_worker(task.shards.open(group.rank, group.size), task.spec, settings, group)
            _obey(worker, talk)
    except PeerLostError as error:
        _tell_failure(talk, rank, error)
        _remove_script()
    except BaseException as error:
        _tell_failure(talk, rank, error)
    finally:
        alive.end()


def _obey(worker: Worker, talk: Folder) -> None:
    commands, replies = Mailbox(talk, TO_WORKERS), Mailbox(talk, TO_DRIVER)
    first = worker.group.rank == 0
    if first:
        replies.send(Message("ready", {"host": socket.gethostname(), "pid": os.getpid()}))
    while True:
        command = (commands.receive(_wait_on, _NOTHING_YET) if first else None) or Message("")
        commands.refuse_unreadable(_UNREADABLE_SECONDS)
        heard = Message.from_bytes(worker.group.share(command.to_bytes()))
        assert heard is not None
        if heard.word == END:
            return
        if heard.word:
            reply = answer(worker, heard)
            if first:
                replies.send(reply)


def _wait_on() -> None:
    """Whether the driver is still there is another thread's business."""


def answer(worker: Worker, command: Message) -> Message:
    """Do what ``command`` asks; the reply says where θ stands now, and is complete on rank 0."""
    started = time.perf_counter()
    if command.word == "contents":
        found = worker.contents(command.values["kind"], command.arrays["bins"])
        return Message("contents", {"work_seconds": time.perf_counter() - started}, found._asdict())
    word, values = "done", dict[str, Any]()
    try:
        if command.word == "pretrain":
            worker.pretrain(command.values["rate"])
        elif command.word == "load":
            worker.load(command.group("state"))
        elif command.word == "train":
            report = worker.train(Selection.from_dict(command.values["selection"]), command.values["rate"])
            values = {"pair_sum": report.pair_sum, "learned": report.learned}
    except DivergedError as error:
        word, values = "diverged", {"error": str(error)}
    arrays = dict[str, Any]()
    for name, scores in worker.statistics().items():
        parts = scores._asdict() if isinstance(scores, Histogram) else {"scores": scores}
        arrays |= {f"{part}.{name}": array for part, array in parts.items()}
    arrays |= {f"state.{name}": array for name, array in worker.state().items()}
    values |= {"penalty": worker.penalty(), "score_seconds": worker.score_seconds}
    values["work_seconds"] = time.perf_counter() - started
    return Message(word, values, arrays)


def _refuse_shared_device(group: Group, name: str) -> None:
    codes = group.counts(zlib.crc32(name.encode())).tolist()
    if codes.count(codes[group.rank]) > 1:
        raise DeviceError(
            f"rank {group.rank} shares GPU {name} with another rank. Give each task a GPU of its own: set "
            "spark.task.resource.gpu.amount to 1, and do not set CUDA_VISIBLE_DEVICES for all executors alike."
        )


class _Alive:
    """The file that says that a rank lives, and how much it has done."""

    def __init__(self, talk: Folder, name: str) -> None:
        self._talk, self._name = talk, name
        self._lock, self._told, self._over = threading.Lock(), -math.inf, False

    def tell(self, now: float) -> None:
        with self._lock, contextlib.suppress(OSError):
            if not self._over and now - self._told >= self._talk.polling.beat:
                self._told = now
                self._talk.write(self._name, str(liveness.count()).encode())

    def end(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._over = True
            self._talk.delete(self._name)


def _exit_when_abandoned(talk: Folder, alive: _Alive, parent: int, told: int) -> None:
    """End this process when told to, when its parent is gone, the launch is over, or the driver shows no life.

    Until then say now and then how far it has got.
    """
    beat, seen, looked, ended, signals = b"", time.monotonic(), 0.0, 0.0, list[int]()
    while True:
        now = time.monotonic()
        if now - looked >= talk.polling.watch:
            looked = now
            found = _heartbeat(talk, beat)
            ended = (ended or now) if found in (None, END.encode()) else 0.0
            if found != beat:
                beat, seen = found or b"", now
        over = ended and now - ended > _GRACE
        if signals or over or os.getppid() != parent or now - seen > _BEAT_TIMEOUT:
            try:
                _remove_script()
                alive.end()
            finally:
                os._exit(0)
        alive.tell(now)
        signals, _, _ = select.select([told], [], [], _WATCH)


def _heartbeat(talk: Folder, last: bytes) -> bytes | None:
    """What the driver's file says; nothing if the launch is over, and as before if the storage fails for a moment."""
    try:
        return talk.read(HEARTBEAT)
    except FileNotFoundError:
        # A mount that cannot replace a file at once may lack it for seconds, but not the folder, which the driver
        # removes at the end. A store has no folders, and replaces its files at once.
        return last if isinstance(talk, DiskFolder) and os.path.isdir(talk.path) else None
    except OSError:
        return last


def _remove_script() -> None:
    """TorchDistributor's script stays behind when Spark kills the task that should remove it.

    A user's script may be called train.py too: only one that loads a function from its own temporary folder is meant.
    """
    script = Path(getattr(sys.modules["__main__"], "__file__", ""))
    if script.name != "train.py" or script.parent.parent != Path(tempfile.gettempdir()):
        return
    with contextlib.suppress(OSError, ValueError):
        text = script.read_text()
        if f'open("{script.parent}/' in text:
            shutil.rmtree(script.parent, ignore_errors=True)


def _tell_failure(talk: Folder, rank: int, error: BaseException) -> None:
    lost = isinstance(error, PeerLostError)
    failure = {
        "kind": LOST if lost else type(error).__name__,
        "message": str(error),
        "rank": rank,
        "host": socket.gethostname(),
        "traceback": "".join(traceback.format_exception(error)),
    }
    try:
        talk.write(f"{FAILURE}{rank}", json.dumps(failure).encode())
    except FileNotFoundError:
        # Where the folder is gone nobody listens any more.
        return
    except OSError:
        # Spark shows it to the user, in the driver's output or in the executor's.
        print(f"rank {rank} on host {failure['host']}:\n{failure['traceback']}", file=sys.stderr, flush=True)
