"""Checks of plain values that came from a file, made before anything is built from them.

A check takes a value and the name of its place; it gives the value back, or raises ``MalformedError``. Messages say
which place is wrong and what belongs there. Of what stands there they tell no more than a number or a type: the file
may hold anything.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, TypeAlias

from bspauc_spark.errors import MalformedError

Check: TypeAlias = Callable[[Any, str], Any]

# Ours have some kilobytes; a million rounds would have half a gigabyte.
MOST_JSON_BYTES = 64 << 20
# Empty lists take many times the memory of their two bytes.
_MOST_VALUES = 2_000_000
_DEEPEST = 8
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(data: bytes) -> Any:
    """JSON of bounded length, depth and number of values."""
    if len(data) > MOST_JSON_BYTES:
        raise MalformedError(f"{len(data):,} bytes of JSON, where at most {MOST_JSON_BYTES:,} are read")
    if sum(map(data.count, (b"[", b"{", b","))) > _MOST_VALUES:
        raise MalformedError(f"more than {_MOST_VALUES:,} values of JSON")
    try:
        return json.loads(data)
    except RecursionError:
        raise MalformedError("its JSON is nested too deeply") from None
    except ValueError as error:
        raise MalformedError(f"not JSON: {error}") from error


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """Put ``place``, such as a file's name, before what is said to be malformed."""
    try:
        yield
    except MalformedError as error:
        raise MalformedError(f"{place}: {error}") from error


def brief(value: object, most: int = 80) -> str:
    """A value from a file for a message: on one line, printable and short."""
    text = ascii(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def real(low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf) -> Check:
    """A finite number from ``low`` to ``high``, and greater than ``above``."""
    wanted = _range("a finite number", low, high) + (f" above {above:g}" if above > -math.inf else "")

    def check(value: Any, where: str) -> float:
        if not isinstance(value, Real) or isinstance(value, bool):
            raise _wrong(where, wanted, value)
        try:
            found = float(value)
        except OverflowError:
            raise _wrong(where, wanted, value) from None
        if not (math.isfinite(found) and low <= found <= high and found > above):
            raise _wrong(where, wanted, value)
        return found

    return check


def whole(low: int = 0, high: int = 2**53) -> Check:
    """A whole number from ``low`` to ``high``."""
    wanted = _range("a whole number", low, high)

    def check(value: Any, where: str) -> int:
        if not isinstance(value, Integral) or isinstance(value, bool) or not low <= int(value) <= high:
            raise _wrong(where, wanted, value)
        return int(value)

    return check


def flag(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value)
    return value


def text(*choices: str) -> Check:
    """A string, one of ``choices`` if there are any."""
    wanted = " or ".join(map(repr, choices)) if choices else "text"

    def check(value: Any, where: str) -> str:
        # Half a surrogate pair is no character: it could be neither written nor printed.
        if not isinstance(value, str) or (choices and value not in choices) or _SURROGATE.search(value):
            raise _wrong(where, wanted, value)
        return value

    return check


def maybe(check: Check) -> Check:
    """Null, or what ``check`` takes."""
    return lambda value, where: None if value is None else check(value, where)


def many(item: Check, least: int = 0, most: float = math.inf) -> Check:
    """A list of ``least`` to ``most`` values that ``item`` takes, as a tuple."""

    def check(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise _wrong(where, "a list", value)
        if not least <= len(value) <= most:
            raise MalformedError(f"{where} has {len(value):,} entries, where {_range('a number', least, most)} belongs")
        return tuple(item(one, f"{where}[{place}]") for place, one in enumerate(value))

    return check


def mapping(item: Check) -> Check:
    """An object whose values ``item`` takes, under any names."""
    name_of = text()

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong(where, "an object", value)
        return {name_of(name, f"a name in {where}"): item(one, _at(where, brief(name))) for name, one in value.items()}

    return check


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with these names and no others."""
    known = {**required, **(optional or {})}

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong(where, "an object", value)
        for name in required:
            if name not in value:
                raise MalformedError(f"{_at(where, name)} is missing")
        for name in value:
            if name not in known:
                raise MalformedError(f"{_at(where, brief(name))} is unknown to this version")
        return {name: known[name](one, _at(where, name)) for name, one in value.items()}

    return check


def plain(value: Any, where: str, depth: int = _DEEPEST) -> Any:
    """Any JSON of ours: finite numbers, text, true, false, null, and lists and objects of them."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text()(value, where)
    if isinstance(value, Real):
        real()(value, where)
        return value
    if depth == 0:
        raise MalformedError(f"{where} is nested too deeply")
    if isinstance(value, list | tuple):
        return [plain(one, f"{where}[{place}]", depth - 1) for place, one in enumerate(value)]
    return mapping(lambda one, place: plain(one, place, depth - 1))(value, where)


def _range(what: str, low: float, high: float) -> str:
    if high < math.inf:
        return f"{what} from {low:g} to {high:g}" if low > -math.inf else f"{what} of at most {high:g}"
    return f"{what} of at least {low:g}" if low > -math.inf else what


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _wrong(where: str, wanted: str, value: Any) -> MalformedError:
    # Texts are not repeated: who can place a file can also make it point to one that others may not read.
    found = brief(value) if value is None or isinstance(value, Real) else f"a {type(value).__name__}"
    return MalformedError(f"{where or 'all of it'} must be {wanted}, not {found}")
