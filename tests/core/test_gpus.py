"""What is said of workers that lack a GPU of their own: who, where, and the setting to change."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bspauc_spark.cluster import gpus
from bspauc_spark.cluster.gpus import Report, check_amount, check_reports, driver_devices
from bspauc_spark.errors import DeviceError


def reports(**changes: Any) -> list[Report]:
    """Two workers with a GPU each on one host, the second one as changed."""
    first = Report(0, "alpha", ["0"], count=1, torch="2.9")
    return [first, dataclasses.replace(first, **{"rank": 1, "addresses": ["1"], **changes})]


def refusal(**changes: Any) -> str:
    with pytest.raises(DeviceError) as caught:
        check_reports(reports(**changes))
    return str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{}, {"addresses": ["0"], "host": "beta"}, {"visible": "1"}, {"visible": "GPU-8f2", "addresses": ["0"]}],
    ids=["own", "other host", "as given", "named by its environment"],
)
def test_a_gpu_for_each_is_accepted(changes: dict[str, Any]) -> None:
    check_reports(reports(**changes))


@pytest.mark.parametrize(
    ("changes", "what", "setting"),
    [
        ({"addresses": []}, "gave rank 1 on host alpha no GPU", "spark.executor.resource.gpu.discoveryScript"),
        (
            {"addresses": ["GPU-8f2"]},
            "the GPU address 'GPU-8f2' that Spark gave rank 1 on host alpha is not a whole number",
            "spark.executor.resource.gpu.discoveryScript",
        ),
        ({"addresses": ["01"]}, "rank 1 on host alpha is not a whole number", "gpu.discoveryScript"),
        (
            {"visible": "0,1"},
            "rank 1 on host alpha finds CUDA_VISIBLE_DEVICES='0,1' in its environment",
            "remove spark.executorEnv.CUDA_VISIBLE_DEVICES",
        ),
        (
            {"visible": ""},
            "rank 1 on host alpha finds CUDA_VISIBLE_DEVICES='' in its environment",
            "remove spark.executorEnv.CUDA_VISIBLE_DEVICES",
        ),
        (
            {"visible": "0"},
            "rank 0 and rank 1 on host alpha share GPU 0",
            "remove spark.executorEnv.CUDA_VISIBLE_DEVICES",
        ),
        (
            {"addresses": ["0"]},
            "rank 0 and rank 1 on host alpha share GPU 0",
            "spark.worker.resource.gpu.discoveryScript",
        ),
        (
            {"count": 0},
            "rank 1 on host alpha needs CUDA device 0 and torch 2.9 finds 0 there (CUDA_VISIBLE_DEVICES='1')",
            "Check the driver of the GPU there (nvidia-smi), or set useGpu=False",
        ),
        (
            {"count": 0, "built": False},
            "rank 1 on host alpha needs CUDA device 0",
            "built without CUDA: install one built with it for that Python (PYSPARK_PYTHON), or set useGpu=False",
        ),
        (
            {"count": 0, "problem": "ModuleNotFoundError: No module named 'torch'"},
            "rank 1 on host alpha cannot look for its GPU: ModuleNotFoundError: No module named 'torch'",
            "Install torch for the Python that PYSPARK_PYTHON names there",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("rank") else "",
)
def test_a_worker_without_a_gpu_of_its_own_is_named_with_host_and_setting(
    changes: dict[str, Any], what: str, setting: str
) -> None:
    message = refusal(**changes)
    assert message.startswith("useGpu is True, but ")
    assert what in message
    assert setting in message


@pytest.mark.parametrize("amount", ["", "0.5", "1.0", "2", "0"], ids=str)
def test_a_task_takes_one_whole_gpu(amount: str) -> None:
    with pytest.raises(DeviceError, match=f"amount is {amount or 'not set'} in the session of host") as caught:
        check_amount(amount, local_master=False)
    assert "Every rank is a task" in str(caught.value)
    assert "start the session with spark.task.resource.gpu.amount=1" in str(caught.value)
    check_amount("1", local_master=False)


@pytest.mark.parametrize("amount", ["", "1"], ids=str)
def test_no_task_of_a_local_master_takes_a_gpu(amount: str) -> None:
    with pytest.raises(DeviceError, match=r"its master is local.* set localMode=True"):
        check_amount(amount, local_master=True)


def test_addresses_of_the_driver_count_within_its_visible_devices() -> None:
    assert driver_devices("alpha", ["0", "2"], None) == ["0", "2"]
    assert driver_devices("alpha", ["0", "2"], "5,6,7") == ["5", "7"]
    with pytest.raises(DeviceError, match=r"GPU 2, which Spark gave rank 1 on host alpha, .*CUDA_VISIBLE_DEVICES='5'"):
        driver_devices("alpha", ["0", "2"], "5")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_new_process_looks_and_tells_why_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.found_with("0") == {"count": 0, "torch": torch.__version__, "built": bool(torch.version.cuda)}
    (tmp_path / "torch.py").write_text("raise ImportError('libcuda.so is broken')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert gpus.found_with("0") == {"problem": "ImportError: libcuda.so is broken"}
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
