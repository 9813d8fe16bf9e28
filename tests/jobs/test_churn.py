"""The README's commands on the table that people try first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from tests.helpers.churn import BLANKS, customers
from tests.helpers.submit import submit

FAST = ["--param", "rounds=3"]
CHURN = ["--label", "Churn", "--positive", "Yes"]


def _done(job: str, *args: str, cwd: Path) -> dict[str, Any]:
    done = submit(job, *args, cwd=cwd)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("churn")
    table = customers()
    table.to_csv(path / "churn.csv", index=False)
    new = customers(rows=300, seed=1)
    new.to_csv(path / "new.csv", index=False)
    new[new["TotalCharges"] != " "].to_csv(path / "filled.csv", index=False)
    return path


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[str, Any]:
    return _done(
        *("train.py", "--input", "churn.csv", *CHURN, "--exclude", "customerID", "--validation", "0.2", *FAST),
        *("--output", "churn-model", "--report", "report.html"),
        cwd=folder,
    )


def test_blanks_among_numbers_are_gaps_that_are_filled_and_counted(trained: dict[str, Any]) -> None:
    assert trained["gaps_filled"] == {"TotalCharges": BLANKS}
    # Four columns of numbers and flags; three of words, each with a place for words of later.
    assert trained["features"] == 4 + (2 + 1) + (2 + 1) + (3 + 1)
    assert trained["best_validation_auc"] > 0.7


@pytest.mark.parametrize("name", ["new", "filled"])
def test_tables_with_blanks_and_without_are_scored(trained: dict[str, Any], folder: Path, name: str) -> None:
    output = f"{name}-scored"
    found = _done("score.py", "--model", "churn-model", "--input", f"{name}.csv", "--output", output, cwd=folder)
    table, given = pd.read_parquet(folder / output), pd.read_csv(folder / f"{name}.csv")
    assert found["rows"] == len(table) == len(given)
    assert (given["TotalCharges"] == " ").sum() == (BLANKS if name == "new" else 0)
    assert roc_auc_score(table["Churn"] == "Yes", table["score"]) > 0.7


def test_the_table_with_blanks_is_audited(trained: dict[str, Any], folder: Path) -> None:
    given = ("--model", "churn-model", "--input", "churn.csv", *CHURN, "--top", "0")
    found = _done("audit.py", *given, "--output", "suspects", "--report", "audit.html", cwd=folder)
    assert found["rows"] == len(pd.read_parquet(folder / "suspects")) == 1500
