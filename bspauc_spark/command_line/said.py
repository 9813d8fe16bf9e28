"""What Spark and Java say of a failure, without their codes and the names of their classes."""

from __future__ import annotations

import re

from bspauc_spark.errors import cause

_CODES = re.compile(r"^\[[A-Z0-9_.]+\] |;?\.? *SQLSTATE: \w+;?.*$")
# Some names say all there is to say: UnknownHostException.
_CLASS = re.compile(r"^(?:[a-z]\w*\.)+(?:(?:Runtime|IO)?Exception: )?(?=\S)")


def plain(error: Exception) -> str:
    """Why, in one line and in words for a user; it ends without a full stop."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _CLASS.sub("", _CODES.sub("", cause(error))).rstrip(". ")
