"""Categories that have several spellings: pandas writes True for true, and 1.0 for 1 in a column that has gaps."""

from __future__ import annotations

import re
from collections.abc import Collection

# How Spark writes a number. The text 01 is not written like this, so it is no number.
NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]+)?(E-?[0-9]+)?|Infinity)")
# Above this, different whole numbers become the same double.
EXACT = 2**53


def are_flags(labels: Collection[str]) -> bool:
    """Whether the categories of a column are true, false or both, in any letter case, each spelled in one way only."""
    spelled = {label.lower() for label in labels}
    return 0 < len(labels) == len(spelled) and spelled <= {"true", "false"}


def are_numbers(labels: Collection[str]) -> bool:
    """Whether all categories of a column are numbers as Spark writes them."""
    return all(map(NUMBER.fullmatch, labels))
