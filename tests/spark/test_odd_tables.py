"""Tables that are not what they should be: what the jobs read all the same, and in which words they refuse the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from tests.helpers.churn import BLANKS, customers
from tests.helpers.submit import call

pytestmark = pytest.mark.classic
FAST = ["--param", "rounds=1", "--param", "verbose=false"]
CHURN = ["--label", "Churn", "--positive", "Yes"]


def churn(rows: int = 300) -> pd.DataFrame:
    return customers(rows).drop(columns=["customerID", "TotalCharges"])


def _write(table: pd.DataFrame, path: Path) -> Path:
    table.to_csv(path, index=False) if path.suffix == ".csv" else table.to_parquet(path, index=False)
    return path


def _train(path: Path, *extra: str) -> dict[str, Any]:
    done = call("train.py", "--input", str(path), *CHURN, *FAST, "--output", str(path.parent / "model"), *extra)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _refused(job: str, *args: str | Path) -> str:
    done = call(job, *map(str, args))
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for internal in ("bspauc__", "SQLSTATE", "java.", "positiveLabel", "labelCol"):
        assert internal not in line
    return line


def _training_refused(path: Path, *extra: str, labels: list[str] = CHURN) -> str:
    output = path.parent / "never"
    line = _refused("train.py", "--input", path, *labels, "--output", output, *extra, *FAST)
    assert not output.exists()
    return line


# Blanks and odd cells among numbers.


@pytest.mark.parametrize("blank", ["", " ", "   ", "\t", "\u00a0"])
def test_a_cell_of_white_space_is_a_gap_among_numbers(spark: SparkSession, tmp_path: Path, blank: str) -> None:
    table = customers(300)
    table["TotalCharges"] = table["TotalCharges"].replace(" ", blank)
    found = _train(_write(table, tmp_path / "churn.csv"), "--exclude", "customerID")
    assert found["gaps_filled"] == {"TotalCharges": BLANKS}


def test_blanks_are_scored_as_the_median_of_training_is(spark: SparkSession, tmp_path: Path) -> None:
    table = customers(300)
    _train(_write(table, tmp_path / "churn.csv"), "--exclude", "customerID")
    numbers = pd.to_numeric(table["TotalCharges"], errors="coerce")
    median = np.sort(numbers.dropna())[(numbers.notna().sum() - 1) // 2]
    filled = table.assign(TotalCharges=numbers.fillna(median))
    scores = []
    for name, one in (("blanks", table), ("filled", filled)):
        path, output = _write(one, tmp_path / f"{name}.csv"), tmp_path / f"{name}-scored"
        done = call("score.py", *map(str, ("--model", tmp_path / "model", "--input", path, "--output", output)))
        assert done.returncode == 0, done.stderr
        scores.append(pd.read_parquet(output).sort_values("customerID")["score"].to_numpy())
    np.testing.assert_array_equal(*scores)


def test_a_label_of_white_space_is_no_label(spark: SparkSession, tmp_path: Path) -> None:
    table = churn()
    line = _training_refused(_write(table.assign(Churn=table["Churn"].where(table.index > 2, " ")), tmp_path / "t.csv"))
    assert "column 'Churn' (--label) has 3 null" in line
    assert "fit()" not in line
    assert "2 different values (No, Yes)" in _training_refused(tmp_path / "t.csv", labels=["--label", "Churn"])


def odd(table: pd.DataFrame) -> pd.DataFrame:
    """With a column of numbers in which nine cells are words."""
    words = np.choose(np.arange(len(table)) % 3, ["unknown", "unknown", "?"])
    return table.assign(visits=np.where(table.index < 9, words, (table.index % 40).astype(str)))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_few_odd_cells_among_numbers_are_named_with_the_options_that_decide(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    line = _training_refused(_write(odd(churn()), tmp_path / f"t.{kind}"))
    assert "column visits holds numbers, but in 9 of 300 rows 'unknown' (6), '?' (3)" in line
    assert "--gaps unknown '?'" in line
    assert "--categorical visits" in line


def test_odd_cells_are_gaps_if_the_user_says_so_in_training_and_in_scoring(spark: SparkSession, tmp_path: Path) -> None:
    path = _write(odd(churn()).assign(k=range(300)), tmp_path / "t.csv")
    gaps = ("--gaps", "unknown", "?")
    assert _train(path, "--exclude", "k", *gaps)["gaps_filled"] == {"visits": 9}
    blank = odd(churn()).assign(k=range(300)).replace({"visits": {"unknown": "", "?": ""}})
    scores = []
    for name, one, extra in (("odd", path, gaps), ("blank", _write(blank, tmp_path / "blank.csv"), ())):
        given = ("--model", tmp_path / "model", "--input", one, "--output", tmp_path / f"{name}-scored")
        done = call("score.py", *map(str, given), *extra)
        assert done.returncode == 0, done.stderr
        table = pd.read_parquet(tmp_path / f"{name}-scored")
        scores.append(table.assign(k=table["k"].astype(int)).sort_values("k")["score"].to_numpy())
    np.testing.assert_array_equal(*scores)
    line = _refused("score.py", "--model", tmp_path / "model", "--input", path, "--output", tmp_path / "never")
    assert "column visits has text in 9 of 300 rows, where the model reads numbers: 'unknown' (6), '?' (3)" in line
    assert "--gaps" in line


def test_a_number_that_stands_for_a_gap_is_one_if_the_user_says_so(spark: SparkSession, tmp_path: Path) -> None:
    table = churn()
    path = _write(table.assign(visits=np.where(table.index < 5, -999, table.index)), tmp_path / "t.csv")
    assert _train(path, "--gaps", "-999")["gaps_filled"] == {"visits": 5}


def test_odd_cells_are_categories_if_the_user_says_so(spark: SparkSession, tmp_path: Path) -> None:
    found = _train(_write(odd(churn()), tmp_path / "t.csv"), "--categorical", "visits")
    assert found["gaps_filled"] == {}
    assert found["features"] == 3 + (2 + 1) + (2 + 1) + (3 + 1) + (40 + 2 + 1)


@pytest.mark.parametrize(
    ("spelled", "rows"),
    [(lambda k: f"{500 + 7 * k:,}.50", 1128), (lambda k: f"$ {k}", 1200), (lambda k: f"{k},5 %", 1200)],
    ids=["thousands", "dollars", "percent"],
)
def test_numbers_in_another_spelling_are_said_to_be_no_numbers(
    spark: SparkSession, tmp_path: Path, spelled: Callable[[int], str], rows: int
) -> None:
    table = churn(1200)
    table["total"] = [spelled(k) for k in table.index]
    line = _training_refused(_write(table, tmp_path / "t.csv"))
    assert "column total has about" in line
    assert f"it is text, since {rows:,} of 1,200 rows hold no number there, such as '" in line
    assert "(a number is written like 1234.5)" in line


def test_what_keys_look_like_is_not_told(spark: SparkSession, tmp_path: Path) -> None:
    line = _training_refused(_write(churn(1200).assign(key=[f"K-{k}" for k in range(1200)]), tmp_path / "t.csv"))
    assert "column key has about" in line
    assert "K-" not in line


def test_numbers_that_a_table_declares_as_text_are_said_to_be_text(spark: SparkSession, tmp_path: Path) -> None:
    line = _training_refused(_write(customers(1200).drop(columns="customerID"), tmp_path / "t.parquet"))
    assert "column TotalCharges has about" in line
    assert "declares it as text, though it holds numbers" in line


# Tables that are empty, are of another format, or lack a proper header.

TABLES: dict[str, tuple[str | Callable[[Path], Any], list[str]]] = {
    "none.csv": (lambda path: None, ["--input {} does not exist"]),
    "empty.csv": ("", ["--input {} is empty"]),
    "header.csv": ("tenure,Churn\n", ["--input {} has no rows"]),
    "semicolons.csv": ("tenure;Churn\n1;Yes\n2;No\n", ["--input {} has a single column, tenure;Churn", "commas"]),
    "tabs.csv": ("tenure\tChurn\n1\tYes\n2\tNo\n", ["single column", "commas"]),
    "twice.csv": ("tenure,Churn,tenure\n1,Yes,1\n2,No,1\n", ["--input {} has the columns tenure, tenure", "Rename"]),
    "labels.csv": ("Churn,tenure,Churn\nYes,1,Yes\nNo,2,No\n", ["--input {} has the columns Churn, Churn", "Rename"]),
    "letters.csv": ("tenure,Churn,Tenure\n1,Yes,1\n2,No,1\n", ["--input {} has the columns tenure, Tenure", "Rename"]),
    "headless.csv": ("1,Yes\n2,No\n", ["--label Churn", "there are 1, Yes", "first line"]),
    "text.parquet": ("tenure,Churn\n1,Yes\n2,No\n", ["--input {} cannot be read as parquet", "--format"]),
    "text.txt": ("tenure,Churn\n1,Yes\n2,No\n", ["--input {} cannot be read as parquet", "--format"]),
    "folder": (lambda path: path.mkdir(), ["--input {} holds no files of a table"]),
    "tables": (
        lambda path: (path.mkdir(), (path / "one.csv").write_text("tenure,Churn\n1,Yes\n2,No\n")),
        ["--input {} cannot be read as parquet", "--format"],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_cannot_be_read_is_refused_in_plain_words(spark: SparkSession, tmp_path: Path, name: str) -> None:
    content, parts = TABLES[name]
    path = tmp_path / name
    content(path) if callable(content) else path.write_text(content)
    line = _training_refused(path)
    for part in parts:
        assert part.format(path) in line


def test_columns_whose_names_end_in_their_places_are_no_columns_named_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark calls columns of one name x1 and x2, by their places."""
    path = _write(
        churn()[["Churn", "tenure", "MonthlyCharges"]].set_axis(["Churn", "x1", "x2"], axis=1), tmp_path / "t.csv"
    )
    assert _train(path)["features"] == 2


