"""The report: one page of HTML about a fit. The plots are inside it; it has no script and loads nothing."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import jinja2
import matplotlib as mpl
import pandas as pd

from bspauc_spark.results import plots
from bspauc_spark.results.diagnostics import MOST_SUSPICIOUS, Diagnostics
from bspauc_spark.results.headline import ASSUMPTION, NAMES, SHORT, Headline
from bspauc_spark.results.history import Round
from bspauc_spark.version import __version__


class Reported(Protocol):
    """What the page needs to know of a summary."""

    @property
    def rounds(self) -> tuple[Round, ...]: ...
    @property
    def best_round(self) -> int: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def about(self) -> Mapping[str, Any]: ...
    @property
    def diagnostics(self) -> Diagnostics | None: ...
    @property
    def history(self) -> pd.DataFrame: ...
    @property
    def headline(self) -> Headline: ...
    @property
    def training_rows(self) -> str: ...


# Matplotlib's colours, and the names under which the page has one for light and one for dark.
_COLOURS = {
    "#000000": "var(--axis)",
    "#b0b0b0": "var(--axis)",
    plots.POSITIVE: "var(--positive)",
    plots.NEGATIVE: "var(--negative)",
    plots.NEUTRAL: "var(--neutral)",
    plots.SECOND: "var(--second)",
}


def write_report(summary: Reported, path: Path, audited: pd.DataFrame | None = None) -> Path:
    """Write the report to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(summary, audited), encoding="utf-8")
    return path


def render(summary: Reported, audited: pd.DataFrame | None = None) -> str:
    """The report as text."""
    loader = jinja2.PackageLoader("bspauc_spark.results", "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["figure"] = _figure
    history, found, rows = summary.history, summary.diagnostics, summary.training_rows
    suspicious = pd.DataFrame(found.suspicious if found else ()) if audited is None else audited.head(MOST_SUSPICIOUS)
    return environment.get_template("report.html").render(
        summary=summary,
        about=summary.about,
        last=summary.rounds[summary.best_round - 1],
        assumption=ASSUMPTION,
        training_name=NAMES[rows],
        history=history[[*_SHOWN]].rename(columns={**_SHOWN, "train_auc": SHORT[rows]}),
        rounds={alt: _svg(draw) for alt, draw in plots.history_panels(history, summary.best_round, rows).items()},
        scores={alt: _svg(draw) for alt, draw in plots.score_panels(found).items()} if found else {},
        suspicious=suspicious,
        excluded={kind: sum(counts) for kind, counts in found.excluded.items()} if found else {},
        version=__version__,
    )


_SHOWN = {
    "round": "round",
    "lam": "λ",
    "positive_fraction": "positives kept",
    "negative_fraction": "negatives kept",
    "apd": "APD",
    "objective_before": "objective before",
    "objective_after": "after",
    "train_auc": "training AUC",
    "validation_auc": "validation AUC",
    "train_seconds": "seconds of training",
}


def _svg(draw: plots.Draw) -> str:
    """A panel as inline SVG, with the colours of the page."""
    buffer = io.StringIO()
    with plots.drawing, mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        plots.panel(draw).savefig(
            buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'aria-hidden="true"', text, count=1)
    for colour, name in _COLOURS.items():
        text = text.replace(colour, name)
    # The element around it has the label. Any font of the reader's machine will do.
    return re.sub(r"font: ([\d.]+px)[^;\"]*", r"font: \1 system-ui, sans-serif", text)


def _figure(value: Any) -> str:
    """The text of a value in a table."""
    if isinstance(value, float):
        if value != value:
            return "–"
        return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.4f}".rstrip("0").rstrip(".")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "…"
