"""What tests share stands in ``tests/helpers``: a test module can be moved, or run alone, and no other one notices."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MODULES = sorted(str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_only_helpers_are_imported(name: str) -> None:
    nodes = list(ast.walk(ast.parse((TESTS / name).read_text())))
    named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    named += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    ours = [one for one in named if one == "tests" or one.startswith("tests.")]
    assert [one for one in ours if not one.startswith("tests.helpers")] == []
