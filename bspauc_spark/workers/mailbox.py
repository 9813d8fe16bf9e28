"""Messages between the driver and rank 0 as small files in a folder that both see.

A message is plain values and arrays: JSON and npy, never a pickle. Its file says how long it is and what its checksum
is, so that a reader who comes too early, or meets what another process left behind, reads nothing.
"""

from __future__ import annotations

import io
import json
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bspauc_spark.workers.storage import Folder

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

_MAGIC = b"BSPM"
_HEAD = struct.Struct("<4sQQI")
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20


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
        plain = {"word": self.word, "values": dict(self.values), "arrays": list(self.arrays)}
        head = json.dumps(plain).encode()
        out.write(_LENGTH.pack(len(head)) + head)
        for array in self.arrays.values():
            np.lib.format.write_array(out, np.asarray(array), allow_pickle=False)
        body = out.getvalue()
        return _HEAD.pack(_MAGIC, sequence, len(body), zlib.crc32(body)) + body

    @classmethod
    def from_bytes(cls, data: bytes, sequence: int = 0) -> Message | None:
        """The inverse of ``to_bytes``; nothing if the bytes are not, or not yet, this message."""
        return cls.from_file(io.BytesIO(data), sequence)

    @classmethod
    def from_file(cls, file: IO[bytes], sequence: int = 0) -> Message | None:
        """As ``from_bytes``, without ever holding the whole file beside its arrays: scores may fill gigabytes."""
        found = file.read(_HEAD.size)
        if len(found) < _HEAD.size:
            return None
        magic, number, length, checksum = _HEAD.unpack(found)
        if magic != _MAGIC or number != sequence or _length_and_checksum(file) != (length, checksum):
            return None
        file.seek(_HEAD.size)
        head = json.loads(file.read(_LENGTH.unpack(file.read(_LENGTH.size))[0]))
        arrays = {name: np.lib.format.read_array(file, allow_pickle=False) for name in head["arrays"]}
        return cls(head["word"], head["values"], arrays)


def _length_and_checksum(file: IO[bytes]) -> tuple[int, int]:
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

    def send(self, message: Message) -> None:
        """Write the next message."""
        self.sequence += 1
        self.folder.write(self._file(self.sequence), message.to_bytes(self.sequence))

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

    def _file(self, sequence: int) -> str:
        return f"{self.name}-{sequence:06d}"

    def _read(self, sequence: int) -> Message | None:
        try:
            with self.folder.open(self._file(sequence)) as file:
                message = Message.from_file(file, sequence)
        except OSError:
            return None
        if message is not None:
            self.folder.delete(self._file(sequence))
        return message
