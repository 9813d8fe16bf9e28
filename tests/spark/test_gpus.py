"""GPUs up to the CUDA calls: Spark's discovery is told of some that are not there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.helpers.processes import Driver, assert_clean

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
HOST = socket.gethostname()


def discovery(folder: Path, *printed: str) -> str:
    """A script that prints these addresses, one list at each call; the last one again and again."""
    script = folder / "gpus.sh"
    lists = "\n".join(f"mkdir {folder}/{i} 2>/dev/null && echo '{text}' && exit" for i, text in enumerate(printed))
    script.write_text(f"#!/bin/sh\n{lists}\necho '{printed[-1]}'\n")
    script.chmod(0o755)
    return str(script)


def addresses(*named: str) -> str:
    return f'{{"name": "gpu", "addresses": [{", ".join(chr(34) + name + chr(34) for name in named)}]}}'


def cluster(script: str, gpus: int) -> dict[str, str]:
    return {
        "spark.worker.resource.gpu.amount": str(gpus),
        "spark.worker.resource.gpu.discoveryScript": script,
        "spark.executor.resource.gpu.amount": str(gpus),
        "spark.task.resource.gpu.amount": "1",
    }


def test_gpus_of_executors_that_cannot_be_used_are_refused_before_staging(tmp_path: Path) -> None:
    """One executor with two GPUs, both hidden from it but the first."""
    conf = cluster(discovery(tmp_path, addresses("0", "1")), 2) | {"spark.executorEnv.CUDA_VISIBLE_DEVICES": "0"}
    staging = {"stagingDir": str(tmp_path / "staging"), "useGpu": True}
    # The folder is not there: what is refused now was refused before anything was staged.
    steps = [staging, {**staging, "numProcesses": 1}]
    with Driver({"master": "local-cluster[1,2,1024]", "conf": conf, "steps": steps}) as driver:
        shared, without_cuda = (driver.result() for _ in steps)
    # Without numProcesses one for each GPU.
    assert f"DeviceError: useGpu is True, but rank 0 and rank 1 on host {HOST} share GPU 0" in shared["error"]
    assert "remove spark.executorEnv.CUDA_VISIBLE_DEVICES" in shared["error"]
    assert f"DeviceError: useGpu is True, but rank 0 on host {HOST} needs CUDA device 0" in without_cuda["error"]
    assert "CUDA_VISIBLE_DEVICES='0'" in without_cuda["error"]
    assert "set useGpu=False" in without_cuda["error"]
    for refused in (shared, without_cuda):
        assert refused["seconds"] < 20
        assert refused["launches"] == 0
        assert_clean(refused)


def test_a_fit_on_gpus_takes_one_per_rank_and_gives_the_model_of_cpus(tmp_path: Path) -> None:
    """Two executors with a GPU each, the CPU in place of CUDA; on rank 1 the rows do not fit."""
    calls = tmp_path / "calls"
    conf = cluster(discovery(tmp_path, addresses("4"), addresses("7")), 1) | {
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "spark" / "stand_in"), str(ROOT)]),
        "spark.executorEnv.CUDA_CALLS": str(calls),
    }
    staging = tmp_path / "staging"
    staging.mkdir()
    shared = {"stagingDir": str(staging)}
    steps = [{**shared, "useGpu": True}, {**shared, "numProcesses": 2, "localMode": True}]
    with Driver({"master": "local-cluster[2,1,1024]", "conf": conf, "steps": steps}) as driver:
        on_gpus, on_cpus = (driver.result() for _ in steps)
    assert "error" not in on_gpus, on_gpus
    lines = [line.split(" ", 1) for line in calls.read_text().splitlines()]
    made = {rank: {call for other, call in lines if other == rank} for rank, _ in lines}
    # Which of the executors runs which rank is Spark's choice.
    first, second = ("4", "7") if "take 4" in made["0"] else ("7", "4")
    assert made == {
        "0": {f"device 0 {first}", f"take {first}"},
        "1": {f"device 0 {second}", f"take {second}", f"pin {second}"},
    }
    assert on_gpus["digest"] == on_cpus["digest"]


def test_gpus_of_the_driver_that_are_not_there_are_refused_before_staging(tmp_path: Path) -> None:
    conf = {
        "spark.driver.resource.gpu.amount": "2",
        "spark.driver.resource.gpu.discoveryScript": discovery(tmp_path, addresses("0", "1")),
    }
    gpu = {"useGpu": True}
    steps = [{**gpu, "localMode": False}, {**gpu, "numProcesses": 3}, {**gpu, "numProcesses": 2}, gpu]
    with Driver({"master": "local[2]", "conf": conf, "steps": steps}) as driver:
        in_tasks, too_many, *not_there = (driver.result() for _ in steps)
    assert f"session of host {HOST}, but its master is local, and Spark gives no task there a GPU" in in_tasks["error"]
    assert f"Spark gave the driver on host {HOST} 2 GPUs, none for rank 2" in too_many["error"]
    assert "spark.driver.resource.gpu.amount=3" in too_many["error"]
    for refused in not_there:
        assert f"DeviceError: useGpu is True, but rank 0 on host {HOST} needs CUDA device 0" in refused["error"]
        assert "set useGpu=False" in refused["error"]
    for refused in (in_tasks, too_many, *not_there):
        assert refused["launches"] == 0
        assert refused["seconds"] < 20
        assert_clean(refused)
