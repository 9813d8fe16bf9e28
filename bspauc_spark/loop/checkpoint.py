"""Progress of a fit on disk, so that a driver that dies loses no finished round.

A checkpoint is one file of JSON and raw numbers with a checksum; it names the Params and the data it belongs to.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bspauc_spark.cluster.mailbox import Message
from bspauc_spark.errors import CheckpointError, MalformedError, reason
from bspauc_spark.rows.storage import Folder
from bspauc_spark.schema import brief, mapping, plain, record, text, whole
from bspauc_spark.version import __version__

logger = logging.getLogger("bspauc_spark")

FORMAT_VERSION = 1
_NAME = "bspauc-round-{:05d}.checkpoint"
_PATTERN = re.compile(r"bspauc-round-(\d+)\.checkpoint")
_HALF_WRITTEN = re.compile(r"bspauc-round-\d+\.checkpoint\..*\.part")
# The one before the last is kept: a file system without atomic rename may show a damaged last one.
_KEPT = 2
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_MOST_DIFFERENCES = 10
# A fit makes no θ of more than 2 GiB; a checkpoint holds a few of that size: averages, moments, the best one.
_MOST_BYTES = 32 << 30


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: plain values, and arrays by name."""

    round: int
    values: Mapping[str, Any]
    state: Mapping[str, npt.NDArray[Any]]
    weights: Mapping[str, npt.NDArray[np.float32]]


@dataclass
class Checkpoints:
    """The checkpoints of one fit in a folder, which must hold none of another's."""

    folder: Folder
    identity: Mapping[str, Any]
    _written: list[str] = field(default_factory=list)

    def load(self) -> Saved | None:
        """The last whole checkpoint, if there is one; an error if it belongs to other Params or other data."""
        try:
            found = self._files()
        except OSError as error:
            raise CheckpointError(f"checkpointDir {str(self.folder)!r} cannot be read: {reason(error)}.") from error
        for number, name in reversed(found):
            path = f"{self.folder}/{name}"
            try:
                message = self._read(name, number)
                stored = None if message is None else _stored(message, path)
            except (OSError, MalformedError) as error:
                raise _unreadable(path, error) from error
            if message is None or stored is None:
                logger.warning("%s is damaged: its checksum is not that of what was written", path)
            else:
                self._refuse_other(path, stored["identity"])
                self._written = [name for earlier, name in found if earlier <= number]
                logger.warning("going on after round %d, saved in %s; remove it to fit from the start", number, path)
                return Saved(number, stored["progress"], message.group("state"), message.group("weights"))
        if found:
            raise CheckpointError(
                f"{self.folder}/{found[-1][1]} is damaged, and there is no earlier one. Remove it to fit from the "
                "start."
            )
        return None

    def save(self, saved: Saved) -> None:
        """Write the checkpoint of a finished round."""
        arrays = {f"state.{name}": array for name, array in saved.state.items()}
        arrays |= {f"weights.{name}": array for name, array in saved.weights.items()}
        header = {"format": FORMAT_VERSION, "version": __version__}
        values = {**header, "identity": self.identity, "progress": saved.values}
        name, data = _NAME.format(saved.round), Message("checkpoint", values, arrays).to_bytes(saved.round)
        try:
            self.folder.create()
            try:
                self.folder.write(name, data)
            except OSError as error:
                if error.errno not in _NO_ROOM or len(self._written) < _KEPT:
                    raise
                self._delete(self._written.pop(0))
                self.folder.write(name, data)
        except OSError as error:
            # The fit itself is not harmed; the checkpoint before this one stays.
            logger.warning("round %d was not saved in checkpointDir %s: %s", saved.round, self.folder, reason(error))
            return
        self._written.append(name)
        while len(self._written) > _KEPT:
            self._delete(self._written.pop(0))

    def remove(self) -> None:
        """Delete the checkpoints of this fit, and what a killed one left half written."""
        half_written = list[str]()
        with contextlib.suppress(OSError):
            half_written = [name for name in self.folder.names() if _HALF_WRITTEN.fullmatch(name)]
        for name in (*self._written, *half_written):
            self._delete(name)
        self._written = []

    def unusable(self, saved: Saved, error: Exception) -> CheckpointError:
        """The error for a checkpoint that was read, and turned out not to be one of this fit."""
        return _unreadable(f"{self.folder}/{_NAME.format(saved.round)}", error)

    def _delete(self, name: str) -> None:
        try:
            self.folder.delete(name)
        except OSError as error:
            logger.warning("%s/%s was not removed: %s", self.folder, name, reason(error))

    def _files(self) -> list[tuple[int, str]]:
        names = ((_PATTERN.fullmatch(name), name) for name in self.folder.names())
        return sorted((int(match[1]), name) for match, name in names if match)

    def _read(self, name: str, number: int) -> Message | None:
        with self.folder.open(name) as file:
            size = file.seek(0, io.SEEK_END)
            if size > _MOST_BYTES:
                raise MalformedError(f"{size:,} bytes, where at most {_MOST_BYTES:,} are read")
            file.seek(0)
            return Message.from_file(file, number)

    def _refuse_other(self, path: str, found: Mapping[str, Any]) -> None:
        wanted = self.identity
        differences = [
            f"{brief(name)[1:-1]} was {brief(found.get(name), 300)} and is {brief(wanted.get(name), 300)}"
            for name in sorted({*found, *wanted})
            if found.get(name) != wanted.get(name)
        ][:_MOST_DIFFERENCES]
        if differences:
            raise CheckpointError(
                f"{path} belongs to another fit: {'; '.join(differences)}. Fit with the same Params and data to go on, "
                "remove the checkpoint to start anew, or set another checkpointDir."
            )


_STORED = record(
    {
        "format": whole(FORMAT_VERSION, FORMAT_VERSION),
        "version": text(),
        "identity": mapping(plain),
        "progress": mapping(plain),
    }
)


def _stored(message: Message, path: str) -> dict[str, Any]:
    """What the message says of itself; an error if another version wrote it."""
    written, version = (brief(message.values.get(name)) for name in ("format", "version"))
    known = (str(FORMAT_VERSION), brief(__version__))
    if {"format", "version"} <= message.values.keys() and (written, version) != known:
        raise CheckpointError(
            f"{path} was written by bspauc_spark {version} in format {written}; this is {__version__} with format "
            f"{FORMAT_VERSION}, and another version may learn otherwise. Go on with that version, remove the "
            "checkpoint to fit from the start, or set another checkpointDir."
        )
    stored: dict[str, Any] = _STORED(message.values, "")
    return stored


def _unreadable(path: str, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} cannot be read: {error}. Remove it, or set another checkpointDir.")
