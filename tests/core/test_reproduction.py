"""The paper's figures, the cells of its tables, and how runs become tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from bspauc_spark import BSPAUCClassifier
from bspauc_spark.reproduction import cells, paper, paper_tables
from bspauc_spark.reproduction.cells import Cell, Task, run
from bspauc_spark.reproduction.methods import METHODS, fit_arrays


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A stand-in for aloi in which one feature of 27 decides; one row in twelve is positive."""
    x = np.random.default_rng(0).normal(size=(1200, 27))
    np.savez(tmp_path / "aloi27_adbench.npz", X=x, y=(x[:, 0] > 1.4).astype(int))
    return tmp_path


def record(cell: Cell, method: str, trial: int, auc: float) -> dict[str, object]:
    task = Task("trial", cell, method, trial)
    return {"key": task.key, "kind": "trial", "cell": vars(cell), "method": method, "auc": auc, "seconds": 1.0}


def test_the_papers_figures_are_where_they_belong() -> None:
    assert paper.TABLE_2["poker",]["bspauc"] == (0.990, 0.004)
    assert paper.TABLE_2["poker",]["koil"] is None
    assert paper.TABLE_3["a9a", "flip", "30"]["bspauc"] == (0.883, 0.010)
    assert paper.TABLE_3["cod-rna", "poison", "10"]["dsam"] == (0.973, 0.004)
    assert paper_tables.in_paper(Cell("aloi27"), "opauc") == (0.998, 0.001)
    assert paper_tables.in_paper(Cell("rcv1", "poison", 20), "ppd") == (0.918, 0.005)
    assert paper_tables.in_paper(Cell("rcv1", "poison", 20), "xgboost") is None


def test_every_cell_of_table_3_has_the_papers_figures() -> None:
    wanted = {(cell.dataset, cell.noise, str(cell.percent)) for cell in paper_tables.cells(3)}
    assert wanted == set(paper.TABLE_3)
    assert len(paper_tables.cells(2)) == len(paper.TABLE_2) == 8


def test_every_method_has_the_same_budget() -> None:
    assert {len(method.candidates) for method in METHODS.values()} == {6}


def test_keys_tell_runs_apart() -> None:
    cell = Cell("a9a", "flip", 10)
    tasks = [
        Task("trial", cell, "dsam"),
        Task("tuning", cell, "dsam"),
        Task("trial", cell, "dsam", 1),
        Task("trial", cell, "dsam", far_quantile=0.5),
        Task("trial", Cell("a9a", "poison", 10), "dsam"),
        Task("point", cell, "dsam", settings={"nu": 1.0, "lambda_max": 0.5}),
        Task("point", cell, "dsam", settings={"nu": 1.0, "lambda_max": 1.0}),
    ]
    assert len({task.key for task in tasks}) == len(tasks)
    assert Task("trial", cell, "dsam", settings={"regParam": 1.0}).key == tasks[0].key


@pytest.mark.parametrize("method", ["opauc", "koil", "bce"])
def test_a_trial_scores_true_labels_of_rows_that_were_held_back(method: str, data_dir: Path) -> None:
    task = Task("trial", Cell("aloi27"), method, 1, settings=dict(METHODS[method].candidates[0]))
    found = run(task, str(data_dir))
    part = cells._part(task.cell, 1, 0.25, str(data_dir))
    assert (len(part.y), len(part.y_test)) == (900, 300)
    score = METHODS[method].fit(part.x, part.y, 1, 1, **task.settings)
    assert found["auc"] == pytest.approx(roc_auc_score(part.y_test, score(part.x_test)), abs=1e-9)
    assert found["auc"] > 0.6
    assert found["key"] == task.key


def test_noise_reaches_training_rows_only(data_dir: Path) -> None:
    clean, flipped, poisoned = (
        cells._part.__wrapped__(Cell("aloi27", noise, percent), 0, 0.25, str(data_dir))
        for noise, percent in (("clean", 0), ("flip", 20), ("poison", 20))
    )
    assert (clean.y != flipped.y).mean() == 0.2
    assert len(poisoned.y) == 1080
    assert np.array_equal(poisoned.x[:900], clean.x)
    for part in (flipped, poisoned):
        assert np.array_equal(part.x_test, clean.x_test)
        assert np.array_equal(part.y_test, clean.y_test)


