"""Documentation that can go stale: the API page, the table of Params, every link, and every path that a page names."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")])
SOURCES = sorted(
    path for folder in ("bspauc_spark", "benchmarks", "jobs", "tools") for path in (ROOT / folder).rglob("*.py")
)
# A path from the root of the repository, such as bspauc_spark/theta/worker.py or docs/tuning.md.
FROM_THE_ROOT = re.compile(
    r"(?<![\w/.:$}-])(?:bspauc_spark|benchmarks|docs|jobs|notebooks|tests|tools)/[\w./-]*[\w/](?![\w*<{…])"
)
# A module in backticks: with folders it is a path from the root, without them some file must be called so.
MODULE = re.compile(r"`([\w./-]+\.py)`")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("api")


def test_the_api_page_is_what_the_docstrings_say(api: Any) -> None:
    assert api.PAGE.read_text() == api.render(), "run: python tools/api.py"


def test_editors_and_mypy_read_the_accessors_that_the_params_make(api: Any) -> None:
    assert api.STUB.read_text() == api.render_stub(), "run: python tools/api.py"


def test_the_page_of_params_names_every_param() -> None:
    from bspauc_spark import BSPAUCClassifier

    table = (ROOT / "docs" / "params.md").read_text()
    assert [param.name for param in BSPAUCClassifier().params if f"`{param.name}`" not in table] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [target for target in targets if not target.startswith(("http://", "https://", "mailto:"))]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_into_a_page_meet_a_heading(page: Path) -> None:
    targets = re.findall(r"\]\(((?!https?:)[^)#\s]*)#([^)\s]+)\)", page.read_text())
    assert [(to, anchor) for to, anchor in targets if anchor not in anchors(page.parent / to if to else page)] == []


@pytest.mark.parametrize("page", [*PAGES, *SOURCES], ids=name_of)
def test_paths_that_are_named_exist(page: Path) -> None:
    assert [path for path in FROM_THE_ROOT.findall(page.read_text()) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_that_are_named_exist(page: Path) -> None:
    names = {path.name for path in ROOT.glob("[!.]*/**/*.py")}
    named = MODULE.findall(page.read_text())
    assert [one for one in named if one not in names and not (ROOT / one).is_file()] == []


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
