"""Pictures of a report in headless Chromium, and what it asked for: ``python tools/screenshots.py report.html docs``.

Needs Chromium and its driver, which ``bash tools/chromium.sh`` installs, and ``selenium`` of the dev extra. Prints one
line of JSON: console messages and requests beyond the page itself, of which there should be none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

SIZES = {"desktop": (1200, 900), "phone": (390, 844)}
PROGRAMS = ("chromium", "chromedriver")
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
SCROLLS_SIDEWAYS = "const page = document.documentElement; return page.scrollWidth > page.clientWidth"


def missing() -> list[str]:
    """Which of the programs are not on the PATH."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def photograph(report: Path, folder: Path | None = None) -> dict[str, list[str]]:
    """Open the page at both sizes, light and dark; save a picture of each size, light, to ``folder``."""
    found: dict[str, list[str]] = {"console": [], "requests": [], "overflow": []}
    own = report.resolve().as_uri()
    with _browser() as browser:
        for name, (width, height) in SIZES.items():
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            for scheme in ("light", "dark"):
                feature = {"name": "prefers-color-scheme", "value": scheme}
                browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
                browser.get(own)
                if browser.execute_script(SCROLLS_SIDEWAYS):
                    found["overflow"].append(name)
                if folder is not None and scheme == "light":
                    browser.save_screenshot(str(folder / f"report-{name}.png"))
                found["console"] += [entry["message"] for entry in browser.get_log("browser")]
                found["requests"] += [url for url in _requested(browser) if url != own]
    return found


@contextlib.contextmanager
def _browser() -> Iterator[Chrome]:
    """The system's Chromium, told by its own driver: nothing is downloaded."""
    options = ChromeOptions()
    chromium, driver = (shutil.which(name) for name in PROGRAMS)
    if chromium is None or driver is None:
        raise SystemExit(f"no {' and no '.join(missing())} on the PATH: bash tools/chromium.sh installs both")
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory() as profile:
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        browser = Chrome(options, ChromeService(driver))
        try:
            yield browser
        finally:
            browser.quit()


def _requested(browser: Chrome) -> list[str]:
    """The addresses that were asked for since the last call, but for those of Chromium's own first page."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [one["request"]["url"] for one in asked if not one["documentURL"].startswith("chrome:")]


def main() -> None:
    """Photograph and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path, nargs="?")
    args = parser.parse_args()
    print(json.dumps(photograph(args.report, args.folder)))


if __name__ == "__main__":
    main()
