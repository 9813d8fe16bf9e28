"""Which labels of a table does a model not believe? A table of them, most suspicious first, and a report.

    spark-submit --master 'local[*]' jobs/audit.py --model fraud-model --input claims.csv --label fraud \\
        --output suspects --report audit.html

Adds score, loss, weight (0: the final pace leaves the row out) and suspicion (the estimated probability that the label
is wrong) to the table's columns. The last line printed is JSON. Exit code 0, or 2 with one line that says what is
wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bspauc_spark.command_line import ending

ending.begin(__name__)

from pyspark.sql import functions as sf

from bspauc_spark.command_line import cli, features, outputs, tables
from bspauc_spark.model import AUDIT_COLUMNS
from bspauc_spark.results.diagnostics import MOST_SUSPICIOUS


def main() -> int:
    """Load, audit, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_model_arguments(parser, "the suspicious rows are")
    parser.add_argument("--label", required=True, metavar="COLUMN", help="column of the labels to be audited")
    parser.add_argument("--positive", metavar="VALUE", help="the label that counts as positive, as in training")
    parser.add_argument("--top", type=int, default=1000, help="rows to write; 0: all")
    parser.add_argument("--report", type=Path, metavar="HTML", help="also write the report, with the first rows in it")
    args = parser.parse_args()
    return cli.run(lambda: _audit(args), args.label)


def _audit(args: argparse.Namespace) -> dict[str, Any]:
    if args.top < 0:
        raise cli.InvalidParamError(f"--top {args.top} must be 0 or more; 0 writes all rows.")
    spark = cli.session("bspauc_spark audit")
    inputs = {"--input": args.input, "--model": args.model}
    outputs.check_output(spark, args.output, args.overwrite, inputs)
    outputs.check_report(spark, args.report, args.output, inputs)
    model = cli.load_model(spark, args.model)
    frame = tables.read_table(spark, args.input, args.format, features.width_read(model))
    tables.check_free(frame, AUDIT_COLUMNS)
    tables.check_present(frame, [args.label], "--label")
    tables.check_rows(frame, args.input)
    read = tables.typed(tables.with_row(frame), args.input, args.format, [args.label], args.gaps)
    labelled, label = cli.numeric_label(read, args.label, args.positive, args.gaps)
    if label != cli.LABEL and model.stages[-1].getLabelCol() == cli.LABEL:
        raise cli.InvalidDataError(
            f"--label {args.label} holds numbers, and the model was trained with --positive, or on true and false: say "
            "by --positive which of them is positive."
        )
    last, rows = features.prepared(model, labelled, args.gaps)
    if args.report and not hasattr(last.summary, "report"):
        raise cli.InvalidDataError("--report is for models of --learner bspauc. Leave it out.")
    auditor = last.copy()
    auditor.set(auditor.labelCol, tables.undotted(label))
    if label == cli.LABEL and auditor.hasParam("positiveLabel"):
        auditor.set(auditor.positiveLabel, 1.0)
    kept = tables.passed_through(frame, tables.format_of(args.output, args.output_format) == "csv")
    audited = auditor.audit(rows).select(*kept, *AUDIT_COLUMNS).orderBy(sf.desc_nulls_last("suspicion"))
    chosen = audited.limit(args.top) if args.top else audited
    tables.write_table(chosen, args.output, args.output_format, args.overwrite)
    written = tables.written(spark, args.output, args.output_format, AUDIT_COLUMNS)
    if args.report:
        first = written.orderBy(sf.desc_nulls_last("suspicion")).limit(MOST_SUSPICIOUS)
        last.summary.report(args.report, tables.times_as_text(first).toPandas())
    return {
        "output": args.output,
        "report": str(args.report) if args.report else None,
        "rows": written.count(),
        "suspicion_above_half": written.where("suspicion > 0.5").count(),
    }


if __name__ == "__main__":
    sys.exit(main())
