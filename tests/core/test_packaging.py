"""What setup.cfg promises about other packages' versions."""

from __future__ import annotations

import configparser
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
