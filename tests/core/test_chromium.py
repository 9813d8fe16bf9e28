"""The report in a real browser: headless Chromium, both sizes, light and dark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.summaries import sample_summary

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import screenshots  # noqa: E402

sys.path.pop(0)

if screenshots.missing():
    pytest.skip(f"no {' and no '.join(screenshots.missing())} here: bash tools/chromium.sh", allow_module_level=True)


def test_the_report_opens_without_errors_requests_or_sideways_scrolling(tmp_path: Path) -> None:
    report = sample_summary().report(tmp_path / "report.html")
    found = screenshots.photograph(report, tmp_path)
    assert found == {"console": [], "requests": [], "overflow": []}
    for name in screenshots.SIZES:
        assert (tmp_path / f"report-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_that_does_all_of_that_is_told_from_the_report(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<img src=other.png><p style='width: 800px'>wide<script>console.error('oh')</script>")
    found = screenshots.photograph(page)
    assert found["overflow"] == ["phone", "phone"]
    assert found["requests"] == [(tmp_path / "other.png").as_uri()] * 4
    assert sum('"oh"' in message for message in found["console"]) == 4
