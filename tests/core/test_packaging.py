"""What setup.cfg promises about other packages' versions."""

from __future__ import annotations

import ast
import configparser
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_lowest_versions_of_setup_cfg_are_those_that_are_tested() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    wanted = lines(setup["options"]["install_requires"]) + lines(setup["options.extras_require"]["dev"])
    lowest = {
        canonicalize_name(requirement.name): Version(specifier.version)
        for requirement in map(Requirement, wanted)
        for specifier in requirement.specifier
        if specifier.operator == ">="
    }
    pins = [line.split("==") for line in lines((ROOT / "constraints-lowest.txt").read_text())]
    tested = {canonicalize_name(name): Version(version) for name, version in pins}
    assert len(lowest) == len(wanted)
    assert {name: tested.get(name) for name in lowest} == lowest


def test_what_every_module_imports_is_what_setup_cfg_installs() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    installed = {Requirement(line).name for line in lines(setup["options"]["install_requires"])}
    # pyyaml's module has another name, and pyspark brings py4j.
    known = {*sys.stdlib_module_names, *installed, "bspauc_spark", "yaml", "py4j"}
    imported = set[str]()
    for path in (ROOT / "bspauc_spark").rglob("*.py"):
        # What stands in a function or below TYPE_CHECKING is not needed by all.
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
    assert imported - known == set()
