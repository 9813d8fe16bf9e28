"""Categories that have several spellings: true is True to pandas, and a gap in their column makes 1.0 of a 1."""

from __future__ import annotations

import re
from collections.abc import Collection

# Spark's text of a number. That of a text column need not be one: 01 is not.
NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]+)?(E-?[0-9]+)?|Infinity)")
# A whole number above this has neighbours that are the same double.
EXACT = 2**53


def are_flags(labels: Collection[str]) -> bool:
    """Whether a column's categories are true, false or both, in whatever letters, but each in one way."""
    spelled = {label.lower() for label in labels}
    return 0 < len(labels) == len(spelled) and spelled <= {"true", "false"}


def are_numbers(labels: Collection[str]) -> bool:
    """Whether a column's categories are all numbers as Spark writes them."""
    return all(map(NUMBER.fullmatch, labels))