def test_tuning_looks_at_training_rows_only(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = cells._part(Cell("aloi27"), 0, 0.25, str(data_dir))
    hidden = cells.Part(part.x, part.y, None, None)
    monkeypatch.setattr(cells, "_part", lambda *_: hidden)
    found = run(Task("tuning", Cell("aloi27"), "opauc"), str(data_dir))
    assert len(found["validation_aucs"]) == 6
    assert found["settings"] == METHODS["opauc"].candidates[np.argmax(found["validation_aucs"])]


def test_a_point_has_its_last_rounds_apd(data_dir: Path) -> None:
    task = Task("point", Cell("aloi27", "poison", 20), "bspauc", settings={"nu": 1.0, "lambda_max": 1.0})
    found = run(task, str(data_dir))
    assert 0.5 < found["auc"] <= 1
    assert found["apd"] == pytest.approx(abs(found["positive_fraction"] - found["negative_fraction"]))


def test_a_point_that_empties_a_class_has_no_figures(tmp_path: Path) -> None:
    """Labels without any reason: no row is ever easy."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "aloi27_adbench.npz", X=rng.normal(size=(800, 27)), y=rng.integers(0, 2, 800))
    task = Task("point", Cell("aloi27"), "bspauc", settings={"nu": 0.0, "lambda_max": 1e-6})
    found = run(task, str(tmp_path))
    assert (found["auc"], found["apd"]) == (None, None)


def test_held_back_rows_choose_the_round() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = x[:, 0] + rng.normal(size=400) > 0
    held = rng.random(400) < 0.3
    estimator = BSPAUCClassifier(network="mlp", rounds=3, stepsPerRound=5, hiddenLayers=[8], pretrainSteps=5)
    fit = fit_arrays(estimator, x, y, held)
    best = max(fit.outcome.history, key=lambda row: row.validation_auc)
    assert fit.outcome.best_round == best.round
    assert best.validation_auc == pytest.approx(roc_auc_score(y[held], fit.score(x[held])), abs=1e-6)


def test_tables_show_mean_and_spread_beside_the_paper() -> None:
    cell = Cell("a9a", "flip", 30)
    records = [record(cell, "bspauc", trial, auc) for trial, auc in enumerate((0.87, 0.88, 0.89))]
    records += [record(cell, "dsam", trial, auc) for trial, auc in enumerate((0.84, 0.85))]
    records += [record(cell, "xgboost", 0, 0.9)]
    summary = paper_tables.summarise(records, paper_tables.cells(3))
    assert len(summary) == 3
    row = summary.set_index("method").loc["bspauc"]
    assert (row["auc"], row["trials"], row["paper_auc"]) == (pytest.approx(0.88), 3, 0.883)
    assert row["std"] == pytest.approx(np.std([0.87, 0.88, 0.89], ddof=1))
    text = paper_tables.markdown(summary)
    assert "| BSPAUC | DSAM | XGBoost |" in text
    assert "0.880 ± 0.010<br>paper 0.883 | 0.845 ± 0.007<br>paper 0.811 | **0.900** |" in text


def test_wins_count_the_papers_methods_and_name_the_cells_that_are_lost() -> None:
    won, near, lost = (Cell("a9a", "flip", percent) for percent in (10, 20, 30))
    figures = {won: (0.90, 0.88), near: (0.900, 0.904), lost: (0.80, 0.85)}
    records = []
    for cell, (ours, theirs) in figures.items():
        for trial, shift in enumerate((-0.005, 0.005)):
            records += [record(cell, "bspauc", trial, ours + shift), record(cell, "dsam", trial, theirs + shift)]
            records += [record(cell, "xgboost", trial, 0.99)]
    text = paper_tables.wins(paper_tables.summarise(records, paper_tables.cells(3)))
    assert "| DSAM | 1 | 0 | 2 | -0.0113 |" in text
    assert "best in 1 of 3 cells, and within one standard deviation of the best in 1 more" in text
    assert "Below that: a9a, 30 % flip (DSAM 0.8500, BSPAUC 0.8000)." in text


def test_kernel_bspauc_is_compared_with_tsam() -> None:
    cell = Cell("a9a", "flip", 10)
    records = [
        record(cell, method, 0, auc) for method, auc in (("bspauc", 0.9), ("bspauc-kernel", 0.9), ("tsam", 0.88))
    ]
    summary = paper_tables.summarise(records, paper_tables.cells(3))
    assert "Kernel BSPAUC against TSAM, on average: +0.0200" in paper_tables.wins(summary)


def test_figures_have_a_panel_for_each_data_set_and_a_line_for_each_ratio() -> None:
    points = pd.DataFrame(
        {"dataset": name, "nu": nu, "lambda_max": largest, "auc": 0.8, "apd": 0.1}
        for name in ("a9a", "rcv1")
        for nu in (0.0, 1.0)
        for largest in (0.1, 1.0)
    )
    figure = paper_tables.plot(points, "auc", "test AUC")
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["a9a", "rcv1"]
    assert [len(axis.lines) for axis in figure.axes] == [2, 2]
