"""What makes a Param: a name, documentation that says its range, and a converter that refuses what lies outside."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from pyspark.ml.param import Param, Params, TypeConverters

from bspauc_spark.errors import InvalidParamError

T = TypeVar("T")


def checked(convert: Callable[[Any], T], valid: Callable[[T], bool], wanted: str, name: str) -> Callable[[Any], T]:
    """A type converter that also checks the range, so that a bad value is refused when it is set.

    It can be pickled if both functions can, and with it the stages that have the Param.
    """
    return partial(_convert_and_check, convert, valid, wanted, name)


def _convert_and_check(
    convert: Callable[[Any], T], valid: Callable[[T], bool], wanted: str, name: str, value: Any
) -> T:
    try:
        converted = convert(_plain(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidParamError(f"{name} must be {wanted}; got {value!r}.") from error
    if not valid(converted):
        raise InvalidParamError(f"{name} must be {wanted}; got {value!r}.")
    return converted


def _plain(value: Any) -> Any:
    """A value without numpy: pyspark's converters know two of its types of numbers and no other."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def anything(value: Any) -> bool:
    """Whether any value of its type will do: yes."""
    return True


def number(name: str, doc: str, low: float, high: float = math.inf, *, open_low: bool = False) -> Any:
    """A Param that is a finite number in a range."""
    opening = "(" if open_low or not math.isfinite(low) else "["
    wanted = f"a number in {opening}{low:g}, {high:g}{']' if math.isfinite(high) else ')'}"
    valid = partial(_is_between, low, high, open_low)
    return param(name, f"{doc} ({wanted})", checked(TypeConverters.toFloat, valid, wanted, name))


def _is_between(low: float, high: float, open_low: bool, x: float) -> bool:
    return math.isfinite(x) and (low < x if open_low else low <= x) and x <= high


def integer(name: str, doc: str, low: int, high: int = 2**31 - 1) -> Any:
    """A Param that is a whole number in a range."""
    wanted = f"a whole number from {low} to {high:,}"
    return param(
        name, f"{doc} ({wanted})", checked(TypeConverters.toInt, range(low, high + 1).__contains__, wanted, name)
    )


def integers(name: str, doc: str, low: int, most: int) -> Any:
    """A Param that is a list of whole numbers, one at least."""
    wanted = f"a list of up to {most:,} whole numbers of at least {low}"
    valid = partial(_are_integers, low, most)
    return param(name, f"{doc} ({wanted})", checked(TypeConverters.toListInt, valid, wanted, name))


def _are_integers(low: int, most: int, values: list[int]) -> bool:
    return 0 < len(values) <= most and min(values) >= low


def choice(name: str, doc: str, options: tuple[str, ...]) -> Any:
    """A Param that is one of some words."""
    wanted = "one of " + ", ".join(repr(option) for option in options)
    return param(name, f"{doc} ({wanted})", checked(TypeConverters.toString, options.__contains__, wanted, name))


def text(name: str, doc: str, wanted: str, empty: bool = False) -> Any:
    """A Param that is a text, not empty unless said so."""
    return param(name, doc, checked(TypeConverters.toString, anything if empty else bool, wanted, name))


def location(name: str, doc: str) -> Any:
    """A Param that is the path or URI of a folder."""
    return param(name, doc, checked(_path, _can_be_path, "the path or the URI of a folder", name))


def _path(value: Any) -> str:
    # What is no path here raises; the system would say so only when the folder is first used.
    return os.fsdecode(os.fsencode(TypeConverters.toString(value)))


def _can_be_path(path: str) -> bool:
    return bool(path) and "\0" not in path


def flag(name: str, doc: str) -> Any:
    """A Param that is True or False."""
    return param(name, doc, checked(TypeConverters.toBoolean, anything, "True or False", name))


def param(name: str, doc: str, converter: Callable[[Any], Any]) -> Any:
    """A Param of the class that is being defined."""
    return Param(Params._dummy(), name, doc, typeConverter=converter)
