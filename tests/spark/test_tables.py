"""Tables as people have them, through train, score and audit: quotes, codes, gaps, names, and where outputs go."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from bspauc_spark.command_line import cli, tables
from tests.helpers.submit import call

# The jobs are drivers of their own, never clients of a Connect server.
pytestmark = pytest.mark.classic
FAST = ["--param", "rounds=1", "--param", "verbose=false"]
TEXTS = [
    "plain",
    'says "hi", then left',
    "two\nlines",
    "a\r\nb",
    " spaces ",
    "back\\slash",
    '\\"',
    '"',
    ",",
    "#1",
    "01",
]


def loans(rows: int = 240) -> pd.DataFrame:
    """Ids and codes with zeros before them, a dot in a name, flags, notes that need quoting, labels true and false."""
    rng = np.random.default_rng(0)
    bad = rng.random(rows) < 0.3
    return pd.DataFrame(
        {
            "id": [f"{k:05d}" for k in range(rows)],
            "zip": np.choose(np.arange(rows) % 3, ["01234", "A1234", "00777"]),
            "size.eur": (1000 * (rng.normal(size=rows) + bad)).round().astype(int),
            "open": rng.random(rows) < 0.5,
            "branch": np.choose(rng.integers(0, 2, rows) + bad, ["01", "1", "2"]),
            "note": [TEXTS[k % len(TEXTS)] for k in range(rows)],
            "bad": bad,
        }
    )


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table as CSV, and a model of it."""
    path = tmp_path_factory.mktemp("loans")
    loans().to_csv(path / "loans.csv", index=False)
    done = call(
        *("train.py", "--input", str(path / "loans.csv"), "--label", "bad", "--positive", "true", "--exclude", "id"),
        *("--categorical", "branch", "--output", str(path / "model"), *FAST),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["features"] == 1 + 1 + (3 + 1) + (3 + 1) + (len(TEXTS) + 1)
    return path


def _refused(*args: str | Path) -> str:
    done = call(*map(str, args))
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    assert "bspauc__" not in line
    return line


def _scored(folder: Path, table: pd.DataFrame, name: str, output: str) -> pd.DataFrame:
    table.to_csv(folder / f"{name}.csv", index=False)
    args = ("--model", folder / "model", "--input", folder / f"{name}.csv", "--output", folder / output, "--overwrite")
    done = call("score.py", *map(str, args))
    assert done.returncode == 0, done.stderr
    files = [file for file in (folder / output).glob("part-*") if file.stat().st_size]
    parts = [pd.read_csv(file, dtype=str) if output.endswith(".csv") else pd.read_parquet(file) for file in files]
    return pd.concat(parts).sort_values("id", ignore_index=True)


def test_a_csv_of_pandas_is_read_as_pandas_wrote_it(spark: SparkSession, folder: Path) -> None:
    found = tables.read_table(spark, str(folder / "loans.csv"), None).toPandas()
    pd.testing.assert_frame_equal(found, loans().astype(str))


def test_a_csv_that_is_written_and_read_is_the_same(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(f"{k:02d}", text) for k, text in enumerate([*TEXTS, None])]
    path = str(tmp_path / "out.csv")
    tables.write_table(spark.createDataFrame(rows, "k string, text string"), path, None, False)
    assert sorted(map(tuple, tables.read_table(spark, path, None).collect())) == rows


def test_columns_of_a_csv_go_through_scoring_as_they_are(folder: Path) -> None:
    found = _scored(folder, loans(), "all", "scored.csv")
    pd.testing.assert_frame_equal(found[loans().columns], loans().astype(str))


def test_numbers_that_the_model_reads_are_numbers_in_parquet_and_ids_are_text(folder: Path) -> None:
    found = _scored(folder, loans(), "all", "scored")
    assert found["id"].iloc[1] == "00001"
    np.testing.assert_array_equal(found["size.eur"], loans()["size.eur"].astype(float))


def test_scores_do_not_depend_on_which_other_rows_a_csv_has(folder: Path) -> None:
    digits = loans().query("zip != 'A1234' and branch != '2'")
    everywhere, alone = (_scored(folder, *args) for args in ((loans(), "all", "s1"), (digits, "digits", "s2")))
    both = everywhere.merge(alone, on="id")
    assert len(both) == len(digits)
    np.testing.assert_allclose(both["score_x"], both["score_y"], atol=1e-6)


def test_codes_of_a_csv_keep_their_zeros_in_training(spark: SparkSession, folder: Path) -> None:
    model = cli.load_model(spark, str(folder / "model"))
    indexer: Any = model.stages[0]
    labels = dict(zip(indexer.getInputCols(), indexer.labelsArray, strict=True))
    assert set(labels["branch"]) == {"01", "1", "2"}
    assert set(labels["zip"]) == {"01234", "A1234", "00777"}


def test_the_audit_takes_names_with_dots_and_true_for_a_label(folder: Path) -> None:
    done = call(
        *("audit.py", "--model", str(folder / "model"), "--input", str(folder / "loans.csv"), "--label", "bad"),
        *("--positive", "True", "--output", str(folder / "suspects.csv"), "--top", "0"),
        *("--report", str(folder / "audit.html")),
    )
    assert done.returncode == 0, done.stderr
    found = pd.concat([pd.read_csv(file, dtype=str) for file in (folder / "suspects.csv").glob("part-*")])
    found = found.sort_values("id", ignore_index=True)
    pd.testing.assert_frame_equal(found[loans().columns], loans().astype(str))
    assert found["suspicion"].astype(float).between(0, 1).all()
    assert "size.eur" in (folder / "audit.html").read_text()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (
            lambda t: t.assign(**{"size.eur": None}),
            ["column size.eur has no value in 240 of 240", "fills no gaps"],
        ),
        (lambda t: t.assign(**{"size.eur": "many"}), ["column size.eur has text in 240 of 240 rows"]),
        (lambda t: t.assign(**{"size.eur": np.inf}), ["column size.eur has 240 infinite values"]),
        (lambda t: t.assign(size__eur=1), ["has a column size__eur already", "size.eur"]),
    ],
    ids=["gaps", "text", "infinite", "clash"],
)
def test_scoring_refuses_what_stands_where_the_model_reads_numbers(
    folder: Path, tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], parts: list[str]
) -> None:
    change(loans()).to_csv(tmp_path / "new.csv", index=False)
    line = _refused(
        "score.py", "--model", folder / "model", "--input", tmp_path / "new.csv", "--output", tmp_path / "o"
    )
    assert all(part in line for part in parts), line


