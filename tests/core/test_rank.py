"""When a rank ends by itself, and what it removes then; each rank here is a process that only keeps watch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.ml.torch.distributor import TorchDistributor

from bspauc_spark.cluster.rank import END, HEARTBEAT, _remove_script
from bspauc_spark.rows.storage import DiskFolder
from tests.helpers.processes import wait_for

_WATCH = """
import os, sys
from pathlib import Path
from bspauc_spark.cluster import rank
from bspauc_spark.rows.storage import DiskFolder

told, _ = os.pipe()
talk = DiskFolder(Path(sys.argv[1]))
rank._exit_when_abandoned(talk, rank._Alive(talk, "alive-0"), os.getppid(), told)
"""


@pytest.fixture
def talk(tmp_path: Path) -> DiskFolder:
    """The folder of a launch whose driver has said that it lives."""
    place = DiskFolder(tmp_path / "launch")
    place.create()
    place.write(HEARTBEAT, b"1")
    return place


@pytest.fixture
def watching(talk: DiskFolder) -> Iterator[subprocess.Popen[bytes]]:
    """A rank that has shown life."""
    with subprocess.Popen([sys.executable, "-c", _WATCH, talk.location]) as process:
        try:
            wait_for(lambda: "alive-0" in talk.names(), 60, "a sign of life")
            yield process
        finally:
            process.kill()


def _ended_after(process: subprocess.Popen[bytes]) -> float:
    start = time.monotonic()
    assert process.wait(20) == 0
    return time.monotonic() - start


def test_a_heartbeat_that_is_missing_for_seconds_ends_no_rank_while_the_folder_is_there(
    talk: DiskFolder, watching: subprocess.Popen[bytes]
) -> None:
    """As where a file cannot be replaced at once, and the mount is slow."""
    talk.delete(HEARTBEAT)
    time.sleep(5)
    assert watching.poll() is None
    talk.write(HEARTBEAT, b"2")
    time.sleep(1)
    assert watching.poll() is None
    # It hears what is said afterwards.
    talk.write(HEARTBEAT, END.encode())
    assert _ended_after(watching) < 6


def test_ranks_end_soon_after_their_folder_is_removed(talk: DiskFolder, watching: subprocess.Popen[bytes]) -> None:
    talk.remove()
    assert _ended_after(watching) < 6


def test_ranks_end_soon_after_the_driver_says_so(talk: DiskFolder, watching: subprocess.Popen[bytes]) -> None:
    talk.write(HEARTBEAT, END.encode())
    assert _ended_after(watching) < 6
    assert "alive-0" not in talk.names()


def _run(script: Path, temporary: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    subprocess.run([sys.executable, str(script)], env=environment, capture_output=True)


def test_the_script_of_torch_distributor_is_removed_with_its_folder(tmp_path: Path) -> None:
    with TorchDistributor._setup_files(_remove_script) as (script, _):
        folder = shutil.copytree(Path(script).parent, tmp_path / "copied")
    # The script names the place of the function.
    text = (folder / "train.py").read_text().replace(str(Path(script).parent), str(folder))
    (folder / "train.py").write_text(text)
    _run(folder / "train.py", tmp_path)
    assert not folder.exists()


def test_a_script_of_a_user_stays_whatever_it_is_called_and_wherever_it_lies(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("from bspauc_spark.cluster.rank import _remove_script\n_remove_script()\n")
    (folder / "data.pickle").write_bytes(b"not to be lost")
    for temporary in (tmp_path, tmp_path / "elsewhere"):
        temporary.mkdir(exist_ok=True)
        _run(folder / "train.py", temporary)
        assert sorted(os.listdir(folder)) == ["data.pickle", "train.py"]
