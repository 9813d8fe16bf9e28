"""Imports go one way: each room of the package knows only those that stand before it in ``ORDER``."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.glob("bspauc_spark/**/*.py")}
ORDER = (
    *("version", "errors", "liveness", "arrays", "schema", "statistics", "selection", "noise"),
    *("spark.session", "spark.compat", "rows", "theta", "baselines", "cluster", "results", "loop", "algorithm"),
    *("saved", "scorer", "spark", "serving", "model", "flavor", "estimator", "around", "reproduction", "command_line"),
)


def imported(name: str) -> set[str]:
    """Modules of the package that this one names, wherever: in functions and under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    packages = {f"{one}.__init__" for one in found}
    return (found | packages) & MODULES.keys() - {name, "bspauc_spark.__init__"}


def room(name: str) -> int:
    inside = name.removeprefix("bspauc_spark.").removesuffix(".__init__")
    return max((n for n, one in enumerate(ORDER) if f"{inside}.".startswith(f"{one}.")), key=lambda n: len(ORDER[n]))


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"bspauc_spark.__init__"}))
def test_no_module_imports_upward(name: str) -> None:
    assert [one for one in imported(name) if room(one) > room(name)] == []


def test_no_modules_import_each_other() -> None:
    list(TopologicalSorter({name: imported(name) for name in MODULES}).static_order())
