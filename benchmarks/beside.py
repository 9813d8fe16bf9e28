"""Test AUC of regularised XGBoost, alone and with the self-paced loop around it, on data with flipped labels.

    python -m benchmarks.beside --data-dir DIR [--only a9a cod-rna skin_nonskin] [--seeds 0 1]

The training part is three quarters of the rows, at most 60,000 of them; its labels are wrong in 20 % of all rows, or in
30 %, drawn from the 75 % that lie farthest from a hyperplane. The test part has true labels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import around
from benchmarks.defaults import describe
from benchmarks.experiment import load, split
from benchmarks.tables import REGULARISED, xgboost
from bspauc_spark.around.arrays import ArraySide
from bspauc_spark.around.rounds import self_paced
from bspauc_spark.selection.pace import AutomaticPace

NAMES = ("a9a", "cod-rna", "skin_nonskin")
FLIPS = ((0.2, 0.0), (0.3, 0.25))
MOST_ROWS = 80_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    args = parser.parse_args()
    print(
        "| data | flipped labels | seed | XGBoost | self-paced around it | rows left out | verdict |\n"
        + "|---" * 7
        + "|"
    )
    for name in args.only:
        x, y = load(name, args.data_dir)
        rows = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
        x, y = np.asarray(x.toarray() if hasattr(x, "toarray") else x, dtype=np.float32)[rows], y[rows]
        for proportion, far in FLIPS:
            for seed in args.seeds:
                data = split(x, y, seed, proportion, far)
                bare = data.test_auc(xgboost(**REGULARISED)(data, seed))
                side = ArraySide(data.x, data.label, [around.xgboost(**REGULARISED)(seed)], 3, seed)
                with self_paced(side, AutomaticPace(None, 1, nu=1.0)) as found:
                    ours = data.test_auc(side.scores(found, data.x_test)) if found.pays else bare
                cells = [name, describe(proportion, far), str(seed), f"{bare:.4f}", f"{ours:.4f}"]
                print(f"| {' | '.join([*cells, 'yes' if found.pays else 'no', found.why])} |", flush=True)


if __name__ == "__main__":
    main()
