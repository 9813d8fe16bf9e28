"""Test AUC of the default Params on real data sets, clean and with flipped labels; writes docs/defaults.md's table.

    python benchmarks/defaults.py --data-dir DIR [--seeds 3] [--only a9a]

Beside BSPAUC stands its twin that is not self-paced, with the same Params, at the end of training and stopped
early by a validation part with labels as noisy as the training part's, XGBoost with its defaults, and scikit-learn's
LogisticRegression, which shows how hard the split is: on a9a the test AUC of one and the same learner moves by 0.003
from split to split.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from xgboost import XGBClassifier

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.experiment import fit, load, split

CASES = [
    ("a9a", 0.0, 0.0, 0.903),
    ("a9a", 0.1, 0.0, None),
    ("a9a", 0.2, 0.0, 0.897),
    ("a9a", 0.3, 0.0, None),
    ("a9a", 0.3, 0.25, 0.862),
    ("cod-rna", 0.0, 0.0, None),
    ("cod-rna", 0.2, 0.0, None),
    ("cod-rna", 0.3, 0.25, 0.983),
    ("skin_nonskin", 0.0, 0.0, None),
    ("skin_nonskin", 0.2, 0.0, None),
    ("skin_nonskin", 0.3, 0.25, None),
    ("skin_nonskin", 0.3, 0.5, None),
    ("shuttle", 0.0, 0.0, None),
    ("shuttle", 0.1, 0.0, None),
]


def describe(proportion: float, far: float) -> str:
    if not proportion:
        return "none"
    return f"{proportion:.0%} " + (f"among the farthest {1 - far:.0%}" if far else "uniform")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="one data set")
    parser.add_argument("--flips", default="", help="only rows whose flips are described so, for example farthest")
    parser.add_argument("--params", type=json.loads, default={}, help="JSON of Params to change")
    args = parser.parse_args()
    columns = [
        "BSPAUC",
        "not self-paced",
        "the same, stopped early",
        "LogisticRegression",
        "XGBoost",
        "goal",
        "seconds",
    ]
    print(f"| data | flipped labels | {' | '.join(columns)} |")
    print("|---" * (2 + len(columns)) + "|")
    for name, proportion, far, goal in CASES:
        if (args.only and name != args.only) or args.flips not in describe(proportion, far):
            continue
        x, y = load(name, args.data_dir)
        found: dict[str, list[float]] = {"paced": [], "twin": [], "early": [], "linear": [], "trees": [], "seconds": []}
        for seed in range(args.seeds):
            data = split(x, y, seed, proportion, far)
            linear = LogisticRegression(max_iter=1000).fit(data.x, data.label)
            found["linear"].append(data.test_auc(linear.decision_function(data.x_test)))
            trees = XGBClassifier(n_jobs=1).fit(data.x, data.label)
            found["trees"].append(data.test_auc(trees.predict_proba(data.x_test)[:, 1]))
            for kind, params in (
                ("paced", {}),
                ("twin", {"selfPaced": False}),
                ("early", {"selfPaced": False, "validation": 0.2}),
            ):
                fitted, seconds = fit(data, seed, **{**args.params, **params})
                found[kind].append(data.test_auc(fitted.score(data.x_test)))
                if kind == "paced":
                    found["seconds"].append(seconds)
        means = {kind: np.mean(values) for kind, values in found.items()}
        stds = {kind: np.std(values) for kind, values in found.items()}
        cells = [f"{means[kind]:.4f} ± {stds[kind]:.4f}" for kind in ("paced", "twin", "early", "linear", "trees")]
        wanted = f"≥ {goal:.3f}" if goal else ""
        print(
            f"| {name} | {describe(proportion, far)} | {' | '.join(cells)} | {wanted} | {means['seconds']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
