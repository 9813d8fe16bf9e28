"""Messages between driver and rank 0: what is sent arrives as it was, and nothing else is taken for it."""

from __future__ import annotations

import errno
import io
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from bspauc_spark.cluster import rank
from bspauc_spark.cluster.launch import Launch, WorkersLostError
from bspauc_spark.cluster.mailbox import Mailbox, Message
from bspauc_spark.errors import StagingError
from bspauc_spark.rows.storage import DiskFolder
from bspauc_spark.theta.group import Alone
from bspauc_spark.theta.worker import Worker


def nobody_left() -> None:
    raise ConnectionError


def example() -> Message:
    arrays = {
        "state.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "state.step": np.array(7),
        "scores": np.array([np.nextafter(0, 1), -0.0, 1e30]),
        "empty": np.empty((0, 4), np.int32),
    }
    return Message("train", {"rate": 0.1, "selection": {"lam": 1 / 3, "converged": True}}, arrays)


def assert_same(found: Message | None, wanted: Message) -> None:
    assert found is not None
    assert (found.word, found.values) == (wanted.word, wanted.values)
    assert list(found.arrays) == list(wanted.arrays)
    for name, array in wanted.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == array.shape
        assert found.arrays[name].tobytes() == array.tobytes()


def test_words_values_and_arrays_arrive_bit_for_bit(tmp_path: Path) -> None:
    Mailbox(DiskFolder(tmp_path), "driver").send(example())
    assert_same(Mailbox(DiskFolder(tmp_path), "driver").receive(nobody_left), example())


def test_arrays_are_grouped_by_the_first_part_of_their_name() -> None:
    assert set(example().group("state")) == {"weight", "step"}


def test_messages_come_in_order_and_are_removed_when_read(tmp_path: Path) -> None:
    sender, reader = Mailbox(DiskFolder(tmp_path), "worker"), Mailbox(DiskFolder(tmp_path), "worker")
    for number in range(3):
        sender.send(Message(str(number)))
    words = [message.word for _ in range(3) if (message := reader.receive(nobody_left))]
    assert words == ["0", "1", "2"]
    assert list(tmp_path.iterdir()) == []


def test_objects_are_never_pickled() -> None:
    with pytest.raises(TypeError, match="numbers, not object"):
        Message("x", {}, {"bad": np.array([object()], dtype=object)}).to_bytes()


class Failing(DiskFolder):
    """A folder whose writes, or looks into a file, fail for a while."""

    def __init__(self, path: Path, error: OSError, writes: float = 0, reads: float = 0) -> None:
        super().__init__(path)
        self.error, self.writes, self.reads = error, writes, reads
        self.tries = self.looks = 0

    def write(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        self.tries += 1
        if self.tries <= self.writes:
            raise self.error
        super().write(name, data)

    def open(self, name: str) -> io.BufferedIOBase:
        file = super().open(name)
        self.looks += 1
        if self.looks <= self.reads:
            file.close()
            raise self.error
        return file


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), OSError("AWS Error SLOW_DOWN: 503")])
def test_a_message_whose_write_fails_for_a_moment_arrives_once(tmp_path: Path, error: OSError) -> None:
    folder, looks = Failing(tmp_path, error, writes=2), list[int]()
    sender, reader = Mailbox(folder, "driver"), Mailbox(DiskFolder(tmp_path), "driver")
    sender.send(example(), lambda: looks.append(folder.tries))
    sender.send(Message("next"))
    assert looks == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["driver-000001", "driver-000002"]
    assert_same(reader.receive(nobody_left), example())
    assert_same(reader.receive(nobody_left), Message("next"))


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, os.strerror(number)) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)),
        FileNotFoundError("an object store's word for a bucket that is gone"),
    ],
)
def test_a_write_that_cannot_succeed_is_an_error_at_once(tmp_path: Path, error: OSError) -> None:
    folder = Failing(tmp_path, error, writes=math.inf)
    with pytest.raises(type(error)) as caught:
        Mailbox(folder, "driver").send(example())
    assert caught.value is error
    assert folder.tries == 1


def test_a_write_that_fails_for_long_is_an_error(tmp_path: Path) -> None:
    folder = Failing(tmp_path, OSError(errno.EIO, "Input/output error"), writes=math.inf)
    started = time.monotonic()
    with pytest.raises(OSError, match="Input/output error"):
        Mailbox(folder, "driver").send(example(), patience=0.3)
    assert 0.3 <= time.monotonic() - started < 2
    assert folder.tries > 3


def test_a_writer_gives_up_when_nobody_is_left_to_read(tmp_path: Path) -> None:
    folder = Failing(tmp_path, OSError(errno.EIO, "Input/output error"), writes=math.inf)
    with pytest.raises(ConnectionError):
        Mailbox(folder, "driver").send(example(), nobody_left)
    assert folder.tries == 1


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_why_a_message_cannot_be_read_is_known_until_it_can(tmp_path: Path) -> None:
    reader = Mailbox(Failing(tmp_path, FULL, reads=3), "driver")
    assert reader.receive(lambda: None, timeout=0.01) is None
    assert reader.problem is None  # Not there yet is none.
    Mailbox(DiskFolder(tmp_path), "driver").send(example())
    problems: list[OSError | None] = []
    assert_same(reader.receive(lambda: problems.append(reader.problem)), example())
    assert problems == [FULL] * 3
    assert reader.problem is None


def test_a_problem_that_has_passed_is_no_reason_why_nothing_comes(tmp_path: Path) -> None:
    Mailbox(DiskFolder(tmp_path), "driver").send(example())
    reader = Mailbox(Failing(tmp_path, FULL, reads=1), "driver")
    with pytest.raises(ConnectionError):
        reader.receive(nobody_left)
    assert reader.problem is FULL
    (tmp_path / "driver-000001").unlink()
    with pytest.raises(ConnectionError):
        reader.receive(nobody_left)
    assert reader.problem is None


