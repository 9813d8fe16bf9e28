"""The selection from histograms of very many scores: passes, seconds and the driver's memory, beside a full sort.

    python benchmarks/binned.py [--rows 100000000] [--no-sort]

Scores are made anew from a seed, four million at a time, whenever they are needed, in processes that stand for the
workers; this one is the driver. A tenth are positives. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bspauc_spark.selection import Selection, solve
from bspauc_spark.statistics import ClassScores
from bspauc_spark.statistics.binned import BinnedScores, Contents, Histogram, auc

CHUNK = 4_000_000
WORKERS = 2


def chunk(kind: str, number: int, size: int) -> Any:
    """Scores of some rows: positives higher, a fifth of the labels wrong."""
    rng = np.random.default_rng([kind == "positive", number])
    wrong = rng.random(size, dtype=np.float32) < 0.2
    return rng.standard_normal(size, dtype=np.float32) + (wrong != (kind == "positive")) * np.float32(2)


def chunks(kind: str, rows: int, worker: int) -> Any:
    for number, start in enumerate(range(0, rows, CHUNK)):
        if number % WORKERS == worker:
            yield chunk(kind, number, min(CHUNK, rows - start))


def histogram(kind: str, rows: int, worker: int) -> Histogram:
    return Histogram.merge(Histogram.of(part) for part in chunks(kind, rows, worker))


def contents(kind: str, rows: int, bins: Any, worker: int) -> Contents:
    return Contents.merge([Contents.of(part, bins) for part in chunks(kind, rows, worker)])


def megabytes() -> float:
    """This process's peak so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument(
        "--no-sort", action="store_true", help="do not compare with a full sort, which needs the memory"
    )
    args = parser.parse_args()
    sizes = {"positive": args.rows // 10, "negative": args.rows - args.rows // 10}
    before, passes = megabytes(), {"positive": 0, "negative": 0}
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:

        def fetch(kind: str, bins: Any) -> Contents:
            passes[kind] += 1
            return Contents.merge(pool.map(partial(contents, kind, sizes[kind], bins), range(WORKERS)))

        started = time.perf_counter()
        scores = {
            kind: BinnedScores(
                Histogram.merge(pool.map(partial(histogram, kind, rows), range(WORKERS))), partial(fetch, kind)
            )
            for kind, rows in sizes.items()
        }
        binned_seconds = time.perf_counter() - started
        pos, neg = scores["positive"], scores["negative"]
        started = time.perf_counter()
        found = solve(pos, neg, 0.3, 0.3)
        solve_seconds = time.perf_counter() - started
        passes_of_solve = dict(passes)
        found_auc = auc(pos, neg)
    line: dict[str, Any] = {
        "rows": args.rows,
        "driver_megabytes": round(megabytes() - before),
        "histogram_seconds": round(binned_seconds, 1),
        "solve_seconds": round(solve_seconds, 1),
        "passes": passes_of_solve,
        "bins": {kind: len(one.lows) for kind, one in scores.items()},
        "auc": found_auc,
    }
    if not args.no_sort:
        line |= compared(found, found_auc, sizes)
    print(json.dumps(line))


def compared(found: Selection, found_auc: float, sizes: dict[str, int]) -> dict[str, Any]:
    """The same from all scores, sorted here."""
    both = [
        ClassScores.merge(part for worker in range(WORKERS) for part in chunks(kind, rows, worker))
        for kind, rows in sizes.items()
    ]
    started = time.perf_counter()
    wanted = solve(*both, 0.3, 0.3)
    return {
        "exact_solve_seconds": round(time.perf_counter() - started, 1),
        "thresholds_differ_by": max(
            abs(found.tau_positive - wanted.tau_positive), abs(found.tau_negative - wanted.tau_negative)
        ),
        "weights_differ_by": max(
            abs(found.phi_positive - wanted.phi_positive), abs(found.phi_negative - wanted.phi_negative)
        ),
        "auc_differs_by": abs(found_auc - auc(*both)),
    }


if __name__ == "__main__":
    main()