def _some(values: pd.Series, gaps: int) -> pd.Series:
    return values.astype(object).where(np.arange(len(values)) >= gaps)


@pytest.mark.parametrize(
    ("change", "extra", "parts"),
    [
        (lambda t: t.assign(open=_some(t["open"], 3)), [], ["column open", "3 of 240 rows", "--categorical"]),
        (lambda t: t.assign(none=np.nan), [], ["column none has no value", "--exclude"]),
        (lambda t: t.assign(far=np.where(t.index < 2, np.inf, 1.5)), [], ["column far has 2 infinite values"]),
        (lambda t: t.assign(bad=_some(t["bad"], 1)), [], ["column 'bad' (--label) has 1 null"]),
        (lambda t: t, ["--validation", "1e-7"], ["--validation 1e-07 holds back 0 of 240 rows"]),
        (
            lambda t: t.assign(bad=t.index < 2),
            ["--validation", "0.05"],
            ["column 'bad' (--label) has no validation row", "in --validation"],
        ),
        (lambda t: t.assign(zip__index=1), [], ["has a column zip__index already"]),
    ],
    ids=["flag", "empty", "infinite", "label", "validation", "class", "clash"],
)
@pytest.mark.parametrize("kind", ["csv", pytest.param("parquet", marks=pytest.mark.thorough)])
def test_training_refuses_in_the_words_of_the_command_line(
    spark: SparkSession,
    tmp_path: Path,
    kind: str,
    change: Callable[[pd.DataFrame], pd.DataFrame],
    extra: list[str],
    parts: list[str],
) -> None:
    path = tmp_path / f"loans.{kind}"
    table = change(loans())
    table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path, index=False)
    line = _refused(
        *("train.py", "--input", path, "--label", "bad", "--positive", "true", "--exclude", "id", *extra),
        *("--output", tmp_path / "model", *FAST),
    )
    assert all(part in line for part in parts), line


