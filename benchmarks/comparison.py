"""Methods compared over cells, each a table, a kind of wrong labels and a seed: means, ranks, wins and losses.

``±`` is the standard deviation, between the seeds, of the mean over those tables and kinds that every seed has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Counts: TypeAlias = npt.NDArray[np.intp]

# By how much a cell is won or lost, and how far below the best one is worth a look.
MARGIN, FAR_BELOW = 0.002, 0.01


class Cell(NamedTuple):
    """A table, a kind of wrong labels, and a seed."""

    table: str
    kind: str
    seed: int


Aucs: TypeAlias = dict[Cell, dict[str, float]]


def read(path: Path, only: str | None = None, called: str | None = None) -> Aucs:
    """The results of a file: of all methods, or of one ``only``, which is ``called`` so here."""
    aucs: Aucs = {}
    for row in map(json.loads, path.read_text().splitlines()):
        if only in (None, row["method"]):
            cell = Cell(row["table"], row["kind"], row["seed"])
            aucs.setdefault(cell, {})[called or row["method"]] = row["auc"]
    return aucs


def joined(several: Iterable[Aucs]) -> Aucs:
    aucs: Aucs = {}
    for one in several:
        for cell, found in one.items():
            aucs.setdefault(cell, {}).update(found)
    return aucs


@dataclass(frozen=True)
class Comparison:
    """The cells that all methods have: a row of AUCs for each, a column for each method."""

    cells: tuple[Cell, ...]
    methods: tuple[str, ...]
    aucs: Floats

    @classmethod
    def of(cls, found: Aucs, methods: Sequence[str]) -> Comparison:
        cells = tuple(cell for cell, aucs in found.items() if aucs.keys() >= set(methods))
        aucs = np.array([[found[cell][method] for method in methods] for cell in cells], dtype=float)
        return cls(cells, tuple(methods), aucs.reshape(len(cells), len(methods)))

    def where(self, wanted: Callable[[Cell], bool]) -> Comparison:
        kept = [place for place, cell in enumerate(self.cells) if wanted(cell)]
        return Comparison(tuple(self.cells[place] for place in kept), self.methods, self.aucs[kept])

    def by_kind(self) -> Iterator[tuple[str, Comparison]]:
        """Each kind that has cells, and then all together."""
        for kind in dict.fromkeys(cell.kind for cell in self.cells):
            yield kind, self.where(lambda cell, kind=kind: cell.kind == kind)  # type: ignore[misc]
        yield "all kinds", self


def ranks(aucs: Floats) -> Floats:
    """The place of each method in each cell, 1 the best; methods that tie share the mean of their places."""
    one, other = aucs[:, :, None], aucs[:, None, :]
    places: Floats = (other > one).sum(axis=2) + ((other == one).sum(axis=2) + 1) / 2
    return places


def spread(cells: Sequence[Cell], values: Floats) -> Floats:
    """Standard deviation, between the seeds, of the mean of each column; NaN if there is only one seed."""
    rows: dict[int, dict[tuple[str, str], Floats]] = {}
    for cell, row in zip(cells, values, strict=True):
        rows.setdefault(cell.seed, {})[cell.table, cell.kind] = row
    common = set.intersection(*map(set, rows.values()))
    if len(rows) < 2 or not common:
        return np.full(values.shape[1], np.nan)
    means = [np.mean([of_seed[key] for key in sorted(common)], axis=0) for of_seed in rows.values()]
    return np.asarray(np.std(means, axis=0))


def won_and_lost(aucs: Floats, own: int, margin: float = MARGIN) -> tuple[Counts, Counts]:
    """In how many cells the method of column ``own`` is more than ``margin`` above, and below, each other one."""
    gaps = aucs[:, [own]] - aucs
    return (gaps > margin).sum(axis=0), (gaps < -margin).sum(axis=0)


def far_below(found: Comparison, own: str, by: float = FAR_BELOW) -> list[tuple[Cell, float, float, str]]:
    """Cells in which ``own`` is more than ``by`` below the best: its AUC, the best one and whose; the worst first."""
    aucs, best = found.aucs[:, found.methods.index(own)], found.aucs.max(axis=1)
    owners = [found.methods[place] for place in found.aucs.argmax(axis=1)]
    rows = zip(found.cells, map(float, aucs), map(float, best), owners, strict=True)
    return sorted((row for row in rows if row[2] - row[1] > by), key=lambda row: row[1] - row[2])


def summary(aucs: Aucs, methods: Sequence[str], own: str, groups: Mapping[str, Collection[str]]) -> str:
    """In Markdown: means, ranks, wins and losses over all tables and each group of them; then what calls for a look."""
    found = Comparison.of(aucs, methods)
    texts = []
    for title, tables in {"all tables": {cell.table for cell in found.cells}, **groups}.items():
        part = found.where(lambda cell, tables=tables: cell.table in tables)  # type: ignore[misc]
        if part.cells:
            names = sorted({cell.table for cell in part.cells})
            texts += [f"## {title}: {', '.join(names)} ({len(part.cells)} cells)", _means(part)]
            texts += [_wins(part, own)] if own in methods and len(methods) > 1 else []
    if own in methods:
        texts += [f"## Cells in which {own} is more than {FAR_BELOW:g} below the best", _far_below(found, own, groups)]
    counts = ", ".join(f"{method} {sum(method in of_cell for of_cell in aucs.values())}" for method in methods)
    texts.append(f"Compared: {len(found.cells)} cells. With results: {counts}.")
    return "\n\n".join(texts)


def _means(found: Comparison) -> str:
    header, columns = ["mean AUC; mean rank"], [list(found.methods)]
    for kind, part in found.by_kind():
        places = ranks(part.aucs)
        aucs, ranked = (
            [_with_spread(*one, digits) for one in zip(values.mean(axis=0), spread(part.cells, values), strict=True)]
            for values, digits in ((part.aucs, 4), (places, 2))
        )
        header.append(kind)
        columns.append([f"{auc}; {rank}" for auc, rank in zip(aucs, ranked, strict=True)])
    return _grid(header, zip(*columns, strict=True))


def _with_spread(value: float, deviation: float, digits: int) -> str:
    return f"{value:.{digits}f}" + ("" if np.isnan(deviation) else f" ± {deviation:.{digits}f}")


def _wins(found: Comparison, own: str) -> str:
    header, columns = [f"cells that {own} wins : loses by more than {MARGIN:g} against"], [list(found.methods)]
    for kind, part in found.by_kind():
        won, lost = won_and_lost(part.aucs, found.methods.index(own))
        header.append(f"{kind} ({len(part.cells)})")
        columns.append([f"{more} : {less}" for more, less in zip(won, lost, strict=True)])
    return _grid(header, [row for row in zip(*columns, strict=True) if row[0] != own])


def _far_below(found: Comparison, own: str, groups: Mapping[str, Collection[str]]) -> str:
    def group(table: str) -> str:
        return ", ".join(title for title, tables in groups.items() if table in tables)

    rows = [
        [cell.table, group(cell.table), cell.kind, str(cell.seed), f"{auc:.4f}", f"{best:.4f}", owner]
        for cell, auc, best, owner in far_below(found, own)
    ]
    return _grid(["table", "half", "kind", "seed", own, "best", "by"], rows) if rows else "None."


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])
