"""Values of rows, and a password, that nobody may find in a message."""

from __future__ import annotations

LABEL, VALUE, SECRET = 777_555.0, 31_337.25, "hunter2"


def told(text: str) -> list[str]:
    """What of the rows and of the password a text gives away."""
    return [shown for shown in ("777555", "777,555", "7.77555", "31337", "31,337", SECRET) if shown in text]
