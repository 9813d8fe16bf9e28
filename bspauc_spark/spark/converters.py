"""A Param is written once: what it means, what it takes, its default; its accessors and messages come from that."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pyspark.ml.param import Param, Params, TypeConverters

from bspauc_spark.errors import InvalidParamError

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class CheckedParam(Param[T]):
    """A Param that refuses a bad value when it is set. The class attribute that holds it gives it its name.

    ``kind`` is its type, as an editor is to show it. ``learning``: it decides what is learned from given rows; other
    Params say where a fit runs and what its output is called. It can be pickled if ``convert`` and ``valid`` can, and
    with it the stages that have it.
    """

    def __init__(
        self,
        kind: str,
        doc: str,
        wanted: str,
        convert: Callable[[Any], T],
        valid: Callable[[T], bool],
        *,
        default: T | None = None,
        learning: bool = True,
    ) -> None:
        super().__init__(Params._dummy(), "", doc)
        self.kind, self.default, self.learning = kind, default, learning
        self._check = partial(_convert_and_check, convert, valid, wanted)

    def __set_name__(self, owner: type[Params], name: str) -> None:
        self.name, self.typeConverter = name, partial(self._check, name)


def declared(stage: type[Params]) -> dict[str, CheckedParam[Any]]:
    """The Params that a class and those above it declare, by name."""
    found = (one for kind in reversed(stage.__mro__) for one in vars(kind).values())
    return {one.name: one for one in found if isinstance(one, CheckedParam)}


class CheckedParams(Params):
    """What has such Params: their defaults, and errors of ours for names and values."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        defaults = {name: param.default for name, param in declared(type(self)).items()}
        self._setDefault(**{name: value for name, value in defaults.items() if value is not None})

    def _set(self, **values: Any) -> Self:
        """Set Params by name, also where ``copy`` is given values."""
        for name, value in values.items():
            if not self.hasParam(name):
                raise InvalidParamError(f"{type(self).__name__} has no Param {name!r}. explainParams() lists them.")
            if value is None:
                raise InvalidParamError(f"{name} cannot be None. Leave it out, or unset it by clear().")
        return super()._set(**values)

    def set(self, param: Param[Any], value: Any) -> None:
        """Set a Param; Spark's own would turn our error into one of its own."""
        self._shouldOwn(param)
        self._set(**{param.name: value})


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


def number(
    doc: str,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    default: float | None = None,
    learning: bool = True,
) -> CheckedParam[float]:
    """A finite number in a range."""
    opening = "(" if open_low or not math.isfinite(low) else "["
    wanted = f"a number in {opening}{low:g}, {high:g}{']' if math.isfinite(high) else ')'}"
    valid = partial(_is_between, low, high, open_low)
    convert = TypeConverters.toFloat
    return CheckedParam("float", f"{doc} ({wanted})", wanted, convert, valid, default=default, learning=learning)


def _is_between(low: float, high: float, open_low: bool, x: float) -> bool:
    return math.isfinite(x) and (low < x if open_low else low <= x) and x <= high


def integer(
    doc: str, low: int, high: int = 2**31 - 1, *, default: int | None = None, learning: bool = True
) -> CheckedParam[int]:
    """A whole number in a range."""
    wanted, valid = f"a whole number from {low} to {high:,}", range(low, high + 1).__contains__
    convert = TypeConverters.toInt
    return CheckedParam("int", f"{doc} ({wanted})", wanted, convert, valid, default=default, learning=learning)


def integers(doc: str, low: int, most: int, *, default: list[int] | None = None) -> CheckedParam[list[int]]:
    """A list of whole numbers, one at least."""
    wanted, valid = f"a list of up to {most:,} whole numbers of at least {low}", partial(_are_integers, low, most)
    return CheckedParam("list[int]", f"{doc} ({wanted})", wanted, TypeConverters.toListInt, valid, default=default)


def _are_integers(low: int, most: int, values: list[int]) -> bool:
    return 0 < len(values) <= most and min(values) >= low


def choice(
    doc: str, options: tuple[str, ...], *, default: str | None = None, learning: bool = True
) -> CheckedParam[str]:
    """One of some words."""
    wanted, valid = "one of " + ", ".join(repr(option) for option in options), options.__contains__
    convert = TypeConverters.toString
    return CheckedParam("str", f"{doc} ({wanted})", wanted, convert, valid, default=default, learning=learning)


def column(doc: str, *, default: str | None = None, empty: bool = False) -> CheckedParam[str]:
    """A column's name; ``empty`` where it may be '', for none."""
    wanted = "a column's name, or '' for none" if empty else "a column's name"
    valid = anything if empty else bool
    return CheckedParam("str", doc, wanted, TypeConverters.toString, valid, default=default, learning=False)


def location(doc: str) -> CheckedParam[str]:
    """The path or URI of a folder."""
    return CheckedParam("str", doc, "the path or the URI of a folder", _path, _can_be_path, learning=False)


def _path(value: Any) -> str:
    # What is no path here raises; the system would say so only when the folder is first used.
    return os.fsdecode(os.fsencode(TypeConverters.toString(value)))


def _can_be_path(path: str) -> bool:
    return bool(path) and "\0" not in path


def flag(doc: str, *, default: bool | None = None, learning: bool = True) -> CheckedParam[bool]:
    """True or False."""
    convert = TypeConverters.toBoolean
    return CheckedParam("bool", doc, "True or False", convert, anything, default=default, learning=learning)
