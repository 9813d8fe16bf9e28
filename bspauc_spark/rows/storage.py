"""Folders on disk and in object stores, behind the few things that a fit does with them.

Nothing relies on rename or on a listing that is up to date: files have names of their own, are written once, and who
reads one checks what it holds.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs as pafs

from bspauc_spark import liveness
from bspauc_spark.errors import InvalidParamError, reason, shown
from bspauc_spark.rows.locations import connect, scheme_of, without_secrets

logger = logging.getLogger("bspauc_spark")

_SCHEMES = ("abfs", "abfss", "gs", "gcs", "hdfs", "s3", "viewfs")
# What is larger is not read into memory, but piece by piece.
_CHUNK = 4 << 20
# Tasks of a cancelled job are gone by then.
_REMOVAL_SECONDS = 3.0


@dataclass(frozen=True)
class Polling:
    """Seconds between looks at a folder: for a file that is due, at first and at last; for signs of life; for giving
    them.
    """

    first: float
    last: float
    watch: float
    beat: float


class Folder(ABC):
    """A folder of files that are written and read whole."""

    location: str
    """A path or a URI; ``folder`` of it is this folder again, in any process."""
    polling: Polling

    @abstractmethod
    def write(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Write a file, for its owner alone, that appears whole where the storage can do that."""

    @abstractmethod
    def open(self, name: str) -> io.BufferedIOBase:
        """A file to read and to seek in."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of the files; none if the folder is not there."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file if it is there."""

    @abstractmethod
    def delete_all(self) -> None:
        """Delete the folder with all that is in it, if it is there."""

    @abstractmethod
    def child(self, name: str) -> Folder:
        """A folder in this one."""

    @abstractmethod
    def create(self) -> None:
        """Make the folder where folders have to be made."""

    def nearest(self) -> Folder:
        """The folder itself or, where it is not there, the one above in which it would have to be made."""
        return self

    def try_to_write(self) -> None:
        """A file into the nearest folder that there is, and away again."""
        place, name = self.nearest(), f"bspauc-probe-{uuid.uuid4().hex}"
        place.write(name, b"")
        place.delete(name)

    @abstractmethod
    def new(self, prefix: str) -> Folder:
        """A folder in this one that nobody else has, nor can guess."""

    @abstractmethod
    def nearby(self, names: Sequence[str]) -> contextlib.AbstractContextManager[Path]:
        """A directory of this machine that has these files; copies are gone afterwards, mapped ones stay readable."""

    def remove(self) -> None:
        """``delete_all``, again and again: a task that is being ended may still write. What stays is reported."""
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while True:
            try:
                self.delete_all()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    logger.warning("%s was not removed: %s. Delete it by hand.", self, reason(error))
                    return
            time.sleep(0.05)

    def read(self, name: str) -> bytes:
        """All bytes of a file."""
        with self.open(name) as file:
            return file.read()

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        try:
            self.open(name).close()
        except FileNotFoundError:
            return False
        return True

    def __str__(self) -> str:
        return shown(self.location)


def folder(location: str) -> Folder:
    """The folder at a path or at a URI that ``pyarrow.fs`` knows."""
    scheme = scheme_of(location)
    if scheme is None:
        return DiskFolder(Path(os.path.expanduser(location)))
    try:
        path = unquote(urlsplit(location).path)
    except ValueError as error:
        raise InvalidParamError(f"{shown(location)!r} is no URI: {error}. Use a path or a URI of a folder.") from None
    if scheme == "file":
        if not path.startswith("/"):
            raise InvalidParamError(f"{shown(location)!r} names no folder: write file:///path.")
        return DiskFolder(Path(path))
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in ("file", *_SCHEMES))
        raise InvalidParamError(
            f"{shown(location)!r} is no folder that can be used: known are paths and {known}. Mount other storage as a "
            "folder (on Databricks: /Volumes/…), or use one of these."
        )
    if not location.startswith(f"{scheme}://"):
        raise InvalidParamError(f"{shown(location)!r} lacks a slash: write {scheme}://.")
    return StoreFolder(location)


