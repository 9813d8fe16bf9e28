"""Ways to damage what was saved: by the byte, and with a checksum that is right again."""

from __future__ import annotations

import copy
import json
import random
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy


class _Missing:
    def __str__(self) -> str:
        return "missing"


MISSING = _Missing()
DEEP = "[" * 100_000

HOSTILE_VALUES: list[Any] = [
    *[None, True, "", "1", "__import__('os').system('true')", "../../etc/passwd", "\ud800", "\x00"],
    *[float("nan"), float("inf"), -float("inf"), 1e308, -1.0, 0, -1, 2**31, 2**63, 10**400, 5e-324],
    *[[], {}, [[]], {"": None}, ["a"] * 3, [0.5] * 5, {"__reduce__": ["os.system", ["true"]]}],
]


def with_value(plain: Any, path: tuple[Any, ...], value: Any) -> Any:
    """``plain`` with another value at ``path``, or without it."""
    changed = copy.deepcopy(plain)
    place = changed
    for key in path[:-1]:
        place = place[key]
    if value is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return changed


def paths(plain: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values in ``plain``."""
    inner = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    below = [path for key, value in inner for path in paths(value, (*before, key))]
    return [*([before] if before else []), *below]


def model(description: dict[str, Any], arrays: Mapping[str, Any] | bytes) -> dict[str, bytes]:
    """The files of a model whose checksum is that of these contents."""
    weights = arrays if isinstance(arrays, bytes) else safetensors.numpy.save(dict(arrays))
    plain = {name: value for name, value in description.items() if name != "checksum"}
    checksum = zlib.crc32(weights, zlib.crc32(json.dumps(plain, sort_keys=True).encode()))
    if "checksum" in description:
        plain["checksum"] = checksum
    return {"model.json": json.dumps(plain).encode(), "model.safetensors": weights}


def message(head: Any, data: bytes, sequence: int, length: int | None = None) -> bytes:
    """A checkpoint's file with the checksum of these contents; ``length`` is what its head says of itself."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return sealed(struct.pack("<Q", len(text) if length is None else length) + text + data, sequence)


def sealed(body: bytes, sequence: int) -> bytes:
    """Any bytes as a checkpoint's file."""
    return struct.pack("<4sQQI", b"BSPM", sequence, len(body), zlib.crc32(body)) + body


def opened(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The head of a checkpoint's file, and the bytes of its arrays."""
    body = data[24:]
    (length,) = struct.unpack("<Q", body[:8])
    return json.loads(body[8 : 8 + length]), body[8 + length :]


def spoiled_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bits flipped, some bytes cut, doubled or put in."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(changed) + 1), rng.choice([1, 2, 8, 100])
        kind = rng.choice(["flip", "flip", "cut", "end", "double", "insert", "overwrite"])
        if kind == "flip" and changed:
            changed[at % len(changed)] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del changed[at : at + size]
        elif kind == "end":
            del changed[at:]
        elif kind == "double":
            changed[at:at] = changed[at : at + size]
        elif kind == "insert":
            changed[at:at] = rng.randbytes(size)
        elif kind == "overwrite":
            changed[at : at + size] = rng.choice([b"\xff", b"\x00", b"9", b"["]) * size
    return bytes(changed)


def spoiled_plain(plain: Any, rng: random.Random) -> Any:
    """One value of many replaced, removed or joined by another."""
    path = rng.choice(paths(plain))
    value = rng.choice([*HOSTILE_VALUES, MISSING])
    if rng.random() < 0.1:
        path = (*path[:-1], "other") if isinstance(path[-1], str) else path
    try:
        return with_value(plain, path, value)
    except KeyError:
        return plain


def spoiled_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """Another type, shape or number."""
    kind = rng.choice(["type", "shape", "cut", "number", "number", "number"])
    if kind == "type":
        return array.astype(rng.choice([np.float16, np.float64, np.int32, np.uint8, np.int64]))
    if kind == "shape":
        return array.reshape(-1) if array.ndim != 1 else array.reshape(1, -1)
    if kind == "cut":
        return array.reshape(-1)[: array.size // 2]
    changed = array.copy().reshape(-1)
    if changed.size:
        bits = changed.view(np.uint8)
        bits[rng.randrange(len(bits))] ^= 1 << rng.randrange(8)
    return changed.reshape(array.shape)
