"""Pictures of a report in headless Chromium, and what it asked for: ``python tools/screenshots.py report.html docs``.

Needs ``pip install playwright`` and a Chromium on the PATH. Prints one line of JSON: console messages and requests
beyond the page itself, of which there should be none.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

SIZES = {"desktop": (1200, 900), "phone": (390, 844)}


def photograph(report: Path, folder: Path | None = None) -> dict[str, object]:
    """Open the page at both sizes, light and dark; save a picture of each size, light, to ``folder``."""
    found: dict[str, object] = {"console": [], "requests": [], "overflow": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        for name, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                _listen(page, report, found)
                page.goto(report.resolve().as_uri())
                if page.evaluate("document.documentElement.scrollWidth") > width:
                    found["overflow"].append(name)  # type: ignore[attr-defined]
                if folder is not None and scheme == "light":
                    page.screenshot(path=folder / f"report-{name}.png")
                page.close()
        browser.close()
    return found


def _listen(page: Page, report: Path, found: dict[str, object]) -> None:
    page.on("console", lambda message: found["console"].append(message.text))  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: found["console"].append(str(error)))  # type: ignore[attr-defined]
    own = report.resolve().as_uri()
    page.on("request", lambda request: request.url == own or found["requests"].append(request.url))  # type: ignore[attr-defined]


def _chromium() -> str:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise SystemExit("no Chromium on the PATH")
    return path


def main() -> None:
    """Photograph and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path, nargs="?")
    args = parser.parse_args()
    print(json.dumps(photograph(args.report, args.folder)))


if __name__ == "__main__":
    main()
