"""Cells of text: which of them are numbers, which stand for a number that is not there, and which are neither."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from bspauc_spark.errors import InvalidDataError
from bspauc_spark.rows.columns import quoted

# What R, databases and spreadsheets write for a number that is not there.
_GAPS = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "\\N")
_NUMBER = r"^\s*[+-]?((\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|(?i:inf|infinity))\s*$"
# 1,234.50 and $5 and 45 %: numbers to a reader, and to nobody who computes.
_SPELLED = r"^\s*[+(-]?\s*[$€£¥]?\s*\d[\d.,' ]*[%$€£¥)]?\s*$"
_WHITE_SPACE = " \t\n\r\f\v\u00a0\u2007\u202f\u3000"
# Odd cells among numbers are taken for mistakes or gaps up to this share; beyond it the column is one of text.
_MOST_ODD = 0.1
# An error names so many different values.
_MOST_NAMED = 3
_LONGEST = 20


@dataclass(frozen=True)
class Texts:
    """Of a column of text: how many cells hold a number, and how many neither that nor a gap."""

    numbers: int
    odd: int


def is_blank(text: Column) -> Column:
    """Whether a cell has nothing in it but white space."""
    return _trimmed(text) == ""


def is_gap(text: Column, words: Collection[str] = ()) -> Column:
    """Whether a text stands for a number that is not there; ``words`` do so besides the usual ones."""
    return _trimmed(text).isin("", *_GAPS, *words)


def without(text: Column, words: Collection[str]) -> Column:
    """The text, or null where it is one of ``words``."""
    return sf.when(~_trimmed(text).isin(*words), text) if words else text


def count_texts(frame: DataFrame, names: Sequence[str], words: Collection[str]) -> dict[str, Texts]:
    """One pass over the table."""
    if not names:
        return {}
    cells = [quoted(name).cast("string") for name in names]
    sums = [sf.count_if(one) for cell in cells for one in (_is_number(cell), _is_odd(cell, words))]
    counts = frame.select(*sums).first()
    assert counts is not None
    return {name: Texts(*counts[2 * k : 2 * k + 2]) for k, name in enumerate(names)}


def check_odd(frame: DataFrame, texts: Mapping[str, Texts], words: Collection[str]) -> None:
    """Refuse columns that hold numbers but for a few cells: only the user knows what these are."""
    for name, found in texts.items():
        if 0 < found.odd <= _MOST_ODD * (found.odd + found.numbers):
            odd = _is_odd(quoted(name), words)
            raise InvalidDataError(
                f"column {name} holds numbers, but in {found.odd:,} of {frame.count():,} rows "
                f"{named(frame, name, odd)}. If no number is there, say so by --gaps {_as_words(frame, name, odd)}; if "
                f"the column holds codes, by --categorical {shlex.quote(name)}. Else mend them."
            )


def why_text(frame: DataFrame, name: str, found: Texts, words: Collection[str]) -> str:
    """Why a column is one of text that holds numbers or what looks like them; nothing if it holds neither."""
    cell = quoted(name)
    if found.numbers and not found.odd:
        return "; the table declares it as text, though it holds numbers: convert it there"
    spelled = _is_odd(cell, words) & cell.rlike(_SPELLED)
    looks = frame.where(spelled).count()
    if not found.numbers and looks <= (1 - _MOST_ODD) * found.odd:
        return ""
    example, _ = _most_frequent(frame, name, spelled if looks else _is_odd(cell, words))[0]
    return (
        f"; it is text, since {found.odd:,} of {frame.count():,} rows hold no number there, such as {example!r} "
        "(a number is written like 1234.5)"
    )


def named(frame: DataFrame, name: str, odd: Column) -> str:
    """The values of those cells of a column that are ``odd``, the most frequent first, each with its number of rows."""
    found = _most_frequent(frame, name, odd)
    listed = ", ".join(f"{value!r} ({rows:,})" for value, rows in found[:_MOST_NAMED])
    return listed + ", …" * (len(found) > _MOST_NAMED)


def _as_words(frame: DataFrame, name: str, odd: Column) -> str:
    found = _most_frequent(frame, name, odd)
    whole = len(found) <= _MOST_NAMED and all(len(value) < _LONGEST for value, _ in found)
    return shlex.join(value.strip() for value, _ in found) if whole else "WORD …"


def _most_frequent(frame: DataFrame, name: str, odd: Column) -> list[tuple[str, int]]:
    value = sf.substring(quoted(name).cast("string"), 1, _LONGEST).alias("value")
    counted = frame.where(odd).groupBy(value).agg(sf.count("*").alias("rows"))
    found = counted.orderBy(sf.desc("rows"), "value").limit(_MOST_NAMED + 1).collect()
    return [(row["value"], row["rows"]) for row in found]


def _trimmed(text: Column) -> Column:
    return sf.btrim(text, sf.lit(_WHITE_SPACE))


def _is_number(text: Column) -> Column:
    return text.rlike(_NUMBER)


def _is_odd(text: Column, words: Collection[str]) -> Column:
    return ~_is_number(text) & ~is_gap(text, words)