def test_a_flag_with_gaps_can_be_a_category(spark: SparkSession, tmp_path: Path) -> None:
    table = loans()[["open", "size.eur", "bad"]]
    table.assign(open=_some(table["open"], 3)).to_parquet(tmp_path / "loans.parquet", index=False)
    paths = ("--input", str(tmp_path / "loans.parquet"), "--output")
    done = call(
        *("train.py", *paths, str(tmp_path / "model"), "--label", "bad", "--categorical", "open", *FAST),
    )
    assert done.returncode == 0, done.stderr
    done = call("score.py", *paths, str(tmp_path / "scored"), "--model", str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr


def _learned_and_scored(tmp_path: Path, learned: str, scored: Sequence[str], *extra: str) -> list[pd.DataFrame]:
    """A model of the table in the file ``learned``, and the files ``scored`` with its scores, by the column k."""
    model = str(tmp_path / f"{learned}-model")
    given = ("--input", str(tmp_path / learned), "--label", "bad", "--exclude", "k", *extra)
    done = call("train.py", *given, "--output", model, *FAST)
    assert done.returncode == 0, done.stderr
    found = []
    for name in scored:
        output = str(tmp_path / f"{learned}-{name}-scored")
        done = call("score.py", "--input", str(tmp_path / name), "--model", model, "--output", output)
        assert done.returncode == 0, done.stderr
        table = pd.read_parquet(output)
        found.append(table.assign(k=table["k"].astype(int)).sort_values("k", ignore_index=True))
    return found


@pytest.mark.parametrize("learned", ["loans.csv", pytest.param("loans.parquet", marks=pytest.mark.thorough)])
def test_a_flag_is_the_same_category_however_a_format_spells_it(
    spark: SparkSession, tmp_path: Path, learned: str
) -> None:
    table = loans()[["open", "size.eur", "bad"]].assign(k=range(240))
    table.to_csv(tmp_path / "loans.csv", index=False)
    table.to_parquet(tmp_path / "loans.parquet", index=False)
    csv, parquet = _learned_and_scored(tmp_path, learned, ["loans.csv", "loans.parquet"], "--categorical", "open")
    np.testing.assert_array_equal(csv["score"], parquet["score"])
    assert parquet["open"].dtype == bool


@pytest.mark.thorough
def test_flags_where_training_had_other_words_are_unknown_categories(spark: SparkSession, tmp_path: Path) -> None:
    table = loans()[["open", "size.eur", "bad"]].assign(k=range(240))
    for name, words in (("words", table["open"].map({True: "yes", False: "no"})), ("other", "x")):
        table.assign(open=words).to_parquet(tmp_path / f"{name}.parquet", index=False)
    table.to_parquet(tmp_path / "flags.parquet", index=False)
    flags, other = _learned_and_scored(tmp_path, "words.parquet", ["flags.parquet", "other.parquet"])
    np.testing.assert_array_equal(flags["score"], other["score"])


@pytest.mark.parametrize("kind", ["csv", pytest.param("parquet", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("learned", ["gaps", pytest.param("whole", marks=pytest.mark.thorough)])
def test_a_number_is_the_same_category_with_gaps_in_its_column_and_without(
    spark: SparkSession, tmp_path: Path, learned: str, kind: str
) -> None:
    table = loans()[["size.eur", "bad"]].assign(k=range(240), branch=np.arange(240) % 3 - 1)
    # As pandas has it: doubles, and 1.0 in a CSV.
    gaps = table.assign(branch=table["branch"].where(table["k"] >= 5))
    for name, one in (("whole", table), ("gaps", gaps)):
        path = tmp_path / f"{name}.{kind}"
        one.to_csv(path, index=False) if kind == "csv" else one.to_parquet(path, index=False)
    names = [f"whole.{kind}", f"gaps.{kind}"]
    whole, gappy = _learned_and_scored(tmp_path, f"{learned}.{kind}", names, "--categorical", "branch")
    np.testing.assert_array_equal(whole["score"][5:], gappy["score"][5:])
    assert (whole["score"][:5] != gappy["score"][:5]).all()


def test_text_that_is_no_number_of_spark_is_not_the_category_of_that_number(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = loans()[["size.eur", "bad"]].assign(k=range(240), branch=np.arange(240) % 2)
    table.to_csv(tmp_path / "loans.csv", index=False)
    for name, spelled in (("zeros", "0" + table["branch"].astype(str)), ("unknown", "x")):
        table.assign(branch=spelled).to_csv(tmp_path / f"{name}.csv", index=False)
    zeros, unknown = _learned_and_scored(tmp_path, "loans.csv", ["zeros.csv", "unknown.csv"], "--categorical", "branch")
    np.testing.assert_array_equal(zeros["score"], unknown["score"])


@pytest.mark.thorough
def test_gaps_among_whole_numbers_are_filled_with_the_mean_in_training_and_scoring(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = loans()[["size.eur", "bad"]].assign(k=range(240), seen=pd.array(np.arange(240) % 4, dtype="Int64"))
    table.loc[:8, "seen"] = pd.NA
    filled = table.assign(seen=table["seen"].astype(float).fillna(float(table["seen"].mean())))
    for name, one in (("gaps", table), ("filled", filled)):
        one.to_parquet(tmp_path / f"{name}.parquet", index=False)
    names, extra = ["gaps.parquet", "filled.parquet"], ("--impute", "mean")
    of_gaps = _learned_and_scored(tmp_path, "gaps.parquet", names, *extra)
    (of_filled,) = _learned_and_scored(tmp_path, "filled.parquet", ["filled.parquet"], *extra)
    for found in of_gaps:
        np.testing.assert_allclose(found["score"], of_filled["score"], atol=1e-5)
    assert of_gaps[0]["seen"].isna().sum() == 9


def _write_libsvm(path: Path, columns: Sequence[int], rows: int = 200) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 1 + max(columns)))
    lines = (f"{int(row[0] > 0.5)} " + " ".join(f"{column + 1}:{row[column]:.4f}" for column in columns) for row in x)
    path.write_text("\n".join(lines) + "\n")


def test_a_libsvm_file_without_the_last_features_has_zeros_there(spark: SparkSession, tmp_path: Path) -> None:
    for name, columns in (("all", [0, 1, 2, 3]), ("some", [0, 1]), ("more", [0, 1, 4])):
        _write_libsvm(tmp_path / f"{name}.libsvm", columns)
    (tmp_path / "zeros.libsvm").write_text(
        "".join(f"{line} 4:0.0\n" for line in (tmp_path / "some.libsvm").read_text().splitlines())
    )
    model = str(tmp_path / "model")
    done = call("train.py", "--input", str(tmp_path / "all.libsvm"), "--label", "label", "--output", model, *FAST)
    assert done.returncode == 0, done.stderr
    scores = []
    for name in ("some", "zeros"):
        paths = ("--model", model, "--input", str(tmp_path / f"{name}.libsvm"))
        done = call("score.py", *paths, "--output", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        done = call("audit.py", *paths, "--label", "label", "--output", str(tmp_path / f"{name}-audit"))
        assert done.returncode == 0, done.stderr
        scores.append(np.sort(pd.read_parquet(tmp_path / name)["score"]))
    np.testing.assert_array_equal(*scores)
    paths = ("--model", model, "--input", tmp_path / "more.libsvm", "--output", tmp_path / "never")
    assert "more.libsvm has 5 features, but the model was fitted on 4" in _refused("score.py", *paths)


def test_an_audit_does_not_guess_which_number_training_called_positive(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "loans.parquet")
    loans()[["size.eur", "bad"]].assign(bad=1 + loans()["bad"]).to_parquet(path, index=False)
    model = str(tmp_path / "model")
    done = call("train.py", "--input", path, "--label", "bad", "--positive", "2", "--output", model, *FAST)
    assert done.returncode == 0, done.stderr
    asked = ("audit.py", "--model", model, "--input", path, "--label", "bad", "--output", str(tmp_path / "suspects"))
    assert "say by --positive which of them is positive" in _refused(*asked)
    assert call(*asked, "--positive", "2").returncode == 0


@pytest.mark.thorough
def test_dates_beyond_those_of_pandas_are_in_the_report_of_an_audit(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "loans.parquet")
    table = spark.createDataFrame(loans()[["size.eur", "bad"]])
    table.withColumn("until", sf.to_timestamp(sf.lit("9999-12-31 00:00:00"))).write.parquet(path)
    model, report = str(tmp_path / "model"), tmp_path / "audit.html"
    given = ("--input", path, "--label", "bad")
    done = call("train.py", *given, "--exclude", "until", "--output", model, *FAST)
    assert done.returncode == 0, done.stderr
    done = call("audit.py", *given, "--model", model, "--output", str(tmp_path / "out"), "--report", str(report))
    assert done.returncode == 0, done.stderr
    assert "9999-12-31" in report.read_text()


def test_a_column_that_is_named_twice_is_one_feature_and_the_label_is_none(folder: Path, tmp_path: Path) -> None:
    given = ("train.py", "--input", str(folder / "loans.csv"), "--label", "bad", "--positive", "true")
    output = ("--output", str(tmp_path / "model"), *FAST)
    line = _refused(*given, "--features", "size.eur", "bad", *output)
    assert line.startswith("error: --features bad is --label")
    done = call(*given, "--features", "size.eur", "open", "size.eur", *output)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["features"] == 2


def test_mlflow_that_fails_is_one_line_without_its_password(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is not there is said before the training; a name that it would refuse, before the table is read."""
    given = ("train.py", "--input", folder / "loans.csv", "--label", "bad", "--positive", "true", "--exclude", "id")
    output = ("--output", tmp_path / "model", *FAST)
    line = _refused(*given, *output, "--register", "team/loans")
    assert line.startswith("error: --register team/loans: MLflow allows no / and no :")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    mlflow.set_tracking_uri("http://key:hunter2@127.0.0.1:9")
    try:
        line = _refused(*given, *output, "--mlflow")
    finally:
        mlflow.set_tracking_uri(None)
    assert line.startswith("error: MLflow: the run cannot be started: ")
    assert "hunter2" not in line
    assert not (tmp_path / "model").exists()


def test_the_words_on_and_off_are_no_booleans_where_a_param_takes_them() -> None:
    assert cli.parse_params(["tracking=off", "verbose=off"], None) == {"tracking": "off", "verbose": False}


def test_words_for_a_gap_are_gaps_among_numbers_and_text_among_text(spark: SparkSession, tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "r": ["1", "NA", "-2.5e3"],
            "sql": ["NULL", "+7", None],
            "sheet": [" #N/A", ".5", "7. "],
            "far": ["1", "Inf", "nan"],
            "country": ["NA", "DE", "7"],
            "code": ["NA", "1d", "2f"],
            "none": ["NA", "NA", "NA"],
        }
    )
    path = str(tmp_path / "table.csv")
    table.to_csv(path, index=False)
    frame = tables.typed(tables.read_table(spark, path, None), path, None, table.columns)
    numbers = {
        "r": [1, np.nan, -2500],
        "sql": [np.nan, 7, np.nan],
        "sheet": [np.nan, 0.5, 7],
        "far": [1, np.inf, np.nan],
    }
    found = frame.toPandas()
    pd.testing.assert_frame_equal(found[[*numbers]], pd.DataFrame(numbers))
    texts = ["country", "code", "none"]
    pd.testing.assert_frame_equal(found[texts], table[texts])


@pytest.mark.thorough
def test_a_table_with_words_for_gaps_is_learned_from_and_scored_like_one_with_gaps(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = loans()[["size.eur", "open", "bad"]]
    table["size.eur"] = _some(table["size.eur"], 9)
    scores = []
    for name, word in (("r", "NA"), ("pandas", "")):
        path, model, scored = (str(tmp_path / f"{name}{what}") for what in (".csv", "-model", "-scored"))
        table.to_csv(path, index=False, na_rep=word)
        done = call("train.py", "--input", path, "--label", "bad", "--positive", "true", "--output", model, *FAST)
        assert done.returncode == 0, done.stderr
        done = call("score.py", "--input", path, "--model", model, "--output", scored)
        assert done.returncode == 0, done.stderr
        scores.append(np.sort(pd.read_parquet(scored)["score"]))
    np.testing.assert_array_equal(*scores)
    assert len(scores[0]) == len(table)


@pytest.mark.parametrize("output", ["in", "in/loans.csv", "in/new", ".", "link", "in/../in"])
def test_an_output_that_would_destroy_the_input_is_refused(spark: SparkSession, tmp_path: Path, output: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    loans().to_csv(tmp_path / "in" / "loans.csv", index=False)
    for given in ("in", "in/*.csv") if output != "in/new" else ("in",):
        line = _refused(
            *("train.py", "--input", tmp_path / given, "--format", "csv", "--label", "bad", "--positive", "true"),
            *("--exclude", "id", "--output", f"{tmp_path}/{output}", "--overwrite", *FAST),
        )
        assert "would destroy" in line
    assert os.listdir(tmp_path / "in") == ["loans.csv"]


@pytest.mark.parametrize("job", ["score.py", "audit.py"])
@pytest.mark.parametrize("output", ["loans.csv", "model", "model/stages", "."])
def test_an_output_that_would_destroy_the_model_or_the_table_is_refused(folder: Path, job: str, output: str) -> None:
    line = _refused(
        *(job, "--model", folder / "model", "--input", f"file:{folder}/loans.csv", "--overwrite"),
        *("--output", folder / output, *(("--label", "bad") if job == "audit.py" else ())),
    )
    assert "would destroy" in line
    assert (folder / "loans.csv").is_file()
    assert (folder / "model" / "metadata").is_dir()


@pytest.mark.parametrize(
    ("option", "path", "reason"),
    [
        ("--output", "/proc/nope/model", "cannot be written"),
        ("--output", "nosuch://bucket/model", 'No FileSystem for scheme "nosuch"'),
        ("--output", "{}/loans.txt/model", "cannot be written"),
        ("--report", "/proc/nope/report.html", "cannot be written"),
        ("--report", "{}/model", "cannot be written"),
        ("--report", "{}/loans.txt/report.html", "cannot be written"),
        ("--report", "{}/loans.csv", "would destroy"),
        ("--report", "{}/new", "is where --output"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_table_is_read(
    folder: Path, option: str, path: str, reason: str
) -> None:
    (folder / "loans.txt").write_text("")
    places = {"--output": str(folder / "new"), option: path.format(folder)}
    # The label would be refused next.
    line = _refused("train.py", "--input", folder / "loans.csv", "--label", "nope", *sum(places.items(), ()))
    assert line.startswith(f"error: {option} {path.format(folder)}"), line
    assert reason in line
    assert not (folder / "new").exists()
    assert not list(folder.glob(".*bspauc*"))


def test_a_report_for_other_storage_is_refused_before_the_table_is_read(folder: Path) -> None:
    places = ("--output", folder / "new", "--report", "s3://bucket/report.html")
    line = _refused("train.py", "--input", folder / "loans.csv", "--label", "nope", *places)
    assert line.startswith("error: --report 's3:/bucket/report.html' is no path of this machine.")


def test_a_file_that_is_lost_while_a_job_runs_is_one_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loans().to_parquet(tmp_path / "loans.parquet")
    frame = spark.read.parquet(str(tmp_path / "loans.parquet"))
    (tmp_path / "loans.parquet").unlink()
    assert cli.run(lambda: {"rows": len(frame.collect())}) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "loans.parquet" in line


def test_an_error_of_java_that_is_no_matter_of_storage_keeps_its_traceback(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    with pytest.raises(Py4JJavaError):
        cli.run(lambda: {"never": jvm.java.util.ArrayList().get(3)})
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        cli.run(lambda: {"never": spark.range(1).select(sf.expr("1 / id")).collect()})
