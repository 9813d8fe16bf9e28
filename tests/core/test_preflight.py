"""What is asked of the storage before a fit, on a full disk and by a user without rights."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bspauc_spark.cluster.preflight import Placement, check_checkpoint_dir, check_staging
from bspauc_spark.errors import CheckpointError, StagingError
from bspauc_spark.loop.checkpoint import Checkpoints
from bspauc_spark.rows.storage import DiskFolder

NO_SESSION: Any = None


def test_a_full_disk_is_refused_and_nothing_is_left_on_it(mounted: Callable[[str], Path]) -> None:
    disk = mounted("size=8k")
    (disk / "full").write_bytes(bytes(8192))
    with pytest.raises(StagingError, match=r"cannot be written by the driver: No space left on device\. Set it to"):
        check_staging(NO_SESSION, str(disk), Placement())
    assert [path.name for path in disk.iterdir()] == ["full"]


@contextlib.contextmanager
def forbidden(mode: int) -> Iterator[Path]:
    """A folder of which this user, whom root becomes for a moment, has no more than these rights."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as ending:
        os.chmod(place, mode)
        ending.callback(os.chmod, place, 0o700)
        if os.geteuid() == 0:
            os.seteuid(65534)
            ending.callback(os.seteuid, 0)
        yield Path(place)


def test_a_user_who_may_not_write_or_read_is_told_so() -> None:
    with forbidden(0o555) as place:
        with pytest.raises(StagingError, match=r"cannot be written by the driver: Permission denied\. Set it to"):
            check_staging(NO_SESSION, str(place), Placement())
        for saved in (place, place / "new"):
            with pytest.raises(CheckpointError, match=rf"checkpointDir '{saved}' cannot be written: Permission denied"):
                check_checkpoint_dir(str(saved))
    with forbidden(0) as place, pytest.raises(CheckpointError, match=r"cannot be read: Permission denied"):
        Checkpoints(DiskFolder(place), {}).load()
