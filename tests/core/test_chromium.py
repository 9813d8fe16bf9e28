"""The report in a real browser: headless Chromium, both sizes, light and dark."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.helpers.summaries import sample_summary

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("playwright", reason="pip install playwright")
pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), reason="there is no Chromium here"
)


def test_the_report_opens_without_errors_requests_or_sideways_scrolling(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import screenshots
    finally:
        sys.path.pop(0)
    report = sample_summary().report(tmp_path / "report.html")
    found = screenshots.photograph(report, tmp_path)
    assert found == {"console": [], "requests": [], "overflow": []}
    for name in screenshots.SIZES:
        assert (tmp_path / f"report-{name}.png").read_bytes().startswith(b"\x89PNG")
