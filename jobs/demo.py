"""A whole example in one job: rare positives, a fifth of the labels wrong, four learners, one audit.

    spark-submit --master 'local[2]' jobs/demo.py [--rows 100000] [--output demo-output]

The data are Friedman's first regression problem (Friedman 1991, "Multivariate Adaptive Regression Splines"): ten
features uniform on [0, 1], of which five matter,

    f(x) = 10 sin(π x₁ x₂) + 20 (x₃ − ½)² + 10 x₄ + 5 x₅ + N(0, 1),

and a row is positive if f(x) is among the highest tenth. A fifth of the training labels is then flipped, drawn
among the three quarters of the rows that lie farthest from a linear discriminant, as in the paper: systematic
errors of labelling do not sit at the boundary. Nothing in the generator was chosen by looking at results.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from bspauc_spark.command_line import ending

ending.begin(__name__)

import numpy as np
import pandas as pd
from pyspark.ml.classification import GBTClassifier, LogisticRegression
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import DataFrame, SparkSession

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.command_line import cli
from bspauc_spark.noise import flip_labels

FEATURES = [f"x{i}" for i in range(1, 11)]


def friedman(rows: int, flipped: float, seed: int) -> pd.DataFrame:
    """Rows of Friedman's problem with the true label, the given (partly wrong) one, and a test part."""
    rng = np.random.default_rng(seed)
    x = rng.random((rows, len(FEATURES)))
    signal = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    noisy = signal + rng.normal(size=rows)
    truth = noisy >= np.quantile(noisy, 0.9)
    is_test = np.arange(rows) >= rows * 3 // 4
    wrong = np.zeros(rows, dtype=bool)
    wrong[~is_test] = flip_labels(x[~is_test], truth[~is_test], flipped, far_quantile=0.25, seed=seed)
    columns = dict(zip(FEATURES, x.T, strict=True))
    return pd.DataFrame({**columns, "truth": truth * 1.0, "label": (truth ^ wrong) * 1.0, "test": is_test})


def main() -> None:
    """Read the arguments; show the example, until its end or Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--flipped", type=float, default=0.2, help="share of the training labels that is wrong")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("demo-output"))
    args = parser.parse_args()
    with ending.in_order():
        _show(args)


def _show(args: argparse.Namespace) -> None:
    """Generate, fit, compare, audit, draw."""
    spark = cli.session("bspauc_spark demo")
    data = _assembled(spark, friedman(args.rows, args.flipped, args.seed))
    training, test = data.where("NOT test").cache(), data.where("test").cache()
    rows, wrong = training.count(), training.where("label != truth").count()
    positives = training.where("label = 1").count()
    print(f"\n{rows:,} training rows, {positives:,} labelled positive, {wrong:,} labels wrong ({wrong / rows:.0%})")
    print(f"{test.count():,} test rows with true labels\n", flush=True)

    learners: dict[str, Any] = {
        "BSPAUC": BSPAUCClassifier(seed=args.seed),
        "the same network, not self-paced": BSPAUCClassifier(seed=args.seed, selfPaced=False),
        "MLlib LogisticRegression": LogisticRegression(),
        "MLlib GBTClassifier (20 trees)": GBTClassifier(seed=args.seed),
    }
    fitted = {name: _fit(learner, training, test) for name, learner in learners.items()}
    print(f"\n{'':<34} {'test AUC':>9} {'seconds':>8}")
    for name, (_, auc, seconds) in fitted.items():
        print(f"{name:<34} {auc:9.4f} {seconds:8.1f}")

    model = fitted["BSPAUC"][0]
    _audit(model, training, wrong, rows)
    args.output.mkdir(parents=True, exist_ok=True)
    model.summary.plot().savefig(args.output / "rounds.png", dpi=120)
    model.summary.report(args.output / "report.html")
    print(
        f"\nThe rounds of the fit are drawn in {args.output / 'rounds.png'}, and a report is in report.html beside it"
    )
    spark.stop()


def _assembled(spark: SparkSession, frame: pd.DataFrame) -> DataFrame:
    return VectorAssembler(inputCols=FEATURES, outputCol="features").transform(spark.createDataFrame(frame))


def _fit(learner: Any, training: DataFrame, test: DataFrame) -> tuple[Any, float, float]:
    start = time.perf_counter()
    model = learner.fit(training)
    seconds = time.perf_counter() - start
    return model, BinaryClassificationEvaluator(labelCol="truth").evaluate(model.transform(test)), seconds


def _audit(model: BSPAUCModel, training: DataFrame, wrong: int, rows: int) -> None:
    """Say how many of the most suspicious labels are wrong indeed."""
    judged = model.audit(training).selectExpr("suspicion", "label != truth AS wrong").toPandas()
    ranked = judged.sort_values("suspicion", ascending=False)["wrong"].to_numpy()
    print(f"\nOf the labels that the audit suspects most ({wrong / rows:.0%} of all are wrong):")
    for count in (100, 1000, wrong):
        found = int(ranked[:count].sum())
        print(f"  {found:>6,} of the first {count:>6,} are wrong ({found / count:.1%})")


if __name__ == "__main__":
    main()
