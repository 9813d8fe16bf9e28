"""How much the selection costs beyond sorting: ``solve`` against ``np.sort`` of the same scores.

Run ``python benchmarks/solve.py``. Both sides see the same unsorted float32 arrays and take turns, so that a
busy machine slows them alike; the goal is a median ratio of at most 1.3.
"""

import argparse
import json
import statistics
import time

import numpy as np

from bspauc_spark.selection import solve
from bspauc_spark.statistics import ClassScores

GOAL = 1.3


def seconds(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--negatives", type=int, default=10_000_000)
    parser.add_argument("--positives", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=11)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    s_neg = rng.standard_normal(options.negatives, dtype=np.float32)
    s_pos = rng.standard_normal(options.positives, dtype=np.float32) + np.float32(1.0)

    def sort() -> None:
        np.sort(s_pos)
        np.sort(s_neg)

    print(f"{options.positives:,} positives, {options.negatives:,} negatives, {options.repetitions} repetitions")
    print(f"{'lam':>6} {'mu':>6} {'updates':>8} {'sort s':>8} {'solve s':>8} {'ratio':>6}")
    worst = 0.0
    for lam, mu in ((0.3, 0.3), (0.1, 0.1), (1.0, 1.0), (0.3, 0.03), (0.05, 10.0)):

        def select(lam: float = lam, mu: float = mu) -> None:
            solve(ClassScores.from_array(s_pos), ClassScores.from_array(s_neg), lam, mu)

        pairs = [(seconds(sort), seconds(select)) for _ in range(options.repetitions + 1)][1:]
        ratio = statistics.median(took / sorting for sorting, took in pairs)
        sorting, took = (statistics.median(column) for column in zip(*pairs, strict=True))
        updates = solve(ClassScores.from_array(s_pos), ClassScores.from_array(s_neg), lam, mu).iterations
        verdict = "" if ratio <= GOAL else f"  above the goal of {GOAL}"
        print(f"{lam:6.2f} {mu:6.2f} {updates:8d} {sorting:8.3f} {took:8.3f} {ratio:6.2f}{verdict}")
        worst = max(worst, ratio)
    print(json.dumps({"worst": round(worst, 2)}))


if __name__ == "__main__":
    main()
