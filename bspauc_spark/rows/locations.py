"""Locations as users write them, paths and URIs, and pyarrow's file systems behind them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as pafs

from bspauc_spark.errors import InvalidParamError, shown, without_credentials

_DELAYED = "allow_delayed_open"


def scheme_of(location: str) -> str | None:
    """The scheme, if it is a URI."""
    # Hadoop takes scheme:/path for a URI too, and a folder called "dbfs:" is what nobody asked for.
    named = re.match(r"([A-Za-z][\w+.-]+):/", location)
    return named[1] if named else None


@contextlib.contextmanager
def without_secrets() -> Iterator[None]:
    """Pass on what pyarrow raises without the URI that it may repeat: tracebacks are printed too."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        said = without_credentials(str(error))
        if said == str(error):
            raise
        code = error.errno if isinstance(error, OSError) else None
        # Its text would begin with the number otherwise.
        texts = (said,) if code is None else (code, without_credentials(str(error.strerror)))
        raise type(error)(*texts) from None


def _from_uri(location: str) -> tuple[pafs.FileSystem, str]:
    found: tuple[pafs.FileSystem, str]
    if location.startswith("s3://"):
        # A small file is then one request instead of three.
        joint = "&" if "?" in location else "?"
        try:
            found = pafs.FileSystem.from_uri(f"{location}{joint}{_DELAYED}=true")
            return found
        except (pa.ArrowException, ValueError) as error:
            # pyarrow 19 does not know it.
            if _DELAYED not in str(error):
                raise
    found = pafs.FileSystem.from_uri(location)
    return found


def connect(location: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URI, and the path in it."""
    _refuse_account_key(location)
    try:
        found = _from_uri(location)
    except (pa.ArrowException, ValueError) as error:
        # Some of these texts repeat the URI, and with it what must not be shown.
        why = type(error).__name__ if "://" in str(error) else str(error)
        raise InvalidParamError(
            f"{shown(location)!r} is no URI that pyarrow can use: {why}. pyarrow.fs.FileSystem.from_uri says what each "
            "kind of storage takes."
        ) from None
    return found[0], found[1].rstrip("/")


def _refuse_account_key(location: str) -> None:
    """Refuse ``abfss://container:key@account…``: pyarrow drops the key, and each request would fail or be another's."""
    user, at, _ = location.partition("://")[2].rpartition("@")
    if location.startswith(("abfs://", "abfss://")) and at and ":" in user:
        raise InvalidParamError(
            f"{shown(location)!r} holds a key, which pyarrow ignores. Leave it out and end the URI with a SAS token "
            "(?sv=…&sig=…) or a service principal (?tenant_id=…&client_id=…&client_secret=…); with neither, the "
            "environment's identity is used: AZURE_CLIENT_ID and the like, a managed identity, or az login."
        )