def on_disk(location: str | Path) -> Path:
    """A path of this machine, as it is or as a ``file:`` URI; what a URI of other storage names is not one."""
    if scheme_of(str(location)) in (None, "file"):
        place = folder(str(location))
        assert isinstance(place, DiskFolder)
        return place.path
    raise InvalidParamError(
        f"{shown(str(location))!r} is no path of this machine. Give one and copy the files, or mount the storage as a "
        "folder (on Databricks: /Volumes/…)."
    )


class DiskFolder(Folder):
    """A folder of the file system."""

    polling = Polling(first=0.002, last=0.05, watch=0.25, beat=2.0)

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)

    def write(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        path = self.path / name
        partial = self.path / f"{name}.{uuid.uuid4().hex[:8]}.part"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def open(self, name: str) -> io.BufferedIOBase:
        return (self.path / name).open("rb")

    def names(self) -> list[str]:
        try:
            return sorted(path.name for path in self.path.iterdir() if path.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def delete_all(self) -> None:
        if os.path.lexists(self.path):
            shutil.rmtree(self.path)

    def child(self, name: str) -> DiskFolder:
        return DiskFolder(self.path / name)

    def create(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def nearest(self) -> DiskFolder:
        return DiskFolder(next(path for path in (self.path, *self.path.absolute().parents) if path.exists()))

    def new(self, prefix: str) -> DiskFolder:
        return DiskFolder(Path(tempfile.mkdtemp(prefix=prefix, dir=self.path)))

    @contextlib.contextmanager
    def nearby(self, names: Sequence[str]) -> Iterator[Path]:
        yield self.path


class StoreFolder(Folder):
    """A prefix of an object store, or a folder of a distributed file system: each look at it is a request."""

    polling = Polling(first=0.05, last=1.0, watch=5.0, beat=15.0)

    def __init__(self, location: str) -> None:
        self.location = location
        self._store, self._path = connect(location)

    @without_secrets()
    def write(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        with self._store.open_output_stream(f"{self._path}/{name}") as sink:
            sink.write(data)

    @without_secrets()
    def open(self, name: str) -> io.BufferedIOBase:
        with self._store.open_input_stream(f"{self._path}/{name}") as source:
            start = source.read(_CHUNK)
            if len(start) < _CHUNK:
                return io.BytesIO(start)
            with contextlib.ExitStack() as on_failure:
                copy = on_failure.enter_context(tempfile.TemporaryFile())
                copy.write(start)
                shutil.copyfileobj(source, copy, _CHUNK)
                copy.seek(0)
                on_failure.pop_all()
                return cast(io.BufferedIOBase, copy)

    @without_secrets()
    def names(self) -> list[str]:
        found = self._store.get_file_info(pafs.FileSelector(self._path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == pafs.FileType.File)

    @without_secrets()
    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._store.delete_file(f"{self._path}/{name}")

    @without_secrets()
    def delete_all(self) -> None:
        try:
            self._store.delete_dir(self._path)
        except FileNotFoundError:
            pass
        except OSError:
            # What gs:// raises for a folder that is not there is no FileNotFoundError.
            if self._store.get_file_info(self._path).type != pafs.FileType.NotFound:
                raise

    def child(self, name: str) -> StoreFolder:
        parts = urlsplit(self.location)
        return StoreFolder(urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}")))

    def create(self) -> None:
        """Nothing to do: a prefix is there when something has it."""

    def new(self, prefix: str) -> StoreFolder:
        return self.child(prefix + uuid.uuid4().hex)

    @contextlib.contextmanager
    def nearby(self, names: Sequence[str]) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="bspauc-") as directory:
            for name in names:
                liveness.beat()
                with (
                    without_secrets(),
                    self._store.open_input_stream(f"{self._path}/{name}") as source,
                    (Path(directory) / name).open("wb") as copy,
                ):
                    shutil.copyfileobj(source, copy, _CHUNK)
            yield Path(directory)
