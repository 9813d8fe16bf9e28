"""The benchmark on real tables: its splits, its wrong labels, and how its results are compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression

from benchmarks import tables
from benchmarks.comparison import Cell, Comparison, far_below, ranks, read, spread, summary, won_and_lost


def problem(rows: int = 800, share: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Three features, one of them constant, and labels of which the last share is positive."""
    rng = np.random.default_rng(5)
    y = np.arange(rows) >= rows * (1 - share)
    x = np.column_stack([rng.normal(50 + 40 * y, 30), rng.normal(size=rows), np.full(rows, 7.0)])
    return x.astype(np.float32), y


def test_three_quarters_train_and_each_part_has_its_share_of_positives() -> None:
    _, y = problem(800)
    train, test = tables.parts(y, seed=0)
    assert (len(train), len(test)) == (600, 200)
    assert sorted([*train, *test]) == list(range(800))
    assert (y[train].sum(), y[test].sum()) == (120, 40)


def test_large_parts_are_thinned_and_keep_their_share_of_positives() -> None:
    _, y = problem(800)
    train, test = tables.parts(y, seed=0, most=150)
    assert (len(set(train)), len(set(test))) == (150, 150)
    assert not set(train) & set(test)
    assert (y[train].sum(), y[test].sum()) == (30, 30)


def test_another_seed_is_another_split() -> None:
    _, y = problem()
    first, again, other = (set(tables.parts(y, seed)[0]) for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(("kind", "positives", "negatives"), [("clean", 0, 0), ("missed40", 48, 0)])
def test_clean_labels_are_true_and_missed_ones_are_positives(kind: str, positives: int, negatives: int) -> None:
    data = tables.split(*problem(800), kind, seed=0)
    given, truth = data.label, data.label ^ data.flipped
    assert truth.sum() == 120
    assert np.count_nonzero(truth & ~given) == positives
    assert np.count_nonzero(~truth & given) == negatives


@pytest.mark.parametrize("kind", ["uniform20", "far20"])
def test_a_fifth_of_all_labels_is_flipped_in_both_classes(kind: str) -> None:
    x, y = problem(800)
    data = tables.split(x, y, kind, seed=0)
    train, test = tables.parts(y, seed=0)
    wrong = data.label != y[train]
    assert np.count_nonzero(wrong) == 120
    assert set(y[train][wrong]) == {False, True}
    assert np.array_equal(data.y_test, y[test])


def test_far_flips_spare_the_quarter_that_is_nearest_to_the_hyperplane() -> None:
    x, y = problem(800)
    data = tables.split(x, y, "far20", seed=0)
    truth = data.label ^ data.flipped
    scaled = (data.x - data.x.mean(axis=0)) / np.maximum(data.x.std(axis=0), 1e-3)
    distance = np.abs(LogisticRegression(max_iter=1000).fit(scaled, truth).decision_function(scaled))
    nearest = np.argsort(distance)[:148]  # Of 150: the two hyperplanes differ by rounding.
    assert not data.flipped[nearest].any()


def test_features_are_standardised_by_the_training_part() -> None:
    x, _ = problem()
    scaled = tables.standardised(x[:100], by=x[100:])
    assert scaled.dtype == np.float32
    assert np.allclose(scaled[:, 0], (x[:100, 0] - x[100:, 0].mean()) / x[100:, 0].std(), atol=1e-4)
    assert not scaled[:, 2].any()


def test_ranks_are_scipys_and_ties_share_theirs() -> None:
    aucs = np.random.default_rng(0).integers(0, 4, size=(50, 6)) / 4
    assert np.array_equal(ranks(aucs), rankdata(-aucs, method="average", axis=1))


def test_wins_and_losses_are_those_beyond_the_margin() -> None:
    aucs = np.array([[0.9, 0.95, 0.9], [0.9, 0.7, 0.8985], [0.9, 0.5, 0.8]])
    won, lost = won_and_lost(aucs, own=0)
    assert list(won) == [0, 2, 1]
    assert list(lost) == [0, 1, 0]


def test_the_spread_is_between_seeds_over_what_both_have() -> None:
    cells = [Cell("a", "clean", 0), Cell("b", "clean", 0), Cell("a", "clean", 1), Cell("b", "clean", 1)]
    values = np.array([[0.5], [0.7], [0.7], [0.9]])
    assert spread(cells, values) == pytest.approx([0.1])  # Means 0.6 and 0.8.
    assert spread([*cells, Cell("c", "clean", 1)], np.array([*values, [0.0]])) == pytest.approx([0.1])
    assert np.isnan(spread(cells[:2], values[:2])).all()


def test_only_cells_that_all_methods_have_are_compared() -> None:
    full, part = Cell("a", "clean", 0), Cell("b", "clean", 0)
    found = Comparison.of({full: {"x": 0.5, "y": 0.6, "z": 0.1}, part: {"x": 0.7}}, ["y", "x"])
    assert found.cells == (full,)
    assert found.aucs.tolist() == [[0.6, 0.5]]


def test_cells_far_below_the_best_are_listed_worst_first() -> None:
    found = {
        Cell("a", "clean", 0): {"bspauc": 0.9, "forest": 0.95, "logistic": 0.5},
        Cell("b", "clean", 0): {"bspauc": 0.9, "forest": 0.905, "logistic": 0.5},
        Cell("c", "clean", 0): {"bspauc": 0.6, "forest": 0.7, "logistic": 0.9},
    }
    listed = far_below(Comparison.of(found, ["bspauc", "forest", "logistic"]), "bspauc")
    assert listed == [(Cell("c", "clean", 0), 0.6, 0.9, "logistic"), (Cell("a", "clean", 0), 0.9, 0.95, "forest")]


def test_the_summary_has_means_of_all_tables_and_of_each_half() -> None:
    found = {
        Cell(table, "clean", seed): {"bspauc": 0.8 + seed / 10 + bonus, "forest": 0.7}
        for table, bonus in (("cardio", 0.0), ("Wilt", 0.04))
        for seed in (0, 1)
    }
    text = summary(found, ["bspauc", "forest"], "bspauc", tables.HALVES)
    assert "## all tables: Wilt, cardio (4 cells)" in text
    assert "| bspauc | 0.8700 ± 0.0500; 1.00 ± 0.00 |" in text
    assert "| bspauc | 0.8500 ± 0.0500; 1.00 ± 0.00 |" in text
    assert "| bspauc | 0.8900 ± 0.0500; 1.00 ± 0.00 |" in text
    assert text.count("| forest | 2 : 0 | 2 : 0 |") == 2


def test_what_is_in_the_results_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = problem(400)
    np.savez(tmp_path / "cardio.npz", X=x, y=y.astype(np.int8))
    results = tmp_path / "found.jsonl"
    done = {"table": "cardio", "kind": "clean", "seed": 0, "method": "logistic", "auc": 0.125, "seconds": 1.0}
    results.write_text(json.dumps(done) + "\n")
    options = ["--tables", tmp_path, "--results", results, "--methods", "logistic", "--kinds", "clean,missed40"]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["tables", *map(str, options)])
        tables.main()
    assert len(results.read_text().splitlines()) == 4
    found = read(results)
    assert found[Cell("cardio", "clean", 0)] == {"logistic": 0.125}
    assert {cell[1:] for cell in found} == {("clean", 0), ("clean", 1), ("missed40", 0), ("missed40", 1)}
    assert found[Cell("cardio", "clean", 1)]["logistic"] > 0.7


