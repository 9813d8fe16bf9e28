"""The paper's tables and figures from finished runs: means beside the paper's own, wins and losses, pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from bspauc_spark.reproduction import paper
from bspauc_spark.reproduction.cells import Cell
from bspauc_spark.reproduction.methods import METHODS

TABLE_2 = ("sector", "rcv1", "a9a", "shuttle", "aloi27", "skin_nonskin", "cod-rna", "poker")
TABLE_3 = ("rcv1", "a9a", "skin_nonskin", "cod-rna")
NOISES = ("flip", "poison")
PERCENTS = (10, 20, 30)
OURS = "bspauc"

# How near our data are to the paper's, where they are not the same.
STATUS = {
    "sector": "1,826 of 9,619 rows",
    "rcv1": "other documents of RCV1-v2",
    "aloi27": "stand-in for aloi",
    "poker": "dealt anew",
}


def cells(table: int) -> list[Cell]:
    """The cells of Table 2 or 3."""
    if table == 2:
        return [Cell(name) for name in TABLE_2]
    return [Cell(name, noise, percent) for name in TABLE_3 for noise in NOISES for percent in PERCENTS]


def in_paper(cell: Cell, method: str) -> paper.Figure:
    """The paper's mean and standard deviation, if it has one."""
    if cell.noise == "clean":
        return paper.TABLE_2.get(("aloi" if cell.dataset == "aloi27" else cell.dataset,), {}).get(method)
    return paper.TABLE_3.get((cell.dataset, cell.noise, str(cell.percent)), {}).get(method)


def summarise(records: Iterable[Mapping[str, Any]], wanted: list[Cell]) -> pd.DataFrame:
    """Mean and standard deviation per cell and method, the paper's beside them."""
    found: dict[tuple[Cell, str], list[Mapping[str, Any]]] = {}
    for record in records:
        if record["kind"] == "trial":
            found.setdefault((Cell(**record["cell"]), record["method"]), []).append(record)
    rows = []
    for cell in wanted:
        for method in METHODS:
            trials = found.get((cell, method), [])
            if trials:
                aucs = pd.Series([trial["auc"] for trial in trials])
                mean, std = in_paper(cell, method) or (float("nan"), float("nan"))
                rows.append(
                    {
                        "dataset": cell.dataset,
                        "noise": cell.noise,
                        "percent": cell.percent,
                        "method": method,
                        "trials": len(aucs),
                        "auc": aucs.mean(),
                        "std": aucs.std(ddof=1) if len(aucs) > 1 else float("nan"),
                        "paper_auc": mean,
                        "paper_std": std,
                        "seconds": pd.Series([trial["seconds"] for trial in trials]).mean(),
                    }
                )
    return pd.DataFrame(rows)


def markdown(summary: pd.DataFrame) -> str:
    """A row a cell, a column a method: our mean ± standard deviation, below it the paper's mean; the best in bold."""
    methods = [method for method in METHODS if method in set(summary["method"])]
    lines = ["| data | " + " | ".join(METHODS[method].title for method in methods) + " |"]
    lines.append("|---" * (len(methods) + 1) + "|")
    for cell, rows in summary.groupby(["dataset", "noise", "percent"], sort=False):
        best = rows["auc"].max()
        by_method = rows.set_index("method")
        entries = [_entry(by_method.loc[m], best) if m in by_method.index else "" for m in methods]
        status = STATUS.get(str(cell[0]))
        title = Cell(*cell).title + (f"<br>({status})" if status else "")
        lines.append(f"| {title} | " + " | ".join(entries) + " |")
    return "\n".join(lines) + "\n"


def _entry(row: pd.Series[Any], best: float) -> str:
    text = f"{row['auc']:.3f}" + (f" ± {row['std']:.3f}" if pd.notna(row["std"]) else "")
    if round(row["auc"], 3) >= round(best, 3):
        text = f"**{text}**"
    return text + (f"<br>paper {row['paper_auc']:.3f}" if pd.notna(row["paper_auc"]) else "")


def wins(summary: pd.DataFrame) -> str:
    """How BSPAUC does against each method over the cells that both have, and against the best of the paper's."""
    table = summary.pivot_table(index=["dataset", "noise", "percent"], columns="method", values="auc", sort=False)
    if OURS not in table:
        return ""
    lines = ["| BSPAUC against | better | equal | worse | mean difference |", "|---|---|---|---|---|"]
    for method in METHODS:
        if method != OURS and method in table:
            difference = (table[OURS] - table[method]).dropna()
            better, worse = int((difference > 5e-4).sum()), int((difference < -5e-4).sum())
            equal = len(difference) - better - worse
            lines.append(f"| {METHODS[method].title} | {better} | {equal} | {worse} | {difference.mean():+.4f} |")
    return "\n".join(lines) + "\n\n" + _standing(summary) + _kernel_gain(table)


def _standing(summary: pd.DataFrame) -> str:
    """In how many cells BSPAUC is best of the paper's methods, or within one standard deviation of the best."""
    best, near, below = 0, 0, []
    groups = list(summary.groupby(["dataset", "noise", "percent"], sort=False))
    for cell, rows in groups:
        named = rows[[METHODS[method].of_the_paper for method in rows["method"]]].set_index("method")
        if OURS not in named.index:
            continue
        top, ours = named.loc[named["auc"].idxmax()], named.loc[OURS]
        spread = max(value for value in (top["std"], ours["std"], 0.0) if pd.notna(value))
        if ours["auc"] >= top["auc"]:
            best += 1
        elif top["auc"] - ours["auc"] <= spread:
            near += 1
        else:
            title = Cell(*cell).title
            below.append(f"{title} ({METHODS[str(top.name)].title} {top['auc']:.4f}, BSPAUC {ours['auc']:.4f})")
    text = (
        f"Of the paper's methods BSPAUC is best in {best} of {len(groups)} cells, and within one standard deviation of "
        f"the best in {near} more"
    )
    return text + (". Below that: " + "; ".join(below) if below else "") + ".\n"


def _kernel_gain(table: pd.DataFrame) -> str:
    if "tsam" not in table or "bspauc-kernel" not in table:
        return ""
    gain = (table["bspauc-kernel"] - table["tsam"]).mean()
    return f"\nKernel BSPAUC against TSAM, on average: {gain:+.4f}.\n"


def plot(points: pd.DataFrame, value: str, label: str) -> Figure:
    """One panel a data set: ``value`` over λ_∞, a line for each ν."""
    names = list(dict.fromkeys(points["dataset"]))
    figure = Figure(figsize=(4.2 * max(1, len(names)), 3.6), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    ratios = sorted(points["nu"].unique())
    for axis, name in zip(axes, names, strict=True):
        of_set = points[points["dataset"] == name]
        for number, nu in enumerate(ratios):
            line = of_set[of_set["nu"] == nu].groupby("lambda_max")[value].mean()
            shade = 0.15 + 0.7 * number / max(1, len(ratios) - 1)
            axis.plot(
                line.index, line.to_numpy(), "o-", ms=4, color=(0.1, 0.75 - 0.6 * shade, shade), label=f"ν = {nu:g}"
            )
        axis.set_xscale("log")
        axis.set_title(name, loc="left")
        axis.set_xlabel("λ_∞")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(label)
    axes[-1].legend(frameon=False, fontsize=8)
    return figure
