"""Documentation that can go stale: the API page, the README's table of Params, links to files."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("api")


def test_the_api_page_is_what_the_docstrings_say(api: Any) -> None:
    assert api.PAGE.read_text() == api.render(), "run: python tools/api.py"


def test_editors_and_mypy_read_the_accessors_that_the_params_make(api: Any) -> None:
    assert api.STUB.read_text() == api.render_stub(), "run: python tools/api.py"


def test_the_readme_names_every_param() -> None:
    from bspauc_spark import BSPAUCClassifier

    text = (ROOT / "README.md").read_text()
    table = text[text.index("## Params") :]
    assert [param.name for param in BSPAUCClassifier().params if f"`{param.name}`" not in table] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [target for target in targets if not target.startswith(("http://", "https://", "mailto:"))]
    assert [target for target in local if not (page.parent / target).exists()] == []
