"""Train on a table: features from its columns, a BSPAUC model, a report; saved as a Spark ML pipeline.

    spark-submit --master 'local[*]' jobs/train.py --input claims.csv --label fraud --output fraud-model
    spark-submit --master 'local[*]' jobs/train.py --input claims.parquet --label status --positive bad \\
        --exclude claim_id --validation 0.2 --param rounds=20 --output model --report report.html --mlflow

Text columns are one-hot encoded, missing numbers filled with the median. Numbers are scaled within the model, or with
--param network=mlp by the pipeline; with --param handleInvalid=keep gaps stay gaps. The last line printed is JSON:
where the model is, rows, the gaps that were filled, AUC and kept shares of the round that was kept.
With --validation that is the best of all rounds, and so best_validation_auc is a little higher than what new rows will
show. Exit code 0, or 2 with one line that says what is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bspauc_spark.command_line import ending

ending.begin(__name__)

from pyspark.ml import Pipeline, PipelineModel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.command_line import cli, features, learners, outputs, tables
from bspauc_spark.loop.checkpoint import Checkpoints
from bspauc_spark.spark.params import automatic_inputs
from bspauc_spark.spark.together import check_together


def main() -> int:
    """Read, train, save, report."""
    args = _arguments()
    options = {"validationIndicatorCol": "--validation"} if args.validation else {}
    # The label that is asked for becomes 1.
    positive = {"positiveLabel 1": f"--positive {args.positive}"} if args.positive else {}
    return cli.run(lambda: _train(args), args.label, options | positive | {"positiveLabel": "--positive"})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_table_arguments(parser)
    parser.add_argument("--label", required=True, metavar="COLUMN", help="column of the labels")
    parser.add_argument(
        "--positive",
        metavar="VALUE",
        help="the label that counts as positive, all others as negative; numbers: default 1",
    )
    parser.add_argument(
        "--features",
        nargs="+",
        metavar="COLUMN",
        help="columns to learn from, or one vector column; default: all others",
    )
    parser.add_argument("--exclude", nargs="+", default=[], metavar="COLUMN", help="columns to leave out, such as keys")
    parser.add_argument(
        "--categorical", nargs="+", default=[], metavar="COLUMN", help="codes and flags to be encoded as text is"
    )
    parser.add_argument("--impute", choices=("median", "mean", "error"), default="median", help="missing numbers")
    parser.add_argument("--max-categories", type=int, default=1000, help="most different values of an encoded column")
    parser.add_argument(
        "--validation",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="rows held back to choose the best round, 0.2 for example; equal rows stay together",
    )
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="a Param of BSPAUCClassifier"
    )
    parser.add_argument(
        "--params-file", type=Path, metavar="YAML", help="Params as a YAML mapping; --param goes before"
    )
    parser.add_argument(
        "--learner",
        choices=learners.NAMES,
        default=learners.OURS,
        help="what is trained: BSPAUCClassifier; or another learner with SelfPacedClassifier around it, whose Params "
        "and its own --param sets; or a blend of several",
    )
    parser.add_argument("--output", required=True, metavar="PATH", help="where the PipelineModel is saved")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--report", type=Path, metavar="HTML", help="also write the report")
    parser.add_argument("--mlflow", action="store_true", help="log to MLflow (MLFLOW_TRACKING_URI), model included")
    parser.add_argument("--experiment", help="MLflow experiment; implies --mlflow")
    parser.add_argument("--register", metavar="NAME", help="register the model under this name; implies --mlflow")
    return parser.parse_args()


def _train(args: argparse.Namespace) -> dict[str, Any]:
    if args.learner != learners.OURS:
        return _train_around(args)
    classifier = _classifier(args)
    spark = cli.session("bspauc_spark train")
    outputs.check_output(spark, args.output, args.overwrite, {"--input": args.input})
    outputs.check_report(spark, args.report, args.output, {"--input": args.input})
    frame = _read(spark, args)
    names = features.feature_columns(frame, args.features, args.label, args.exclude)
    frame, label = _labelled(frame, names, args)
    held = sf.col(cli.HELD) if args.validation else sf.lit(False)
    impute = "keep" if classifier.getHandleInvalid() == "keep" else args.impute
    scale = not automatic_inputs(classifier)
    made = features.feature_stages(
        frame, names, _codes(args), impute, args.max_categories, args.gaps, learned=~held, scale=scale
    )
    classifier.setFeaturesCol(made.vector).setLabelCol(tables.undotted(label))
    frame = features.with_doubles(frame, made.stages)
    kept: list[Checkpoints] = []
    classifier._after_fit = kept.append
    start = time.perf_counter()
    tracked = args.mlflow or args.experiment or args.register
    with _mlflow_run(args.experiment) if tracked else contextlib.nullcontext() as run:
        before = Pipeline(stages=made.stages).fit(frame.where(~held))
        last = classifier.fit(before.transform(frame))
        model = PipelineModel([*before.stages, last])
        _save(model, args, kept)
        if args.report:
            last.summary.report(args.report)
        if tracked:
            _log_model(model, args)
    results = {**_results(args, last, time.perf_counter() - start), "gaps_filled": made.gaps}
    return {**results, "mlflow_run": run.info.run_id if run else None}


def _train_around(args: argparse.Namespace) -> dict[str, Any]:
    """The same with ``SelfPacedClassifier`` around another learner."""
    _check(args)
    mlflow = args.mlflow or args.experiment or args.register
    for option, given in (("--validation", args.validation), ("--report", args.report), ("--mlflow", mlflow)):
        if given:
            raise cli.InvalidParamError(f"{option} is for --learner {learners.OURS}. Leave it out.")
    stage = learners.self_paced(args.learner, cli.parse_params(args.param, args.params_file, known=()))
    spark = cli.session("bspauc_spark train")
    outputs.check_output(spark, args.output, args.overwrite, {"--input": args.input})
    frame = _read(spark, args)
    names = features.feature_columns(frame, args.features, args.label, args.exclude)
    frame, label = _labelled(frame, names, args)
    made = features.feature_stages(
        frame, names, _codes(args), args.impute, args.max_categories, args.gaps, learned=sf.lit(True), scale=True
    )
    stage.setFeaturesCol(made.vector).setLabelCol(tables.undotted(label))
    frame = features.with_doubles(frame, made.stages)
    start = time.perf_counter()
    before = Pipeline(stages=made.stages).fit(frame)
    last = stage.fit(before.transform(frame))
    _save(PipelineModel([*before.stages, last]), args, [])
    summary = last.summary
    return {
        "model": args.output,
        "learner": args.learner,
        "shares": dict(summary.shares),
        "rows": dict(summary.counts),
        "features": last.numFeatures,
        "uses_selection": summary.uses_selection,
        "verdict": summary.verdict,
        "auc": summary.rounds[-1].auc if summary.rounds else None,
        "auc_is": "AUC of scores by models that did not learn from the row, labels as given",
        "positives_kept": summary.kept[0],
        "negatives_kept": summary.kept[1],
        "fits": summary.fits,
        "seconds": round(time.perf_counter() - start, 1),
        "gaps_filled": made.gaps,
    }


def _check(args: argparse.Namespace) -> None:
    if not 0 <= args.validation < 1:
        raise cli.InvalidParamError(
            f"--validation {args.validation:g} is no share of the rows: give one from 0 (none) to below 1, such as 0.2."
        )
    if args.max_categories < 1:
        raise cli.InvalidParamError(f"--max-categories {args.max_categories} must be 1 or more.")
    if args.register and not set("/:").isdisjoint(args.register):
        raise cli.InvalidParamError(f"--register {args.register}: MLflow allows no / and no : in a model's name.")


def _classifier(args: argparse.Namespace) -> BSPAUCClassifier:
    """With the Params that are asked for; refuses what can be refused without a look at the table."""
    _check(args)
    classifier = BSPAUCClassifier(**cli.parse_params(args.param, args.params_file))
    if args.validation:
        classifier.setValidationIndicatorCol(cli.HELD)
    check_together(classifier)
    return classifier


def _read(spark: SparkSession, args: argparse.Namespace) -> DataFrame:
    """The table, which has rows and the columns that are named."""
    frame = tables.read_table(spark, args.input, args.format)
    tables.check_present(frame, [args.label], "--label")
    tables.check_present(frame, args.exclude, "--exclude")
    tables.check_present(frame, args.categorical, "--categorical")
    tables.check_rows(frame, args.input)
    return frame


def _labelled(frame: DataFrame, names: Sequence[str], args: argparse.Namespace) -> tuple[DataFrame, str]:
    """The table with types, the column of its labels, and in the column ``HELD`` which rows are held back."""
    codes = _codes(args)
    given = [name for name in (*names, args.label) if name not in codes]
    frame = features.flags_as_text(tables.typed(frame, args.input, args.format, given, args.gaps), codes)
    held = _held_back(frame, args.validation)
    frame, label = cli.numeric_label(frame, args.label, args.positive, args.gaps)
    if args.validation:
        frame = frame.withColumn(cli.HELD, held)
        _check_held(frame, args.validation)
    return frame, label


def _codes(args: argparse.Namespace) -> list[str]:
    return [name for name in args.categorical if name != args.label]


def _save(model: PipelineModel, args: argparse.Namespace, kept: Sequence[Checkpoints]) -> None:
    """Save the model, and only then remove the checkpoints of its training."""
    try:
        (model.write().overwrite() if args.overwrite else model.write()).save(args.output)
    except Exception as error:
        # Spark's writer of pipelines raises whatever the storage makes it stumble over, in Java too.
        why = f"--output {cli.shown(args.output)} cannot be written: {cli.plain(error)}"
        advice = "With --param checkpointDir=… the next training can go on from its last round."
        for checkpoints in kept:
            advice = f"The checkpoints in {checkpoints.folder} are kept: run the job again to go on from there."
        raise cli.InvalidDataError(f"the model is trained, but {why}. {advice}") from error
    for checkpoints in kept:
        checkpoints.remove()


def _held_back(frame: DataFrame, share: float) -> Column:
    """By a hash of the row: the same rows whatever the partitioning, and equal rows on the same side."""
    place = sf.pmod(sf.xxhash64(*(cli.quoted(name) for name in frame.columns)), sf.lit(1_000_000))
    return place < share * 1_000_000


def _check_held(frame: DataFrame, share: float) -> None:
    counted = frame.select(sf.count_if(cli.HELD), sf.count("*")).first()
    assert counted is not None
    held, rows = counted
    if held in (0, rows):
        raise cli.InvalidDataError(f"--validation {share:g} holds back {held:,} of {rows:,} rows: give another share.")


def _mlflow_run(experiment: str | None) -> Any:
    import mlflow

    with _heeding_mlflow("the run cannot be started"):
        if experiment:
            mlflow.set_experiment(experiment)
        return mlflow.start_run()


def _log_model(model: PipelineModel, args: argparse.Namespace) -> None:
    from bspauc_spark import log_model

    with _heeding_mlflow(f"the model is saved in {cli.shown(args.output)}, but cannot be logged"):
        log_model(model, registered_model_name=args.register)


@contextlib.contextmanager
def _heeding_mlflow(what: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise cli.InvalidDataError(f"MLflow: {what}: {cli.plain(error)}") from error


def _results(args: argparse.Namespace, model: BSPAUCModel, seconds: float) -> dict[str, Any]:
    summary = model.summary
    best = summary.rounds[summary.best_round - 1]
    return {
        "model": args.output,
        "report": str(args.report) if args.report else None,
        "rows": dict(summary.counts),
        "features": model.numFeatures,
        "best_round": summary.best_round,
        "auc": summary.headline.auc,
        "auc_is": summary.headline.name,
        "estimated_true_auc": summary.headline.true_auc,
        "train_auc": best.train_auc,
        "best_validation_auc": best.validation_auc if args.validation else None,
        "positives_kept": best.positive_fraction,
        "negatives_kept": best.negative_fraction,
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
