"""Settings of the tests that need no Spark."""

from __future__ import annotations

from hypothesis import settings

# A busy machine makes an example slow, which says nothing about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
