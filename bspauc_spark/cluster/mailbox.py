"""Messages between the driver and rank 0 as small files in a folder that both see.

A message is plain values and arrays: JSON and raw numbers, never a pickle. Its file says how long it is and what its
checksum is, so that a reader who comes too early, or meets what another process left behind, reads nothing.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import socket
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bspauc_spark.errors import MalformedError, StagingError, reason
from bspauc_spark.rows.storage import Folder
from bspauc_spark.schema import MOST_JSON_BYTES, brief, many, mapping, parse, plain, record, text, whole

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

_MAGIC = b"BSPM"
_HEAD = struct.Struct("<4sQQI")
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20
# So long a write that fails is tried again: a storage's bad moment, not its end.
_SEND_SECONDS = 30.0
# These do not pass by themselves, or the launch is over and its folder gone.
_LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT}


@dataclass(frozen=True)
class Message:
    """What one side says: a word, plain values, arrays by name."""

    word: str
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def group(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """The arrays whose names start with ``prefix.``, without it."""
        start = prefix + "."
        return {name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)}

    def to_bytes(self, sequence: int = 0) -> bytes:
        """The message with its number, length and checksum in front."""
        out = io.BytesIO()
        arrays = {name: np.asarray(array) for name, array in self.arrays.items()}
        described = [{"name": name, "dtype": str(a.dtype), "shape": a.shape} for name, a in arrays.items()]
        head = json.dumps({"word": self.word, "values": dict(self.values), "arrays": described}).encode()
        out.write(_LENGTH.pack(len(head)) + head)
        for array in arrays.values():
            if str(array.dtype) not in _DTYPES:
                raise TypeError(f"a message holds numbers, not {array.dtype}")
            out.write(_bytes_of(np.ascontiguousarray(array)))
        body = out.getvalue()
        return _HEAD.pack(_MAGIC, sequence, len(body), zlib.crc32(body)) + body

    @classmethod
    def from_bytes(cls, data: bytes, sequence: int = 0) -> Message | None:
        """The inverse of ``to_bytes``; nothing if the bytes are not, or not yet, this message."""
        return cls.from_file(io.BytesIO(data), sequence)

    @classmethod
    def from_file(cls, file: io.BufferedIOBase, sequence: int = 0) -> Message | None:
        """As ``from_bytes``, without ever holding the whole file beside its arrays: scores may fill gigabytes.

        Whole by its checksum but not of this form, it is a ``MalformedError``.
        """
        found = file.read(_HEAD.size)
        if len(found) < _HEAD.size:
            return None
        magic, number, length, checksum = _HEAD.unpack(found)
        if magic != _MAGIC or number != sequence or _length_and_checksum(file) != (length, checksum):
            return None
        file.seek(_HEAD.size)
        try:
            return cls._from_body(file, length)
        except EOFError:
            # It was whole a moment ago: the storage shows something else by now.
            return None

    @classmethod
    def _from_body(cls, file: io.BufferedIOBase, length: int) -> Message:
        left = length - _LENGTH.size
        size = _LENGTH.unpack(_read(file, _LENGTH.size))[0] if left >= 0 else 0
        if not 0 < size <= min(left, MOST_JSON_BYTES):
            raise MalformedError(f"a description of {size:,} bytes in a message of {length:,}")
        head = _DESCRIPTION(parse(_read(file, size)), "")
        left -= size
        arrays: dict[str, npt.NDArray[Any]] = {}
        for place, described in enumerate(head["arrays"]):
            array = _read_array(file, described, f"arrays[{place}]", left)
            left -= array.nbytes
            arrays[described["name"]] = array
        if left or len(arrays) < len(head["arrays"]):
            raise MalformedError(f"{left:,} bytes too many, or an array twice")
        return cls(head["word"], head["values"], arrays)


_DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DESCRIPTION = record(
    {
        "word": text(),
        "values": mapping(plain),
        "arrays": many(record({"name": text(), "dtype": text(*_DTYPES), "shape": many(whole(), most=8)})),
    }
)


def _read_array(file: io.BufferedIOBase, described: Mapping[str, Any], where: str, left: int) -> npt.NDArray[Any]:
    """The next array, if the ``left`` bytes of the message can hold it: nothing of a declared size is made before."""
    dtype, shape = np.dtype(described["dtype"]), described["shape"]
    if math.prod(shape) * dtype.itemsize > left:
        raise MalformedError(f"{where} has the shape {brief(shape)}, and {left:,} bytes are left for it")
    try:
        array: npt.NDArray[Any] = np.empty(shape, dtype)
    except ValueError as error:
        # Without any element it can still have more of the others than numpy counts.
        raise MalformedError(f"{where} has the shape {brief(shape)}") from error
    if file.readinto(_bytes_of(array)) < array.nbytes:
        raise EOFError
    return array


def _read(file: io.BufferedIOBase, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _length_and_checksum(file: io.BufferedIOBase) -> tuple[int, int]:
    length, checksum = 0, 0
    while data := file.read(_CHUNK):
        length, checksum = length + len(data), zlib.crc32(data, checksum)
    return length, checksum


@dataclass
class Mailbox:
    """One direction of the talk: numbered messages, each in a file of its own."""

    folder: Folder
    name: str
    sequence: int = 0
    problem: OSError | None = field(default=None, init=False)
    """Why the next message could not be read when it was last looked for; nothing if it was only not there."""
    _since: float = field(default=0.0, init=False)

    def send(
        self, message: Message, still_there: Callable[[], None] = lambda: None, patience: float = _SEND_SECONDS
    ) -> None:
        """Write the next message; ``still_there`` raises when nobody is left to read it.

        Where the storage fails for a moment it is tried again, for ``patience`` seconds after the first failure.
        """
        self.sequence += 1
        # A write that failed may have arrived all the same: the same bytes by the same name are no second message.
        name, data = self._file(self.sequence), message.to_bytes(self.sequence)
        pause, deadline = self.folder.polling.first, math.inf
        while True:
            try:
                self.folder.write(name, data)
                return
            except OSError as error:
                now = time.monotonic()
                deadline = min(deadline, now + patience)
                # Object stores give no number, but the kind.
                lasting = error.errno in _LASTING or isinstance(error, (FileNotFoundError, PermissionError))
                if lasting or now >= deadline:
                    raise
            still_there()
            time.sleep(pause)
            pause = min(pause * 1.5, self.folder.polling.last)

    def receive(self, still_there: Callable[[], None], timeout: float | None = None) -> Message | None:
        """Wait for the next message; ``still_there`` raises when nobody is left to send it.

        Nothing if ``timeout`` seconds have passed without one.
        """
        pause, started = self.folder.polling.first, time.monotonic()
        while True:
            message = self._read(self.sequence + 1)
            if message is not None:
                self.sequence += 1
                return message
            still_there()
            if timeout is not None and time.monotonic() - started > timeout:
                return None
            time.sleep(pause)
            pause = min(pause * 1.5, self.folder.polling.last)

    def refuse_unreadable(self, seconds: float) -> None:
        """Raise a ``StagingError`` if the next message is there and could not be read for so long."""
        if self.problem is None or time.monotonic() - self._since < seconds:
            return
        # A store that may not be listed refuses what is not there yet, and one that is out of reach comes back.
        with contextlib.suppress(OSError):
            if self._file(self.sequence + 1) in self.folder.names():
                raise unreadable(self.folder, self.problem) from self.problem

    def _file(self, sequence: int) -> str:
        return f"{self.name}-{sequence:06d}"

    def _read(self, sequence: int) -> Message | None:
        try:
            with self.folder.open(self._file(sequence)) as file:
                message = Message.from_file(file, sequence)
        except FileNotFoundError:
            self.problem = None
            return None
        except OSError as error:
            # It may be for a moment, so the look is repeated; if it lasts, this is why nothing comes.
            if self.problem is None or self.problem.errno != error.errno:
                self._since = time.monotonic()
            self.problem = error
            return None
        self.problem = None
        if message is not None:
            # It was read, and its number does not come again.
            with contextlib.suppress(OSError):
                self.folder.delete(self._file(sequence))
        return message


def unreadable(place: Folder, error: OSError) -> StagingError:
    """The error for messages that are there, and that this machine cannot read."""
    return StagingError(
        f"messages in stagingDir {place} cannot be read on host {socket.gethostname()}: {reason(error)}. Large ones of "
        "an object store are copied to the host's temporary folder (TMPDIR): make room there, give the right to read "
        "stagingDir, or set it to other storage."
    )
