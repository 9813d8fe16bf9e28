"""What the estimate of label noise claims where the truth is known and the score is the best there is.

    python -m benchmarks.truths [--only linear] [--rows 5000,50000] [--seeds 0,1] [--results FILE]

A truth is two densities or a probability along one number, so that the log odds of "positive" are known for every row.
They are the score, or the probability itself is, which has the same order on another scale. Of the labels, none are
wrong, or a share of the positives is missed, or so many negatives are labelled positive that they are that share of the
labelled positives, or both. Shares of positives are 2, 10 and 50 % (40 % where the probability rises from 0 to 0.5).

*Claimed* is the larger of the two wrong shares that clean labels are said to have, *accused* the rows with a suspicion
above 0.5, *left out* the rows that the automatic pace leaves out, each in the worst cell of a truth. *Error* is the
estimated wrong share of a class less the true one; of those that are truly 10 % or more the table counts how many are
found, within 0.1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bspauc_spark.selection.label_noise import estimate_label_noise
from bspauc_spark.selection.pace import AutomaticPace
from bspauc_spark.statistics import ClassScores

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Draw: TypeAlias = Callable[[float, int, np.random.Generator], tuple[Floats, Bools]]

SHARES = (0.02, 0.1, 0.5)
NOISE = (0.05, 0.2, 0.4)
SCALES: dict[str, Callable[[Floats], Floats]] = {"log odds": lambda odds: odds, "probability": expit}


def classes(positive: Any, negative: Any) -> Draw:
    """Two densities; the log odds are those of their ratio."""

    def draw(share: float, rows: int, rng: np.random.Generator) -> tuple[Floats, Bools]:
        truth = rng.random(rows) < share
        x = np.where(truth, positive.rvs(rows, random_state=rng), negative.rvs(rows, random_state=rng))
        return positive.logpdf(x) - negative.logpdf(x) + np.log(share / (1 - share)), truth

    return draw


def curve(probability: Callable[[Floats, float], Floats]) -> Draw:
    """P(positive | x) for a standard normal x, moved along x until the share of positives is right."""

    def draw(share: float, rows: int, rng: np.random.Generator) -> tuple[Floats, Bools]:
        grid = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
        moved = brentq(lambda shift: probability(grid, shift).mean() - share, -20, 20)
        p = np.clip(probability(rng.normal(size=rows), moved), 1e-12, 1 - 1e-12)
        return np.log(p / (1 - p)), rng.random(rows) < p

    return draw


def linear(top: float) -> Draw:
    """P(positive | x) = ``top`` · x, where x has a beta density with the right mean: a rise from 0 to ``top``."""

    def draw(share: float, rows: int, rng: np.random.Generator) -> tuple[Floats, Bools]:
        # No density has a mean beyond 1.
        mean = min(share / top, 0.8)
        p = top * rng.beta(mean / (1 - mean), 1.0, rows) if mean > 0.5 else top * rng.beta(1.0, 1 / mean - 1, rows)
        p = np.clip(p, 1e-12, 1 - 1e-12)
        return np.log(p / (1 - p)), rng.random(rows) < p

    return draw


class Clusters:
    """Half of the positives are far from the negatives, half among them."""

    def rvs(self, rows: int, random_state: np.random.Generator) -> Floats:
        return np.where(random_state.random(rows) < 0.5, 5.0, 1.0) + random_state.normal(size=rows)

    def logpdf(self, x: Floats) -> Floats:
        return np.logaddexp(stats.norm(5).logpdf(x), stats.norm(1).logpdf(x)) - np.log(2)


@dataclass(frozen=True)
class Truth:
    """How rows are drawn, and whether the order ends in rows of one class: only then is there a rate to see."""

    draw: Draw
    pure: bool = False


TRUTHS = {
    "logistic, slope 5": Truth(curve(lambda x, shift: expit(5 * (x - shift))), pure=True),
    "logistic, slope 1.5": Truth(curve(lambda x, shift: expit(1.5 * (x - shift)))),
    "probit, slope 2": Truth(curve(lambda x, shift: stats.norm.cdf(2 * (x - shift))), pure=True),
    "linear, 0 to 0.5": Truth(linear(0.5)),
    "linear, 0 to 1": Truth(linear(1.0)),
    "Gaussians, 4 apart": Truth(classes(stats.norm(4), stats.norm(0)), pure=True),
    "Gaussians, 3 apart": Truth(classes(stats.norm(3), stats.norm(0)), pure=True),
    "Gaussians, 1.5 apart": Truth(classes(stats.norm(1.5), stats.norm(0))),
    "Gaussians, 1 apart, positives' sd 2": Truth(classes(stats.norm(1, 2), stats.norm(0))),
    "Gaussians, 1 apart, negatives' sd 2": Truth(classes(stats.norm(1), stats.norm(0, 2))),
    "Gaussians, 3 apart, positives' sd 2": Truth(classes(stats.norm(3, 2), stats.norm(0))),
    "Gaussians, 3 apart, negatives' sd 2": Truth(classes(stats.norm(3), stats.norm(0, 2))),
    "t with 2 degrees, 3 apart": Truth(classes(stats.t(2, 3), stats.t(2))),
    "two clusters": Truth(classes(Clusters(), stats.norm(0))),
}


def labels(truth: Bools, missed: float, wrong: float, rng: np.random.Generator) -> Bools:
    """``missed`` of the positives are labelled negative; ``wrong`` of the labelled positives are negatives."""
    label = truth & (rng.random(truth.size) >= missed)
    negatives = np.flatnonzero(~truth)
    count = min(round(wrong / (1 - wrong) * int(label.sum())), negatives.size)
    label[rng.choice(negatives, count, replace=False)] = True
    return label


def kinds() -> Iterator[tuple[float, float]]:
    yield 0.0, 0.0
    for share in NOISE:
        yield from ((share, 0.0), (0.0, share), (share, share))


def cells(name: str, truth: Truth, rows: int, seed: int) -> Iterator[dict[str, Any]]:
    """One line for each share of positives, kind of noise and scale of the score."""
    for share in SHARES:
        rng = np.random.default_rng([seed, rows, round(100 * share)])
        odds, true = truth.draw(share, rows, rng)
        for missed, wrong in kinds():
            label = labels(true, missed, wrong, rng)
            for scale, shown in SCALES.items():
                found = judge(shown(odds).astype(np.float32), true, label)
                yield {"truth": name, "rows": rows, "share": share, "seed": seed, "scale": scale} | {
                    "missed": missed,
                    "wrong": wrong,
                    **found,
                }


def judge(scores: npt.NDArray[np.float32], truth: Bools, label: Bools) -> dict[str, Any]:
    """True and estimated wrong shares; of clean labels also the rows that are accused or left out."""
    pos, neg = ClassScores.from_array(scores[label]), ClassScores.from_array(scores[~label])
    noise = estimate_label_noise(pos, neg)
    actual = float((~truth)[label].mean()), float(truth[~label].mean())
    found: dict[str, Any] = {"actual": actual, "estimated": noise.wrong_shares}
    if not (label != truth).any():
        V, U = AutomaticPace(None, rounds=1, nu=1.0).select(1, pos, neg, None).fractions
        found["left_out"] = 1 - (V * label.sum() + U * (~label).sum()) / label.size
        found["accused"] = float((noise.suspicion(scores, label) > 0.5).mean())
    return found


def table_of_clean(lines: list[dict[str, Any]]) -> str:
    heads = [f"{what}, {scale}" for scale in SCALES for what in ("claimed", "accused", "left out")]
    shown = [f"| truth | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name in dict.fromkeys(line["truth"] for line in lines):
        cells = []
        for scale in SCALES:
            clean = [line for line in lines if (line["truth"], line["scale"]) == (name, scale) and "left_out" in line]
            cells.append(f"{max(max(line['estimated']) for line in clean):.3f}")
            cells += [f"{max(line[key] for line in clean):.1%}" for key in ("accused", "left_out")]
        shown.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(shown)


def table_of_noise(lines: list[dict[str, Any]], scale: str) -> str:
    heads = "found, 2 % positives | 10 % | 50 % | lowest error | highest error"
    shown = [f"| truth, score: {scale} | rows | {heads} |", "|---|---|---|---|---|---|---|"]
    for name, rows in dict.fromkeys((line["truth"], line["rows"]) for line in lines):
        noisy = [
            (line["share"], *pair)
            for line in lines
            if (line["truth"], line["rows"], line["scale"]) == (name, rows, scale) and "left_out" not in line
            for pair in zip(line["actual"], line["estimated"], strict=True)
        ]
        share, actual, estimated = np.array(noisy).T
        error = estimated - actual
        found = [np.abs(error[(share == one) & (actual >= 0.1)]) <= 0.1 for one in SHARES]
        mark = " (pure ends)" if TRUTHS[name].pure else ""
        counts = " | ".join(f"{some.sum()} of {some.size}" for some in found)
        shown.append(f"| {name}{mark} | {rows:,} | {counts} | {error.min():+.2f} | {error.max():+.2f} |")
    return "\n".join(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers: Any = lambda text: [int(one) for one in text.split(",")]  # noqa: E731
    parser.add_argument("--only", default="", help="truths whose name has this in it")
    parser.add_argument("--rows", type=numbers, default=[5_000, 50_000])
    parser.add_argument("--seeds", type=numbers, default=[0, 1])
    parser.add_argument("--results", type=Path, help="all cells as lines of JSON")
    args = parser.parse_args()
    chosen = {name: truth for name, truth in TRUTHS.items() if args.only in name}
    lines = [
        line
        for name, truth in chosen.items()
        for rows in args.rows
        for seed in args.seeds
        for line in cells(name, truth, rows, seed)
    ]
    if args.results:
        args.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(table_of_clean(lines), *(table_of_noise(lines, scale) for scale in SCALES), sep="\n\n")


if __name__ == "__main__":
    main()
