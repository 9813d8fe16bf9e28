"""Score a table with a saved model.

    spark-submit --master 'local[*]' jobs/score.py --model fraud-model --input new.csv --output scored
    spark-submit --master 'local[*]' jobs/score.py --model models:/fraud/1 --input new.parquet --output scored

Adds score, probability (of a positive label) and prediction to the table's columns. What the model does not read as
numbers is text in a CSV, and goes through as it is: 00001 stays 00001. The last line printed is JSON. Exit code 0, or 2
with one line that says what is wrong.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bspauc_spark.command_line import ending

ending.begin(__name__)

from pyspark.ml.functions import vector_to_array

from bspauc_spark.command_line import cli, features, outputs, tables

OUTPUTS = ("score", "probability", "prediction")


def main() -> int:
    """Load, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_model_arguments(parser, "the scored table is")
    args = parser.parse_args()
    return cli.run(lambda: _score(args))


def _score(args: argparse.Namespace) -> dict[str, Any]:
    spark = cli.session("bspauc_spark score")
    outputs.check_output(spark, args.output, args.overwrite, {"--input": args.input, "--model": args.model})
    model = cli.load_model(spark, args.model)
    frame = tables.read_table(spark, args.input, args.format, features.width_read(model))
    tables.check_free(frame, OUTPUTS)
    last, rows = features.prepared(model, tables.with_row(frame), args.gaps)
    scored = last.copy()
    for column in (scored.rawPredictionCol, scored.probabilityCol, scored.predictionCol):
        scored.set(column, f"bspauc__{column.name}")
    added = (
        vector_to_array("bspauc__rawPredictionCol")[1],
        vector_to_array("bspauc__probabilityCol")[1],
        cli.quoted("bspauc__predictionCol"),
    )
    kept = tables.passed_through(frame, tables.format_of(args.output, args.output_format) == "csv")
    named = (column.alias(name) for name, column in zip(OUTPUTS, added, strict=True))
    tables.write_table(scored.transform(rows).select(*kept, *named), args.output, args.output_format, args.overwrite)
    written = tables.written(spark, args.output, args.output_format, OUTPUTS)
    label = last.getPositiveLabel() if last.hasParam("positiveLabel") else 1.0
    positive = written.where(cli.quoted("prediction") == label).count()
    return {"output": args.output, "rows": written.count(), "predicted_positive": positive}


if __name__ == "__main__":
    sys.exit(main())
