"""GPUs for the workers of a fit: what Spark gives each of them, and whether torch can use it. Asked before staging."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from bspauc_spark.errors import DeviceError, PlacementError
from bspauc_spark.spark.session import is_connect

if TYPE_CHECKING:
    import pyarrow as pa

AMOUNT = "spark.task.resource.gpu.amount"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# What an executor lacks that runs no task with a GPU.
WANTED = (
    " with a GPU, which takes spark.executor.resource.gpu.amount, and on a standalone cluster "
    "spark.worker.resource.gpu.amount and spark.worker.resource.gpu.discoveryScript for each of its workers"
)

_LOOK = "import json; from bspauc_spark.theta.device import Found; print(json.dumps(vars(Found.here())))"
_LOOK_SECONDS = 60
# Spark Connect does not tell the slots, and the server waits ten minutes for those of a barrier stage.
_REMOTE_SECONDS = 120.0


@dataclass(frozen=True)
class Report:
    """What one worker would have: GPUs by Spark, those that its environment names already, and what torch finds."""

    rank: int
    host: str
    addresses: Sequence[str]
    visible: str | None = None
    count: int = 0
    torch: str = ""
    built: bool = True
    problem: str = ""

    @property
    def devices(self) -> list[str]:
        """What CUDA_VISIBLE_DEVICES will name: TorchDistributor lets one that it finds stand."""
        return list(self.addresses) if self.visible is None else self.visible.split(",")


def check_amount(amount: str, local_master: bool) -> None:
    """Refuse a ``spark.task.resource.gpu.amount`` with which no task would have one whole GPU."""
    found = f"{AMOUNT} is {amount}" if amount else f"{AMOUNT} is not set"
    session = f"in the session of host {socket.gethostname()}"
    if local_master:
        # With it, no task at all would run there.
        raise DeviceError(
            f"useGpu is True and localMode False {session}, but its master is local, and Spark gives no task there a "
            f"GPU. Leave {AMOUNT} unset and set localMode=True: without numProcesses rank 0 takes the first GPU, with "
            "it the ranks take those of spark.driver.resource.gpu.amount."
        )
    # TorchDistributor reads it as a whole number, and fails on "1.0".
    if amount != "1":
        raise DeviceError(
            f"useGpu is True, but {found} {session}. Every rank is a task and takes one whole GPU: start the session "
            f"with {AMOUNT}=1 and spark.executor.resource.gpu.amount, or set useGpu=False."
        )


def check_driver(spark: SparkSession, processes: int) -> None:
    """Refuse processes beside the driver that would lack a GPU."""
    host, visible = socket.gethostname(), os.environ.get(VISIBLE)
    addresses = _driver_addresses(spark, processes)
    _check_numbers(0, host, addresses)
    # The GPUs of a remote server are not the client's, which takes those it has.
    if not is_connect(spark):
        visible, processes = ",".join(driver_devices(host, addresses, visible)), len(addresses)
    found = found_with(visible)
    # The first ranks have theirs.
    report = Report(found.get("count", 0), host, addresses, visible, **found)
    if report.count < processes:
        raise DeviceError(_not_seen(report, report.count))


def driver_devices(host: str, addresses: Sequence[str], visible: str | None) -> Sequence[str]:
    """The driver's GPUs by address, which counts within a CUDA_VISIBLE_DEVICES that is set."""
    if visible is None:
        return addresses
    named = visible.split(",")
    for rank, address in enumerate(addresses):
        if int(address) >= len(named):
            raise DeviceError(
                f"useGpu is True, but GPU {address}, which Spark gave rank {rank} on host {host}, is not among the "
                f"driver's {VISIBLE}={visible!r}. Unset it, or let the script that "
                "spark.driver.resource.gpu.discoveryScript names count within it."
            )
    return [named[int(address)] for address in addresses]


def check_tasks(spark: SparkSession, processes: int) -> None:
    """Refuse workers on executors that would lack a GPU of their own, by a job of as many tasks at once."""
    frame = spark.range(0, processes, 1, processes).mapInArrow(look, "report string", barrier=True)
    reports = (Report(**json.loads(text)) for (text,) in _collect(spark, frame, processes))
    check_reports(sorted(reports, key=lambda report: report.rank))


def check_reports(reports: Sequence[Report]) -> None:
    """Refuse what the workers-to-be found."""
    for report in reports:
        _check_given(report)
    taken: dict[tuple[str, str], int] = {}
    for report in reports:
        first = taken.setdefault((report.host, report.devices[0]), report.rank)
        if first != report.rank:
            raise DeviceError(_shared(report, first))
    for report in reports:
        if not report.count:
            raise DeviceError(_not_seen(report, 0))


def _check_given(report: Report) -> None:
    who = f"rank {report.rank} on host {report.host}"
    if not report.addresses:
        raise DeviceError(
            f"useGpu is True, but Spark gave {who} no GPU. Set spark.executor.resource.gpu.amount, and "
            "spark.executor.resource.gpu.discoveryScript to a script that prints the addresses of its GPUs."
        )
    _check_numbers(report.rank, report.host, report.addresses)
    if len(report.devices) != 1 or not report.devices[0]:
        raise DeviceError(
            f"useGpu is True, but {who} finds {VISIBLE}={report.visible!r} in its environment, which TorchDistributor "
            f"takes instead of the one GPU that Spark gave it ({report.addresses[0]}). {_UNSET}"
        )


