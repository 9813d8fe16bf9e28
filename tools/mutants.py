"""Change the closed forms one operator, number or condition at a time: a test must notice each change.

``python tools/mutants.py`` takes the mutants that cosmic-ray makes of ``MODULES``, runs on
each the tests that reach the changed line, the quickest first, and fails if one survives that is not in the list of
``docs/mutants.md``. Those in the list, of which each would take all of the tests, are left out; ``--listed`` runs them.
Tests run in a fork of this process, where the mutant is imported in place of the file on disk.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
# A fork of every mutant starts pytest anew, and most are noticed within moments.
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

# Imported once, before the forks.
import hypothesis
import pytest
import scipy.optimize  # noqa: F401
import sklearn.metrics  # noqa: F401
import torch  # noqa: F401
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.ast.ast_query import ASTQuery
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from coverage import Coverage

# A change may make a list grow for ever.
_MOST_BYTES = 4 << 30
ROOT = Path(__file__).resolve().parents[1]
LISTED = ROOT / "docs" / "mutants.md"
MODULES = ("selection.solution", "selection.calibration", "statistics")
TESTS = [f"tests/core/test_{name}.py" for name in ("statistics", "selection", "binned")]
# X | None in annotations; operators that no one would write by mistake; what another operator does too.
UNUSED = re.compile(
    r"core/(ReplaceBinaryOperator_(BitOr_.*|.*_(Mod|FloorDiv|Pow|LShift|RShift|BitOr|BitAnd|BitXor))"
    r"|ReplaceComparisonOperator_(Eq|NotEq|Lt|LtE|Gt|GtE)_(Is|IsNot)"
    r"|ReplaceComparisonOperator_Is_(Eq|NotEq|Lt|LtE|Gt|GtE)"
    r"|ReplaceUnaryOperator_USub_.*)"
)


@dataclass(frozen=True)
class Mutant:
    """A module with one place changed."""

    module: str
    place: str
    line: int
    changed: str
    code: str

    def __str__(self) -> str:
        return f"{self.module}.{self.place}: {self.changed}"


def source_of(module: str) -> Path:
    path = ROOT / "bspauc_spark" / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of the module."""
    source = source_of(module).read_text()
    tree = get_ast(source)
    for name in operator_names():
        if UNUSED.fullmatch(name) or get_operator(name).arguments():
            continue
        operator = get_operator(name)()
        places = [node for node in ast_nodes(tree) for _ in operator.mutation_positions(node)]
        for occurrence, node in enumerate(places):
            code = mutate_code(source, operator, occurrence)
            changes = list(difflib.unified_diff(source.splitlines(), code.splitlines(), n=0, lineterm=""))[2:]
            changed = " ".join(line[1:].strip() for line in changes if line.startswith("+"))
            where = ASTQuery(node).get_definition_name() or "<module>"
            yield Mutant(module, where, node.start_pos[0], changed or "(nothing)", code)


class Changed(importlib.abc.MetaPathFinder):
    """Imports the mutant where the module is asked for."""

    def __init__(self, mutant: Mutant) -> None:
        self._name, self._code = f"bspauc_spark.{mutant.module}", mutant.code
        self._file = str(source_of(mutant.module))

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname != self._name:
            return None
        loader = importlib.machinery.SourceFileLoader(fullname, self._file)
        loader.get_code = lambda name: compile(self._code, self._file, "exec")  # type: ignore[method-assign]
        inside = [os.path.dirname(self._file)] if self._file.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            fullname, self._file, loader=loader, submodule_search_locations=inside
        )


def fork(work: Callable[[], int]) -> int:
    """Do the work silently in a process of its own, in at most 4 GiB; its number."""
    child = os.fork()
    if child:
        return child
    code = 2
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        code = work()
    finally:
        os._exit(code)


def run_tests(tests: Sequence[str], *plugins: object) -> int:
    options = ["-x", "-q", "--noconftest", "--assert=plain", "-p", "no:cacheprovider"]
    return int(pytest.main([*options, *tests], plugins=list(plugins)))