def test_an_earlier_version_stands_beside_under_another_name(tmp_path: Path) -> None:
    before = tmp_path / "before.jsonl"
    lines = [{"table": "a", "kind": "clean", "seed": 0, "method": name, "auc": 0.5} for name in ("bspauc", "forest")]
    before.write_text("\n".join(map(json.dumps, lines)))
    assert read(before, "bspauc", "before") == {Cell("a", "clean", 0): {"before": 0.5}}


def test_our_methods_with_other_params_have_other_names() -> None:
    assert tables.recorded("bspauc", {}, None) == "bspauc"
    assert tables.recorded("bspauc", dict([tables.param("rounds=3")]), None) == "bspauc rounds=3"
    assert tables.recorded("bspauc-twin", {"rounds": 3}, "short") == "short-twin"
    assert tables.recorded("forest", {"rounds": 3}, "short") == "forest"


@pytest.mark.parametrize("method", ["bspauc", "bspauc-twin", "forest"])
def test_methods_learn_an_easy_table(method: str) -> None:
    rng = np.random.default_rng(0)
    y = rng.random(400) < 0.3
    x = (1000 + 500 * rng.normal(size=(400, 4)) + 2000 * y[:, None]).astype(np.float32)
    learner = tables.learners({"rounds": 2})[method]
    assert tables.measure(learner, tables.split(x, y, "clean", 0), 0)["auc"] > 0.95