@pytest.mark.parametrize("job", ["score.py", "audit.py"])
def test_scoring_and_auditing_refuse_such_tables_too(spark: SparkSession, tmp_path: Path, job: str) -> None:
    _train(_write(churn(), tmp_path / "t.csv"))
    labels = CHURN if job == "audit.py" else []
    given = ("--model", tmp_path / "model", "--output", tmp_path / "never", *labels)
    (tmp_path / "empty.csv").write_text("")
    assert "empty.csv is empty" in _refused(job, "--input", tmp_path / "empty.csv", *given)
    assert "none.csv does not exist" in _refused(job, "--input", tmp_path / "none.csv", *given)
    line = _refused(job, "--input", tmp_path / "t.csv", *given[2:], "--model", tmp_path / "no-model")
    assert f"--model {tmp_path}/no-model does not exist" in line


# Labels and options.


def test_labels_are_named_where_one_of_them_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    path = _write(churn(), tmp_path / "t.csv")
    assert "2 different values (No, Yes)" in _training_refused(path, labels=["--label", "Churn"])
    line = _training_refused(path, labels=["--label", "Churn", "--positive", "yes"])
    assert "--positive yes: no row of --label Churn has that value; did you mean Yes" in line
    line = _training_refused(path, labels=["--label", "Contract", "--positive", "x"])
    assert "there are Month-to-month, One year, Two year" in line


