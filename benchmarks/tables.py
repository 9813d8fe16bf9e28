"""Test AUC on real tables that nobody tuned to, with right and with wrong labels: BSPAUC, its twin, and five rivals.

Beside them is ``SelfPacedClassifier``'s loop around two of the rivals, and its blend of these and BSPAUC.

    python -m benchmarks.tables --tables DIR --results FILE [--only cardio,vowels] [--kinds clean,far20] [--seeds 0,1]
    python -m benchmarks.tables --results FILE --summary [--beside FILE …] [--against FILE --as NAME]

DIR has a file NAME.npz for each table, with rows ``X`` and true labels ``y`` of 0 and 1. A cell is a table, a kind of
wrong labels and a seed, which splits, draws the wrong labels and is the learner's. Each fit is a line of JSON, which is
appended to FILE at once; what FILE has is not run again. At the end the summary of all lines is printed in Markdown.

The training part is three quarters of the rows; it and the test part, whose labels are true, have at most 20,000. Its
labels are wrong in none (*clean*), in 20 % of all rows (*uniform20*), in 20 % of all rows, drawn from the 75 % that lie
farthest from the hyperplane of a logistic regression on the true labels (*far20*), or in 40 % of the positives
(*missed40*). LogisticRegression gets features that are standardised by the training part, all others get them as they
are. A fit that collapses or diverges counts as guessing, 0.5.

Only cells that all compared methods have are compared; ``±`` is the standard deviation between the seeds. Choose by the
choosing half of the tables, and quote the reporting half.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import around
from benchmarks.comparison import Aucs, Cell, Counts, Floats, joined, read, summary
from benchmarks.experiment import Split
from bspauc_spark import BSPAUCClassifier
from bspauc_spark.errors import CollapseError, DivergedError
from bspauc_spark.noise import BoolArray, flip_labels
from bspauc_spark.reproduction.methods import fit_arrays

Learner: TypeAlias = Callable[[Split, int], Any]

OURS, TWIN, BLEND = "bspauc", "bspauc-twin", "blend"
KINDS = ("clean", "uniform20", "far20", "missed40")
HALVES = {
    "choosing": ("annthyroid", "cardio", "landsat", "optdigits", "shuttle", "vowels"),
    "reporting": ("campaign", "fault", "letter", "PageBlocks", "SpamBase", "Wilt"),
}
MOST_ROWS = 20_000


def parts(y: BoolArray, seed: int, most: int = MOST_ROWS) -> tuple[Counts, Counts]:
    """Training and test rows, three to one, stratified; of each at most ``most``, stratified again."""

    def thinned(rows: Counts) -> Counts:
        if len(rows) <= most:
            return rows
        return np.asarray(train_test_split(rows, train_size=most, stratify=y[rows], random_state=seed)[0])

    train, test = train_test_split(np.arange(len(y)), test_size=0.25, stratify=y, random_state=seed)
    return thinned(train), thinned(test)


def wrong(kind: str, x: Floats, y: BoolArray, seed: int) -> BoolArray:
    """Which labels of the training part are wrong; its features are standardised."""
    if kind == "uniform20":
        return flip_labels(x, y, 0.2, 0.0, seed)
    if kind == "far20":
        return flip_labels(x, y, 0.2, 0.25, seed)
    mask = np.zeros(len(y), dtype=bool)
    if kind == "missed40":
        positives = np.flatnonzero(y)
        mask[np.random.default_rng(seed).choice(positives, round(0.4 * len(positives)), replace=False)] = True
    return mask


def split(x: Floats, y: BoolArray, kind: str, seed: int) -> Split:
    train, test = parts(y, seed)
    flipped = wrong(kind, standardised(x[train], x[train]), y[train], seed)
    return Split(x[train], y[train] ^ flipped, flipped, x[test], y[test])


def standardised(x: Floats, by: Floats) -> Floats:
    scaled: Floats = StandardScaler().fit(by).transform(x)
    return scaled


def ours(**params: Any) -> Learner:
    # Refuses a wrong Param now, and not after hours.
    BSPAUCClassifier(**params)

    def scores(data: Split, seed: int) -> Any:
        # It prepares its own inputs.
        return fit_arrays(BSPAUCClassifier(seed=seed, **params), data.x, data.label).score(data.x_test)

    return scores


def logistic(data: Split, seed: int) -> Any:
    linear = LogisticRegression(max_iter=1000).fit(standardised(data.x, data.x), data.label)
    return linear.decision_function(standardised(data.x_test, data.x))


def forest(data: Split, seed: int) -> Any:
    trees = RandomForestClassifier(300, min_samples_leaf=5, random_state=seed, n_jobs=1).fit(data.x, data.label)
    return trees.predict_proba(data.x_test)[:, 1]


def xgboost(**settings: Any) -> Learner:
    def scores(data: Split, seed: int) -> Any:
        # Of the extra ``bench``, which the tests of this module do without.
        from xgboost import XGBClassifier

        trees = XGBClassifier(random_state=seed, n_jobs=1, tree_method="hist", **settings).fit(data.x, data.label)
        return trees.predict_proba(data.x_test)[:, 1]

    return scores


def xgboost_tuned(data: Split, seed: int) -> Any:
    """Depth, weight and rounds by the AUC on a quarter of the rows, held back with their labels as given; then all."""
    from xgboost import XGBClassifier

    fit, held = train_test_split(np.arange(len(data.label)), test_size=0.25, stratify=data.label, random_state=seed)
    common = {"learning_rate": 0.05, "subsample": 0.8, "colsample_bytree": 0.8, "random_state": seed, "n_jobs": 1}
    found = []
    for depth, weight in itertools.product((2, 4, 6, 9), (1, 10)):
        shape = {"max_depth": depth, "min_child_weight": weight, **common}
        trees = XGBClassifier(n_estimators=400, eval_metric="auc", early_stopping_rounds=30, **shape)
        trees.fit(data.x[fit], data.label[fit], eval_set=[(data.x[held], data.label[held])], verbose=False)
        found.append((trees.best_score, {**shape, "n_estimators": trees.best_iteration + 1}))
    best = max(found, key=lambda one: one[0])[1]
    return XGBClassifier(**best).fit(data.x, data.label).predict_proba(data.x_test)[:, 1]


REGULARISED = {
    "n_estimators": 300,
    "learning_rate": 0.05,
    "max_depth": 4,
    "min_child_weight": 10,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "reg_lambda": 5,
}


def self_paced(*inner: around.Seeded) -> Learner:
    return lambda data, seed: around.scores(data, seed, inner)


def learners(params: dict[str, Any]) -> dict[str, Learner]:
    """All methods by name; ours with ``params``."""
    trees = around.xgboost(**REGULARISED)
    return {
        OURS: ours(**params),
        TWIN: ours(**{**params, "selfPaced": False}),
        "xgboost": xgboost(),
        "xgboost-regularised": xgboost(**REGULARISED),
        "xgboost-tuned": xgboost_tuned,
        "forest": forest,
        "logistic": logistic,
        "self-paced-xgboost": self_paced(trees),
        "self-paced-forest": self_paced(around.forest),
        BLEND: self_paced(around.forest, trees, around.ours(**params)),
    }


METHODS = tuple(learners({}))


def measure(learner: Learner, data: Split, seed: int) -> dict[str, Any]:
    """Test AUC, and the seconds of fitting and scoring."""
    start = time.perf_counter()
    try:
        auc, failed = data.test_auc(learner(data, seed)), {}
    except (CollapseError, DivergedError) as error:
        auc, failed = 0.5, {"error": f"{type(error).__name__}: {error}"}
    return {"auc": auc, "seconds": round(time.perf_counter() - start, 2), **failed}


def run(files: Iterable[Path], wanted: argparse.Namespace, done: Aucs) -> Iterator[dict[str, Any]]:
    """Make each fit that is not yet ``done``, one after the other."""
    by_name = learners(wanted.params)
    names = {method: recorded(method, wanted.params, wanted.label) for method in wanted.methods}
    for file in files:
        with np.load(file) as table:
            x, y = table["X"].astype(np.float32), table["y"].astype(bool)
        for cell in (Cell(file.stem, kind, seed) for seed in wanted.seeds for kind in wanted.kinds):
            missing = [method for method, name in names.items() if name not in done.get(cell, {})]
            if missing:
                data = split(x, y, cell.kind, cell.seed)
                for method in missing:
                    found = measure(by_name[method], data, cell.seed)
                    yield {**cell._asdict(), "method": names[method], **found}


def recorded(method: str, params: dict[str, Any], label: str | None) -> str:
    """The name in the results: ours with other Params is another method."""
    if method not in (OURS, TWIN, BLEND):
        return method
    changes = [f"{name}={json.dumps(value)}" for name, value in params.items()]
    if method == BLEND:
        return " ".join([BLEND, *([label] if label else changes)])
    return (label or " ".join([OURS, *changes])) + method.removeprefix(OURS)


def param(text: str) -> tuple[str, Any]:
    """``name=value``, where the value is JSON or else a word."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words: Any = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--tables", type=Path, help="folder of the tables")
    parser.add_argument("--only", type=words, help="some of the tables, in this order; all of them, small files first")
    parser.add_argument("--kinds", type=words, default=list(KINDS))
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1])
    parser.add_argument("--methods", type=words, default=list(METHODS), help=", ".join(METHODS))
    parser.add_argument("--param", type=param, action="append", default=[], help="name=value, for both BSPAUC methods")
    parser.add_argument("--label", help="what BSPAUC with these Params is called in the results")
    parser.add_argument("--results", type=Path, help="lines of JSON; new ones are appended")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    parser.add_argument("--beside", type=Path, nargs="+", default=[], help="results of other methods for the summary")
    parser.add_argument("--against", type=Path, help="results of another version: its bspauc is one more method")
    parser.add_argument("--as", dest="called", default="bspauc before", help="what that one is called")
    parser.add_argument("--own", default=OURS, help="the method whose wins and losses are counted")
    parser.add_argument("--compare", type=words, help="methods of the summary, by name; all that have results")
    args = parser.parse_args()
    if not args.summary and not args.tables:
        parser.error("give --tables, or --summary for what is in --results")
    for name, known in (("kinds", KINDS), ("methods", METHODS)):
        if unknown := set(getattr(args, name)) - set(known):
            parser.error(f"--{name} has {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    args.params = dict(args.param)
    if not args.summary:
        files = sorted(args.tables.glob("*.npz"), key=lambda file: file.stat().st_size)
        args.files = [args.tables / f"{name}.npz" for name in args.only] if args.only else files
        if missing := [str(file) for file in args.files or [args.tables / "*.npz"] if not file.exists()]:
            parser.error(f"there is no {', '.join(missing)}")
    return args


def main() -> None:
    args = arguments()
    aucs = read(args.results) if args.results and (args.summary or args.results.exists()) else {}
    if not args.summary:
        for row in run(args.files, args, aucs):
            aucs.setdefault(Cell(row["table"], row["kind"], row["seed"]), {})[row["method"]] = row["auc"]
            line = json.dumps(row)
            print(line, file=sys.stderr, flush=True)
            if args.results:
                with args.results.open("a") as file:
                    file.write(line + "\n")
    aucs = joined([aucs, *map(read, args.beside), *([read(args.against, OURS, args.called)] if args.against else [])])
    shown = {
        cell: found
        for cell, found in aucs.items()
        if cell.kind in args.kinds and cell.seed in args.seeds and (not args.only or cell.table in args.only)
    }
    names = dict.fromkeys([*METHODS, *(name for found in shown.values() for name in found)])
    methods = args.compare or [name for name in names if any(name in found for found in shown.values())]
    print(summary(shown, methods, args.own, HALVES))


if __name__ == "__main__":
    main()
