"""Clocks that are set while a fit runs: for the driver, Spark's Java and the ranks alike."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.processes import Driver, assert_clean, descendants, ranks

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

DAY = 86_400


def test_a_clock_that_is_set_forth_and_back_ends_no_wait_and_changes_no_bit(tmp_path: Path) -> None:
    library, offset = tmp_path / "clock.so", tmp_path / "offset"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, Path(__file__).with_name("clock.c"), "-ldl"], check=True)
    offset.write_bytes(bytes(8))
    environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}

    def set_clock(seconds: int) -> None:
        with offset.open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))
        shown = int(subprocess.check_output(["date", "+%s"], env=environment))
        assert shown - time.time() == pytest.approx(seconds, abs=60)

    params = {"stepsPerRound": 100, "rounds": 4, "numProcesses": 2, "maxRestarts": 0}
    asked = {"master": "local[2]", "steps": [params, params], "pause": 0.5}
    with Driver(asked, environment=environment) as driver:
        driver.read_until("ready")
        workers = ranks(descendants(driver.pid))
        assert len(workers) == 2
        for pid in workers.values():
            assert library.name in Path(f"/proc/{pid}/maps").read_text()
        set_clock(+30 * DAY)
        driver.read_until("round 2")
        set_clock(-30 * DAY)
        stepped, undisturbed = driver.result(), driver.result()
    assert stepped["digest"] == undisturbed["digest"]
    for result in (stepped, undisturbed):
        assert result["launches"] == 1
        assert_clean(result)
