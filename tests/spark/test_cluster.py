"""A session with executors of its own processes: the automatic choice, what is refused, faults and Ctrl-C there."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.processes import Driver, assert_clean, descendants, executors

pytestmark = pytest.mark.alone

LONG = {"stepsPerRound": 20_000, "pretrainSteps": 1}
# Rounds of a second or so, long enough to meet a worker in the middle of one.
SLOW = {"stepsPerRound": 150}


def test_two_executors_are_chosen_and_recover_and_clean_up(tmp_path: Path) -> None:
    staging = {"stagingDir": str(tmp_path)}
    steps = [
        {},
        # Each process has its own "/proc/self/cwd": there, but another folder for the driver and for the executors.
        {"stagingDir": "/proc/self/cwd"},
        {**staging, "numProcesses": 3},
        {**staging, "useGpu": True},
        {**staging, **LONG},
        {**staging, **SLOW},
        {**staging, **SLOW, "numProcesses": 2, "localMode": True},
    ]
    with Driver({"master": "local-cluster[2,1,1024]", "steps": steps}) as driver:
        missing, unshared, slots, gpu = (driver.result() for _ in range(4))

        driver.read_until("ready")
        time.sleep(2)
        interrupted = driver.interrupt()

        driver.read_until("round 1")
        time.sleep(0.4)
        os.kill(executors(descendants(driver.pid))[0], signal.SIGKILL)
        driver.read_until("warning workers were lost")
        recovered, local = driver.result(), driver.result()

    assert "StagingError: stagingDir is not set, and the session runs on a cluster" in missing["error"]
    assert "StagingError: stagingDir '/proc/self/cwd' is not shared with the executor on host" in unshared["error"]
    assert "PlacementError: numProcesses 3 needs as many task slots at once, and the session has 2" in slots["error"]
    assert "DeviceError: useGpu is True, but spark.task.resource.gpu.amount is not set" in gpu["error"]
    for refused in (missing, unshared, slots, gpu):
        assert refused["seconds"] < 20
        assert refused["launches"] == 0

    assert interrupted["interrupted"]
    assert interrupted["seconds"] < 10
    assert (recovered["launches"], local["launches"]) == (2, 1)
    assert recovered["digest"] == local["digest"]
    for result in (missing, slots, gpu, interrupted, recovered, local):
        assert_clean(result)


def test_dynamic_allocation_and_fractional_gpus_are_refused_at_once() -> None:
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.task.resource.gpu.amount": "0.5",
        "spark.executor.resource.gpu.amount": "1",
    }
    steps = [{"localMode": False}, {"localMode": False, "useGpu": True}]
    with Driver({"master": "local[2]", "conf": conf, "steps": steps}) as driver:
        dynamic, fractional = (driver.result() for _ in steps)
    assert "PlacementError: spark.dynamicAllocation.enabled is true" in dynamic["error"]
    assert "or train in the driver with localMode=True" in dynamic["error"]
    assert "DeviceError: useGpu is True, but spark.task.resource.gpu.amount is 0.5" in fractional["error"]
    for refused in (dynamic, fractional):
        assert refused["seconds"] < 20


def test_gpus_that_are_not_there_are_named_with_host_and_rank(tmp_path: Path) -> None:
    """Spark's discovery is told of two GPUs in a driver that has none."""
    discovery = tmp_path / "gpus.sh"
    discovery.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["0", "1"]}'\n""")
    discovery.chmod(0o755)
    conf = {
        "spark.driver.resource.gpu.amount": "2",
        "spark.driver.resource.gpu.discoveryScript": str(discovery),
    }
    steps = [{"numProcesses": 3, "useGpu": True}, {"numProcesses": 2, "useGpu": True}, {"useGpu": True}]
    with Driver({"master": "local[2]", "conf": conf, "steps": steps}) as driver:
        too_many, not_there, in_process = (driver.result() for _ in steps)
    host = socket.gethostname()
    assert f"Spark gave the driver on host {host} 2 GPUs" in too_many["error"]
    assert "leave numProcesses at 0" in too_many["error"]
    assert f"DeviceError: useGpu is True, but rank 0 on host {host} needs CUDA device 0" in not_there["error"]
    assert "set useGpu=False" in not_there["error"]
    assert (not_there["launches"], in_process["launches"]) == (1, 0)
    assert "needs CUDA device 0" in in_process["error"]
    for refused in (too_many, not_there, in_process):
        assert refused["seconds"] < 20
        assert_clean(refused)
