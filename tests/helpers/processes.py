"""Looking at processes: the ranks below a driver, who is still alive, and drivers to be killed or interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

# Short-lived JVMs on a few cores: compiling for speed would cost more than it gains.
# Room for what is compiled: with the default of this mode, 48 MB, a session of many tests soon interprets instead.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"


def parents() -> dict[int, int]:
    """Parent of every process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z":
            found[int(entry.name)] = int(parent)
    return found


def descendants(root: int) -> set[int]:
    tree = parents()
    found, new = set[int](), {root}
    while new:
        new = {pid for pid, parent in tree.items() if parent in new} - found
        found |= new
    return found


def executors(below: set[int]) -> list[int]:
    """Spark's executors among these processes."""
    return [pid for pid in below if b"CoarseGrainedExecutorBackend" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def ranks(below: set[int]) -> dict[int, int]:
    """TorchDistributor's rank processes among these processes, rank → pid."""
    found = {}
    for pid in below:
        try:
            command = _command(pid).split(b"\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"-m" not in command and any(part.endswith(b"train.py") for part in command):
            values = dict(part.split(b"=", 1) for part in environment if b"=" in part)
            if b"TORCHELASTIC_RUN_ID" in values:
                found[int(values[b"RANK"])] = pid
    return found


def wait_until_at_work(*below: int) -> None:
    """Until the ranks below these processes compute: waiting for a command takes hardly any time of a processor."""

    def used() -> float:
        found = {pid for root in below for pid in ranks(descendants(root)).values()}
        return sum(map(_processor_seconds, found))

    before = used()
    wait_for(lambda: used() > before + 0.05, 60, "ranks to be at work")


def _processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def launchers(below: set[int]) -> set[int]:
    """Processes of TorchDistributor: its wrappers, torchrun and the ranks."""
    marks = (b"torch_run_process_wrapper", b"torch.distributed.run", b"train.py")
    return {pid for pid in below if any(mark in _command(pid) for mark in marks)}


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for: {what}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return parents().get(pid) is not None


def _classic(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what makes every session of a process one of Spark Connect."""
    remote = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    return {name: value for name, value in environment.items() if name not in remote}


class Driver:
    """The script ``driver.py``, or another, in a process of its own; killed at the end if it still runs."""

    def __init__(
        self,
        asked: dict[str, Any],
        command: Sequence[str] = (sys.executable, "-m", "tests.helpers.driver"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        # Temporary files go to a folder of its own: other sessions on the machine may be at work.
        self._temporary = tempfile.TemporaryDirectory()
        # In a session of its own, as a notebook's kernel is: a signal goes to the driver alone.
        self._process = subprocess.Popen(
            [*command, json.dumps(asked)],
            env={**_classic(os.environ if environment is None else environment), "TMPDIR": self._temporary.name},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._temporary.cleanup()

    def read_until(self, wanted: str) -> str:
        """The next line that starts with ``wanted``."""
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line.strip())
            if lines[-1].startswith(wanted):
                return lines[-1]
        raise AssertionError(f"the driver ended before {wanted!r}: {lines}")

    def result(self) -> dict[str, Any]:
        """What the next step of the script gave."""
        found: dict[str, Any] = json.loads(self.read_until("{"))
        return found

    def interrupt(self, terminal: bool = False) -> dict[str, Any]:
        """Ctrl-C; what the interrupted step gave, with the seconds it took to come back.

        A notebook signals the driver alone, a terminal every process that the driver started.
        """
        started = time.monotonic()
        if terminal:
            os.killpg(self.pid, signal.SIGINT)
        else:
            self._process.send_signal(signal.SIGINT)
        return {**self.result(), "seconds": time.monotonic() - started}


def assert_clean(result: dict[str, Any]) -> None:
    """A step of the driver left nothing behind."""
    found = (result["processes"], result["threads"], result["jobs"], result["staging"], result["scripts"])
    assert found == (0, [], 0, [], 0), result
