"""How many of the most suspicious training rows have a flipped label: ours against cleanlab, in one run.

    python benchmarks/audit.py --data-dir DIR [--seeds 3]

Ours is fitted with the default Params and ranks by the audit's ``suspicion`` and, for comparison, by the raw loss.
cleanlab ranks by 5-fold cross-validated probabilities, by ``filter.find_label_issues`` and by
``rank.get_label_quality_scores``; the one that is better on average is shown. Needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from xgboost import XGBClassifier

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.defaults import describe
from benchmarks.experiment import Split, fit, load, split
from bspauc_spark.scorer import LossCurves
from bspauc_spark.selection.label_noise import estimate_label_noise
from bspauc_spark.statistics import ClassScores

CASES = [("a9a", 0.2, 0.0, 0.97), ("a9a", 0.3, 0.25, None)]
TOPS = (100, 1000)
OURS, LOSS = "BSPAUC, suspicion", "BSPAUC, raw loss"
LEARNERS = {
    "cleanlab, LogisticRegression": lambda _: LogisticRegression(max_iter=1000),
    "cleanlab, XGBoost": lambda seed: XGBClassifier(n_estimators=100, tree_method="hist", random_state=seed),
}


def our_rankings(data: Split, seed: int) -> dict[str, np.ndarray]:
    """Training rows, most suspicious first, by what ``BSPAUCModel.audit`` computes."""
    fitted, _ = fit(data, seed)
    outcome, scores = fitted.outcome, fitted.score(data.x)
    noise = estimate_label_noise(*(ClassScores.from_array(scores[kind]) for kind in (data.label, ~data.label)))
    curves = LossCurves.of(outcome.scores.positive, outcome.scores.negative, outcome.selection)
    return {
        OURS: descending(noise.suspicion(scores, data.label)),
        LOSS: descending(curves.losses(scores, data.label)),
    }


def cleanlab_rankings(data: Split, seed: int, learner: object) -> dict[str, np.ndarray]:
    """The same by cleanlab: the issues it finds, and all rows by the quality of their label."""
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    labels = data.label.astype(int)
    probabilities = cross_val_predict(learner, data.x, labels, cv=folds, method="predict_proba")
    return {
        "issues": find_label_issues(labels, probabilities, return_indices_ranked_by="self_confidence", n_jobs=1),
        "quality": descending(-get_label_quality_scores(labels, probabilities, method="self_confidence")),
    }


def descending(values: np.ndarray) -> np.ndarray:
    return np.argsort(-values, kind="stable")


def precisions(ranking: np.ndarray, flipped: np.ndarray) -> list[float]:
    return [float(flipped[ranking[:top]].mean()) for top in TOPS]


def measure(data: Split, seed: int) -> dict[tuple[str, str], list[float]]:
    """Precision at each of ``TOPS`` by method and variant of it."""
    found = {(name, ""): precisions(ranking, data.flipped) for name, ranking in our_rankings(data, seed).items()}
    for name, learner in LEARNERS.items():
        for variant, ranking in cleanlab_rankings(data, seed, learner(seed)).items():
            found[name, variant] = precisions(ranking, data.flipped)
    return found


def best_variant(runs: list[dict[tuple[str, str], list[float]]], name: str, place: int) -> np.ndarray:
    """A method's precisions over the seeds, by its variant with the highest mean."""
    variants = [key for key in runs[0] if key[0] == name]
    return max((np.array([run[key][place] for run in runs]) for key in variants), key=np.mean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    methods = [OURS, LOSS, *LEARNERS]
    print(f"| data | flipped labels | among the top | {' | '.join(methods)} | goal |")
    print("|" + "---|" * (len(methods) + 4))
    for name, proportion, far, goal in CASES:
        x, y = load(name, args.data_dir)
        runs = [measure(split(x, y, seed, proportion, far), seed) for seed in range(args.seeds)]
        for place, top in enumerate(TOPS):
            cells = [best_variant(runs, method, place) for method in methods]
            shown = " | ".join(f"{np.mean(cell):.3f} ± {np.std(cell):.3f}" for cell in cells)
            wanted = f"≥ {goal:.2f}" if goal and top == 1000 else ""
            print(f"| {name} | {describe(proportion, far)} | {top:,} | {shown} | {wanted} |", flush=True)


if __name__ == "__main__":
    main()
