"""Score a table with a saved model.

    spark-submit --master 'local[*]' jobs/score.py --model fraud-model --input new.csv --output scored
    spark-submit --master 'local[*]' jobs/score.py --model models:/fraud/1 --input new.parquet --output scored

Adds score, probability (of a positive label) and prediction to the table's columns. The last line printed is JSON. Exit
code 0, or 2 with one line that says what is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

from pyspark.ml.functions import vector_to_array

from bspauc_spark import cli


def main() -> int:
    """Load, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_model_arguments(parser, "the scored table is")
    args = parser.parse_args()
    return cli.run(lambda: _score(args))


def _score(args: argparse.Namespace) -> dict[str, Any]:
    spark = cli.session("bspauc_spark score")
    cli.check_absent(spark, args.output, "--output", args.overwrite)
    model = cli.load_model(spark, args.model)
    frame = cli.read_table(spark, args.input, args.format)
    last, rows = cli.prepared(model, frame)
    scored = last.copy()
    for column in (scored.rawPredictionCol, scored.probabilityCol, scored.predictionCol):
        scored.set(column, f"bspauc__{column.name}")
    outputs = {
        "score": vector_to_array("bspauc__rawPredictionCol")[1],
        "probability": vector_to_array("bspauc__probabilityCol")[1],
        "prediction": cli.quoted("bspauc__predictionCol"),
    }
    cli.check_free(frame, outputs)
    kept = [cli.quoted(name) for name in cli.plain_columns(frame)]
    table = scored.transform(rows).select(*kept, *(column.alias(name) for name, column in outputs.items()))
    cli.write_table(table, args.output, args.output_format, args.overwrite)
    written = cli.read_table(spark, args.output, args.output_format)
    positive = written.where(cli.quoted("prediction") == last.getPositiveLabel()).count()
    return {"output": args.output, "rows": written.count(), "predicted_positive": positive}


if __name__ == "__main__":
    sys.exit(main())
