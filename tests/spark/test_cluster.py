"""A session with executors of its own processes: the automatic choice, what is refused, faults and Ctrl-C there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.helpers.processes import Driver, assert_clean, descendants, executors, wait_until_at_work

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
    # Both executors are there before the first step.
    with Driver({"master": "local-cluster[2,1,1024]", "steps": steps, "slots_timeout": 1}) as driver:
        missing, unshared, slots, gpu = (driver.result() for _ in range(4))

        driver.read_until("asks train")
        wait_until_at_work(driver.pid)
        interrupted = driver.interrupt()

        driver.read_until("round 1")
        driver.read_until("asks train")
        wait_until_at_work(driver.pid)
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


@pytest.mark.alone
def test_dynamic_allocation_is_refused_at_once() -> None:
    conf = {"spark.dynamicAllocation.enabled": "true"}
    with Driver({"master": "local[2]", "conf": conf, "steps": [{"localMode": False}]}) as driver:
        dynamic = driver.result()
    assert "PlacementError: spark.dynamicAllocation.enabled is true" in dynamic["error"]
    assert "or train in the driver with localMode=True" in dynamic["error"]
    assert dynamic["seconds"] < 20
