"""The package's own errors and warnings, and what messages say of places and causes.

Every error derives from ``BSPAUCError``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class BSPAUCError(Exception):
    """Base of every error that the package raises on purpose."""

    weights: Mapping[str, Any] | None = None
    """If it ended a fit, the last θ that was good, by name; that of the best round if workers can no longer say."""
    outcome: Any = None
    """The rounds that were finished, an ``algorithm.Outcome``; without scores if these were in bins of lost workers."""
    model: Any = None
    """The ``BSPAUCModel`` of these rounds, if there were any and their scores are there."""


class BSPAUCWarning(UserWarning):
    """Something went on, but not as asked, and the user can act on it."""


class InvalidScoresError(BSPAUCError, ValueError):
    """Scores of one class that cannot be ranked: none at all, not 1-d, NaN or infinite."""


class InvalidPaceError(BSPAUCError, ValueError):
    """A λ, μ, ν, kept fraction or start outside its range."""


class CollapseError(BSPAUCError):
    """The selection emptied one class, so no pair is left to learn from."""


class InvalidParamError(BSPAUCError, ValueError):
    """A Param outside its range, or Params that contradict each other."""


class InvalidDataError(BSPAUCError, ValueError):
    """A DataFrame that cannot be fitted or scored: no rows, a column that is missing or of the wrong type."""


class InvalidLabelError(InvalidDataError):
    """Labels that are missing or not numbers, or a class without rows."""


class InvalidFeaturesError(InvalidDataError):
    """Features that are missing, not finite, or of differing sizes."""


class StagingError(BSPAUCError):
    """The staged rows cannot be written or read."""


class DivergedError(BSPAUCError):
    """Training gave numbers that are not finite, or a loss that explodes, at every learning rate that was tried."""


class WorkerError(BSPAUCError):
    """A worker raised something, or workers were lost once too often; the message carries what is known."""


class PlacementError(BSPAUCError):
    """The session cannot run the workers that were asked for."""


class LearnerError(BSPAUCError):
    """A classifier that ``SelfPacedClassifier`` was given failed, or gave scores that cannot be ranked."""


class CheckpointError(BSPAUCError):
    """A checkpoint that belongs to another fit, or that cannot be written or read."""


class DeviceError(BSPAUCError):
    """The device asked for is not there."""


class MalformedError(BSPAUCError, ValueError):
    """What a file holds is not what belongs there; who reads the file says which one it is."""


class ModelFormatError(BSPAUCError):
    """A saved model that cannot be read: damaged, or written in another format."""


_VALUE = r"(\s*=\s*)(?:'[^']*'|\"[^\"]*\"|%s*[^\s;&'\",).])"
_NAMED = [
    re.compile(rf"(?i)\b({names}){_VALUE % characters}")
    for names, characters in (
        # Of these, the value is a query itself.
        (r"sharedaccesssignature|sas[_-]?token", r"[^\s;'\"]"),
        (r"sig|pwd|[\w-]*(?:password|passwd|secret|token|signature|credential)s?", r"[^\s;&'\"]"),
        (r"[\w-]*(?:account|access|secret|shared|private|api)[\w-]*key", r"[^\s;&'\"]"),
    )
]
# What stands before the @ of their URIs is a container, unless it has a colon; elsewhere it is a user or a token.
_STORES = ("abfs", "abfss", "gs", "gcs", "hdfs", "s3", "viewfs", "wasb", "wasbs")


def shown(location: str) -> str:
    """A location as messages may show it: without the credentials that a URI can hold, well formed or not."""
    uri = re.fullmatch(r"([A-Za-z][\w+.-]+)(://?)(.*)", location, re.DOTALL)
    if not uri:
        return without_named_secrets(location)
    scheme, slashes, rest = uri.groups()
    user, at, place = rest.rpartition("@")
    # abfss://container@account has no secret there, s3://key:secret@bucket has, and it may hold / ? # as they are.
    if at and (":" in user or scheme not in _STORES):
        rest = place
    elif not at and re.match(r"[^/?#]*:(?!\d+([/?#]|$))", rest):
        rest = "…"
    return scheme + slashes + re.split("[?#]", rest)[0]


def without_credentials(text: str) -> str:
    """A text for messages and for MLflow: URIs in it as they may be shown, and no named secrets."""
    # A word's last punctuation is the sentence's.
    shown_uris = re.sub(r"[A-Za-z][\w+.-]+:/\S*?(?=['\"),.:;}\]]*(\s|$))", lambda uri: shown(uri[0]), text)
    return without_named_secrets(shown_uris)


def without_named_secrets(text: str) -> str:
    """``text`` without the values of ``AccountKey=…``, ``sig=…``, ``password=…`` and the like."""
    for named in _NAMED:
        text = named.sub(lambda found: f"{found[1]}{found[2]}…", text)
    return text


def cause(error: Exception) -> str:
    """Why, in one line without credentials; of what Java raised, the file and the innermost cause."""
    said = without_credentials(str(error).strip())
    causes: list[str] = re.findall(r"^(?:Caused by)?: (.*)", said, re.MULTILINE)
    file = re.search(r"reading file (\S+?)\.? ", said)
    if causes:
        return causes[-1] + (f" ({file[1]})" if file else "")
    return (said.splitlines() or [type(error).__name__])[0]


def reason(error: OSError) -> str:
    """Why the system refuses a place that the message names itself."""
    return without_credentials(error.strerror) if error.strerror else cause(error)