def _check_numbers(rank: int, host: str, addresses: Sequence[str]) -> None:
    odd = [address for address in addresses if not re.fullmatch("0|[1-9][0-9]*", address)]
    if odd:
        raise DeviceError(
            f"useGpu is True, but the GPU address {odd[0]!r} that Spark gave rank {rank} on host {host} is not a whole "
            "number, as TorchDistributor needs it. Let the script that spark.executor.resource.gpu.discoveryScript "
            "(on the driver spark.driver.resource.gpu.discoveryScript) names print indices: 0, 1, …"
        )


_UNSET = (
    f"Do not set {VISIBLE} for executors: remove spark.executorEnv.{VISIBLE}, and an export in spark-env.sh. Another "
    "program's TorchDistributor may have left it in a Python worker: spark.python.worker.reuse=false prevents that."
)


def _shared(report: Report, first: int) -> str:
    advice = _UNSET
    if report.visible is None:
        advice = (
            "Let the scripts that spark.worker.resource.gpu.discoveryScript and "
            "spark.executor.resource.gpu.discoveryScript name print other addresses for each worker of a host."
        )
    return (
        f"useGpu is True, but rank {first} and rank {report.rank} on host {report.host} share GPU {report.devices[0]}; "
        f"each needs one of its own. {advice}"
    )


def _not_seen(report: Report, index: int) -> str:
    if report.problem:
        return (
            f"useGpu is True, but rank {report.rank} on host {report.host} cannot look for its GPU: {report.problem}. "
            "Install torch for the Python that PYSPARK_PYTHON names there, or set useGpu=False."
        )
    # Tasks import this module too, and need no torch.
    from bspauc_spark.theta.device import Found, no_device

    found = Found(report.count, report.torch, report.built)
    return no_device(report.rank, report.host, index, ",".join(report.devices), found)


def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the small job asks of each task."""
    import pyarrow as pa
    from pyspark import BarrierTaskContext

    for _ in batches:
        pass
    context = BarrierTaskContext.get()
    given = _addresses(context.resources())
    report = Report(context.partitionId(), socket.gethostname(), given, os.environ.get(VISIBLE))
    report = replace(report, **found_with(",".join(report.devices)))
    yield pa.RecordBatch.from_pydict({"report": [json.dumps(asdict(report))]})


def found_with(visible: str | None) -> dict[str, Any]:
    """What a new process with this CUDA_VISIBLE_DEVICES finds: this one may have looked before, and CUDA remembers."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if visible is not None:
        environment[VISIBLE] = visible
    command = [sys.executable, "-c", _LOOK]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LOOK_SECONDS)
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"problem": f"torch did not answer within {_LOOK_SECONDS} s"}
    except ValueError:
        return {"problem": (done.stderr.strip().splitlines() or ["no answer"])[-1]}
    return found


def _addresses(resources: Mapping[str, Any]) -> list[str]:
    return list(resources["gpu"].addresses) if "gpu" in resources else []


def _driver_addresses(spark: SparkSession, processes: int) -> list[str]:
    """GPUs that Spark gave the driver, at least one for each process."""
    try:
        addresses = _addresses(spark.sparkContext.resources)
    except Exception:
        # Spark Connect has no context; TorchDistributor asks its client too.
        addresses = _addresses(spark._client._resources())  # type: ignore[attr-defined]
    if len(addresses) >= processes:
        return addresses
    raise DeviceError(
        f"useGpu is True and numProcesses {processes}, but Spark gave the driver on host {socket.gethostname()} "
        f"{len(addresses)} GPUs, none for rank {len(addresses)}. Start the session with "
        f"spark.driver.resource.gpu.amount={processes} and spark.driver.resource.gpu.discoveryScript, or leave "
        "numProcesses at 0 to train in this process on the first GPU."
    )


def _collect(spark: SparkSession, frame: DataFrame, processes: int) -> list[Any]:
    """The rows; on Spark Connect within a limit."""
    if not is_connect(spark):
        return frame.collect()
    rows, problems, tag = list[Any](), list[Exception](), f"bspauc-{uuid.uuid4().hex}"

    def run() -> None:
        try:
            spark.addTag(tag)
            rows.extend(frame.collect())
        except Exception as error:
            problems.append(error)

    thread = InheritableThread(run, session=spark, name="bspauc-gpus", daemon=True)
    thread.start()
    thread.join(_REMOTE_SECONDS)
    if thread.is_alive():
        spark.interruptTag(tag)
        raise PlacementError(
            f"{processes} workers with a GPU each did not answer within {_REMOTE_SECONDS:.0f} s: the session has fewer "
            "task slots, or others hold them. Lower numProcesses, add executors, or wait."
        )
    for problem in problems:
        raise problem
    return rows