def rank_0(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """All that a rank has to be in order to wait for commands, in a hurry."""
    monkeypatch.setattr(rank, "_NOTHING_YET", 0.05)
    monkeypatch.setattr(rank, "_UNREADABLE_SECONDS", 0.5)
    return cast(Worker, SimpleNamespace(group=Alone()))


def test_a_rank_that_cannot_read_its_command_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Mailbox(DiskFolder(tmp_path), rank.TO_WORKERS).send(Message(rank.END))
    started = time.monotonic()
    with pytest.raises(StagingError, match=r"cannot be read on host .*: No space left on device\. .*TMPDIR"):
        rank._obey(rank_0(monkeypatch), Failing(tmp_path, FULL, reads=math.inf))
    assert 0.5 <= time.monotonic() - started < 5


def test_a_rank_waits_on_where_storage_refuses_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As S3 does for those who may read but not list."""
    folder, refused = DiskFolder(tmp_path), threading.Event()

    def refuse(name: str) -> io.BufferedIOBase:
        try:
            return DiskFolder.open(folder, name)
        except FileNotFoundError:
            refused.set()
            raise PermissionError(errno.EACCES, "Access Denied") from None

    def end_late() -> None:
        assert refused.wait(5)
        time.sleep(1.0)
        Mailbox(DiskFolder(tmp_path), rank.TO_WORKERS).send(Message(rank.END))

    monkeypatch.setattr(folder, "open", refuse)
    monkeypatch.setattr(folder, "names", lambda: refuse("the listing"))
    thread = threading.Thread(target=end_late)
    thread.start()
    rank._obey(rank_0(monkeypatch), folder)
    thread.join()


def hung_launch(replies: Mailbox) -> Launch:
    """What is left of a launch whose workers got nowhere for long, without the workers."""
    launch = object.__new__(Launch)
    launch.folder, launch._replies = replies.folder, replies
    launch._refused, launch._problem = None, None
    launch._hung = launch._stopped = True
    return launch


def test_a_launch_whose_replies_cannot_be_read_is_not_taken_for_lost_workers(tmp_path: Path) -> None:
    Mailbox(DiskFolder(tmp_path), "worker").send(example())
    replies = Mailbox(Failing(tmp_path, FULL, reads=math.inf), "worker")
    assert replies.receive(lambda: None, timeout=0.05) is None
    failure = hung_launch(replies)._judge()
    assert isinstance(failure, StagingError)
    assert "No space left on device" in str(failure)
    assert str(tmp_path) in str(failure)


def test_a_launch_that_hung_without_a_word_lost_its_workers(tmp_path: Path) -> None:
    replies = Mailbox(DiskFolder(tmp_path), "worker")
    assert replies.receive(lambda: None, timeout=0.05) is None
    assert isinstance(hung_launch(replies)._judge(), WorkersLostError)


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other number", "foreign"])
def test_what_is_not_this_message_is_not_read(damage: str, tmp_path: Path) -> None:
    data = bytearray(example().to_bytes(1))
    if damage == "empty":
        data = bytearray()
    elif damage == "cut":
        data = data[:-1]
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
    elif damage == "other number":
        data = bytearray(example().to_bytes(2))
    elif damage == "foreign":
        data[:4] = b"XXXX"
    (tmp_path / "driver-000001").write_bytes(data)
    reader = Mailbox(DiskFolder(tmp_path), "driver")
    assert reader.receive(lambda: None, timeout=0.05) is None
    DiskFolder(tmp_path).write("driver-000001", example().to_bytes(1))
    assert_same(reader.receive(nobody_left), example())


class Shrinking(io.BytesIO):
    """Loses its end when the reader goes back, between the pass for the checksum and the one for the values."""

    left = 0

    def seek(self, *place: int) -> int:
        self.truncate(self.left)
        return super().seek(*place)


def test_a_file_that_shrinks_while_it_is_read_is_not_this_message() -> None:
    whole = example().to_bytes()
    for left in range(24, len(whole)):
        file = Shrinking(whole)
        file.left = left
        assert Message.from_file(file) is None


def test_a_message_that_cannot_be_deleted_was_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, reader = Mailbox(DiskFolder(tmp_path), "worker"), Mailbox(DiskFolder(tmp_path), "worker")
    sender.send(Message("one"))
    sender.send(Message("two"))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError("stale file handle")))
    words = [message.word for _ in range(2) if (message := reader.receive(nobody_left))]
    assert words == ["one", "two"]


def test_a_rank_that_cannot_write_why_it_failed_prints_it(
    mounted: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    disk = mounted("size=8k")
    (disk / "full").write_bytes(bytes(8192))
    rank._tell_failure(DiskFolder(disk), 1, OSError(errno.ENOSPC, "No space left on device"))
    printed = capfd.readouterr().err
    assert printed.startswith("rank 1 on host ")
    assert "No space left on device" in printed


def test_a_reader_gives_up_when_nobody_is_left_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        Mailbox(DiskFolder(tmp_path), "driver").receive(nobody_left)


def test_a_message_is_found_soon_after_it_was_written(tmp_path: Path) -> None:
    reader = Mailbox(DiskFolder(tmp_path), "driver")
    written = []

    def write() -> None:
        time.sleep(0.3)
        written.append(time.monotonic())
        Mailbox(DiskFolder(tmp_path), "driver").send(Message("late"))

    thread = threading.Thread(target=write)
    thread.start()
    message = reader.receive(lambda: None, timeout=10)
    delay = time.monotonic() - written[0]
    thread.join()
    assert message is not None
    assert delay < 1