class Watch:
    """Notes which lines each test reaches, and how long it takes."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


class Limit:
    """Ends the process in a test that takes far longer than it did: a change may make a loop endless."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        latest = math.ceil(used.ru_utime + used.ru_stime + 5 + 10 * self._seconds[nodeid])
        resource.setrlimit(resource.RLIMIT_CPU, (latest, resource.RLIM_INFINITY))


def reach() -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    """The tests that reach each line of each module, quickest first (line 0: all), and how long each test takes."""
    with tempfile.NamedTemporaryFile("w+") as told:

        def watched() -> int:
            coverage = Coverage(data_file=None, include=[str(source_of(module)) for module in MODULES])
            coverage.start()
            watch = Watch(coverage)
            code = run_tests(TESTS, watch)
            coverage.stop()
            data = coverage.get_data()
            tests = {module: data.contexts_by_lineno(str(source_of(module))) for module in MODULES}
            json.dump({"tests": tests, "seconds": watch.seconds}, told)
            told.flush()
            return code

        _, status = os.waitpid(fork(watched), 0)
        if status:
            sys.exit("the tests fail without any change")
        found = json.loads(Path(told.name).read_text())
    seconds = found["seconds"]

    def ordered(names: Sequence[str]) -> list[str]:
        return sorted(filter(None, names), key=lambda name: seconds[name])

    lines = {
        module: {0: ordered(list(seconds)), **{int(line): ordered(names) for line, names in reached.items()}}
        for module, reached in found["tests"].items()
    }
    return lines, seconds


def survivors(every: Sequence[Mutant], processes: int) -> Iterator[Mutant]:
    """Those of the mutants that no test notices."""
    lines, seconds = reach()

    def test(mutant: Mutant) -> int:
        sys.meta_path.insert(0, Changed(mutant))
        # What runs on import, and all lines of a statement but the first, may be noted for no test.
        return run_tests(lines[mutant.module].get(mutant.line) or lines[mutant.module][0], Limit(seconds))

    waiting, running = list(reversed(every)), dict[int, Mutant]()
    while waiting or running:
        while waiting and len(running) < processes:
            mutant = waiting.pop()
            running[fork(lambda mutant=mutant: test(mutant))] = mutant
        child, status = os.wait()
        mutant = running.pop(child)
        if status == 0:
            yield mutant
        print(f"\r{len(every) - len(waiting) - len(running):,} of {len(every):,}", end="", file=sys.stderr, flush=True)


def listed() -> set[str]:
    """The survivors that ``docs/mutants.md`` explains."""
    if not LISTED.exists():
        return set()
    blocks = re.findall(r"```\n(.*?)```", LISTED.read_text(), re.DOTALL)
    return {line for block in blocks for line in block.splitlines() if line}


def main() -> None:
    asked = argparse.ArgumentParser(description="See which changes to the closed forms no test notices.")
    asked.add_argument("--processes", type=int, default=os.cpu_count())
    asked.add_argument("--matching", default="", help="only mutants whose description matches this")
    asked.add_argument("--listed", action="store_true", help="see whether the mutants of the list survive")
    given = asked.parse_args()
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    hypothesis.settings.register_profile("mutants", deadline=None, database=None, derandomize=True)
    hypothesis.settings.load_profile("mutants")
    every = [one for module in MODULES for one in mutants(module)]
    known = listed()
    stale = known - {str(one) for one in every}
    print(*(f"listed, but no mutant: {one}" for one in sorted(stale)), sep="\n")
    tested = [one for one in every if (str(one) in known) == given.listed and re.search(given.matching, str(one))]
    alive = set[str]()
    for mutant in survivors(tested, given.processes):
        alive.add(str(mutant))
        if not given.listed:
            print(f"\r{source_of(mutant.module).relative_to(ROOT)}:{mutant.line}: {mutant}", flush=True)
    print(
        f"\r{len(every):,} mutants, {len(known):,} of them in {LISTED.name}; {len(alive):,} of {len(tested):,} survive"
    )
    if given.listed:
        print(*(f"listed, but noticed: {one}" for one in tested if str(one) not in alive), sep="\n")
        sys.exit(len(alive) < len(tested))
    sys.exit(bool(alive or stale))


if __name__ == "__main__":
    main()