@pytest.mark.parametrize(
    ("labels", "positive", "parts"),
    [
        (lambda k: k % 3, [], ["more than two labels", "Set --positive"]),
        (lambda k: 1, [], ["no training row with a label different from --positive 1"]),
        (lambda k: 7, ["--positive", "7"], ["no training row with a label different from --positive 7"]),
        (lambda k: "Yes", ["--positive", "Yes"], ["no training row with a label different from --positive Yes"]),
    ],
    ids=["three", "one", "one number", "one word"],
)
def test_labels_that_are_not_two_are_refused_in_the_words_of_the_command_line(
    spark: SparkSession, tmp_path: Path, labels: Callable[[int], Any], positive: list[str], parts: list[str]
) -> None:
    table = churn()
    path = _write(table.assign(Churn=[labels(k) for k in table.index]), tmp_path / "t.csv")
    line = _training_refused(path, labels=["--label", "Churn", *positive])
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--validation", "1.5"], "--validation 1.5 is no share of the rows"),
        (["--validation", "1"], "--validation 1 is no share of the rows"),
        (["--validation", "nan"], "--validation nan is no share of the rows"),
        (["--max-categories", "0"], "--max-categories 0 must be 1 or more"),
        (["--params-file", "nowhere.yaml"], "--params-file nowhere.yaml cannot be read: No such file or directory"),
    ],
)
def test_options_out_of_range_are_refused_before_the_table_is_looked_at(
    spark: SparkSession, tmp_path: Path, extra: list[str], said: str
) -> None:
    assert _training_refused(tmp_path / "none.csv", *extra).startswith(f"error: {said}")


def test_a_number_of_suspects_below_zero_is_refused_before_the_model_is_looked_at(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = ("--model", tmp_path / "no-model", "--input", tmp_path / "none.csv", *CHURN, "--output", tmp_path / "never")
    assert _refused("audit.py", *given, "--top", "-3").startswith("error: --top -3 must be 0 or more")


def test_a_table_without_columns_to_learn_from_is_refused_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    path = _write(churn()[["tenure", "Churn"]], tmp_path / "t.csv")
    assert "no column is left to learn from: --exclude fewer" in _training_refused(path, "--exclude", "tenure")
