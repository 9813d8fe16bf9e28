"""All ratios of docs/performance.md in one run: prints the table, stores it, and draws it.

    python benchmarks/run.py [--large] [--only fit transform]

Each row comes from one of the benchmarks beside this file, which measures both sides in turn. Without ``--large`` the
sizes suit two cores and some ten minutes; with it they are those of the goals. The rows go to
docs/performance/ratios.json, where rows that were not measured stay as they were, into the table of
docs/performance.md, and into docs/performance/ratios.png.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
STORE, PICTURE, PAGE = DOCS / "performance/ratios.json", DOCS / "performance/ratios.png", DOCS / "performance.md"
START, END = "<!-- ratios: written by benchmarks/run.py -->", "<!-- end of ratios -->"


@dataclass(frozen=True)
class Ratio:
    """A row of the table: what is measured against what, by which benchmark and under which keys of its JSON."""

    what: str
    against: str
    goal: str
    benchmark: str
    keys: tuple[str, ...]

    def met(self, value: float) -> bool | None:
        """Whether the goal is reached; nothing without a goal."""
        if not self.goal:
            return None
        sign, bound = self.goal.split()
        return value <= float(bound) if sign == "≤" else value >= float(bound)


RATIOS = (
    Ratio("`solve`, 11 M scores, sorting included: time", "`np.sort` of the same arrays", "≤ 1.3", "solve", ("worst",)),
    Ratio(
        "θ block, eight layers of 64, batch 1,024: pairs/s",
        "a bare torch loop on arrays in memory",
        "≥ 0.9",
        "theta",
        ("speed_against_bare_torch", "theta_block"),
    ),
    Ratio(
        "scoring of staged rows, one thread: rows/s",
        "bare torch forward on arrays in memory",
        "≥ 0.8",
        "theta",
        ("speed_against_bare_torch", "score"),
    ),
    Ratio(
        "whole fit, 64 features: time",
        "the same loop as a plain torch script that reads the same Parquet",
        "≤ 1.25",
        "fit",
        ("times_the_plain_one", "fit"),
    ),
    Ratio(
        "staging: time", "Spark writing the same columns as Parquet", "≤ 1.2", "fit", ("times_the_plain_one", "staging")
    ),
    Ratio("`transform`: rows/s", "an identity `mapInArrow` on the same columns", "≥ 0.8", "transform", ("identity",)),
    Ratio("`transform`: rows/s", "`vector_to_array` into the noop sink", "≥ 0.3", "transform", ("read",)),
    Ratio("`transform`: rows/s", "`xgboost.spark`, 100 trees", "≥ 1.0", "transform", ("xgboost",)),
    Ratio("`transform`: rows/s", "MLlib's GBT, 20 trees", "≥ 1.0", "transform", ("gbt",)),
    Ratio(
        "fit, ten times the rows, same steps: time per row", "a tenth of them", "≤ 1.1", "scale", ("seconds_per_row",)
    ),
    Ratio(
        "driver's memory, sorted scores: bytes for each more row",
        "a tenth of the rows",
        "≤ 8",
        "scale",
        ("driver_bytes_per_row", "exact"),
    ),
    Ratio(
        "driver's memory, binned scores: bytes for each more row",
        "a tenth of the rows",
        "",
        "scale",
        ("driver_bytes_per_row", "binned"),
    ),
    Ratio("fit, θ side in two processes: time", "in the driver's process", "", "scale", ("two_processes",)),
    Ratio(
        "a step on sparse rows, 5,000,000 features: time",
        "a bare torch loop with dense gradients, 50,000 features",
        "",
        "sparse",
        ("step_over_bare_torch_at_the_smallest_width", "5,000,000"),
    ),
)
SMALL = {"fit": ["--rows", "300000"], "scale": ["--rows", "100000"], "theta": ["--rows", "300000"]}
ALWAYS = {"theta": ["--batch", "1024", "--steps", "60"], "transform": ["--features", "64"], "sparse": ["--only-steps"]}


def measure(name: str, options: list[str]) -> dict[str, Any]:
    """The JSON that a benchmark prints, several lines of it joined."""
    print(f"… benchmarks/{name}.py {' '.join(options)}", file=sys.stderr, flush=True)
    command = [sys.executable, str(HERE / f"{name}.py"), *options]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    found: dict[str, Any] = {}
    for line in out.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| what | against | goal | measured |", "|---|---|---|---|"]
    for row in rows:
        mark = {True: "", False: " **missed**", None: ""}[row["met"]]
        lines.append(f"| {row['what']} | {row['against']} | {row['goal'] or 'stated'} | {row['value']:g}{mark} |")
    machines = ", ".join(sorted({row["machine"] for row in rows}))
    return "\n".join([*lines, "", f"Measured on {machines}."])


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row["goal"]][::-1]
    better = [float(row["goal"].split()[1]) / row["value"] for row in shown]
    better = [b if row["goal"].startswith("≤") else 1 / b for b, row in zip(better, shown, strict=True)]
    figure, axes = plt.subplots(figsize=(9, 0.45 * len(shown) + 1.2), layout="constrained")
    colours = ["tab:blue" if row["met"] else "tab:red" for row in shown]
    axes.barh([f"{row['what']}\n{row['against']}".replace("`", "") for row in shown], better, color=colours)
    for place, (row, length) in enumerate(zip(shown, better, strict=True)):
        axes.text(max(length, 1) * 1.03, place, f"{row['value']:g} (goal {row['goal']})", va="center", fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(right=2.5 * max(better))
    axes.set_xticks([0.5, 1, 2, 4], ["½", "1", "2", "4"])
    axes.minorticks_off()
    axes.set_xlabel("times as good as the goal")
    axes.tick_params(axis="y", labelsize=7)
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", nargs="*", default=sorted({ratio.benchmark for ratio in RATIOS}))
    args = parser.parse_args()
    size = "the sizes of the goals" if args.large else "small sizes"
    machine = f"{len(os.sched_getaffinity(0))} shared cores ({platform.machine()}), no GPU, {size}"
    STORE.parent.mkdir(exist_ok=True)
    stored = {(row["what"], row["against"]): row for row in json.loads(STORE.read_text())} if STORE.exists() else {}
    for name in args.only:
        found = measure(name, ALWAYS.get(name, []) + ([] if args.large else SMALL.get(name, [])))
        for ratio in RATIOS:
            if ratio.benchmark == name:
                value: Any = found
                for key in ratio.keys:
                    value = value[key]
                row = {**asdict(ratio), "value": value, "met": ratio.met(value), "machine": machine}
                stored[ratio.what, ratio.against] = row
    rows = [stored[r.what, r.against] for r in RATIOS if (r.what, r.against) in stored]
    STORE.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    print(table(rows))
    page = PAGE.read_text()
    before, after = page.split(START)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{START}\n{table(rows)}\n{END}{after}")
    draw(rows)


if __name__ == "__main__":
    main()
