"""The page about a fit: what is on it, and that nothing on it reaches out or can be injected."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bspauc_spark.results.diagnostics import Diagnostics
from bspauc_spark.results.history import Round
from bspauc_spark.results.summary import TrainingSummary
from bspauc_spark.selection import solve
from bspauc_spark.selection.label_noise import estimate_label_noise
from bspauc_spark.statistics import ClassScores
from bspauc_spark.theta.scores import Scores


def _round(number: int, validation_auc: float) -> Round:
    zeros = dict.fromkeys(Round.__dataclass_fields__, 0.0)
    return Round(
        **{**zeros, "round": number, "updates": 2, "train_auc": 0.8, "validation_auc": validation_auc, "lam": 0.5}
    )


def _summary(validation_auc: float = 0.91) -> TrainingSummary:
    rng = np.random.default_rng(0)
    pos, neg = (ClassScores.from_array(rng.normal(middle, 1, 500)) for middle in (1, -1))
    found = Diagnostics.of(Scores(pos, neg, None), solve(pos, neg, 0.5, 0.5), estimate_label_noise(pos, neg))
    about = {
        "started": "2026-01-01 10:00+00:00",
        "seconds": 12.3,
        "workers": 2,
        "params": {"network": "mlp", "rounds": 2, "labelCol": "<script>alert(1)</script>"},
        "data": {"features": 7, "fingerprint": "abc"},
        "versions": {"torch": "2.13"},
    }
    counts = {"positives": 500, "negatives": 12_500}
    return TrainingSummary((_round(1, 0.9), _round(2, validation_auc)), 2, counts, found, about)


class _Page(HTMLParser):
    """Collects what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.labels: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        if values.get("role") == "img":
            self.labels.append(values.get("aria-label") or "")
        self.addresses += [v for k, v in attrs if k in ("src", "href", "xlink:href", "action") and v]


def test_the_page_shows_rounds_scores_suspects_and_how_to_load(tmp_path: Path) -> None:
    path = _summary().report(tmp_path / "new" / "report.html")
    text = path.read_text()
    page = _Page(text)
    assert len(page.labels) == 10
    assert all(page.labels)
    assert page.tags.count("svg") == 10
    for expected in ("0.9100", "12,500", "round\n2 kept", "2 workers", "BSPAUCModel.loadLocal", "array with 7 columns"):
        assert expected in text
    assert text.count("<tr") > 20


def test_the_page_has_no_script_and_asks_nobody_for_anything() -> None:
    from bspauc_spark.results.report import render

    text = render(_summary())
    page = _Page(text)
    assert not {"script", "link", "iframe", "img", "object", "form"} & set(page.tags)
    # References inside the page only: the plots' own shapes and clip paths.
    assert all(address.startswith("#") for address in page.addresses)
    assert "url(http" not in text
    assert "@import" not in text


def test_names_and_values_of_the_caller_are_escaped() -> None:
    from bspauc_spark.results.report import render

    rows = pd.DataFrame({"<b>id</b>": ["<img src=x onerror=alert(1)>"], "suspicion": [0.9]})
    page = _Page(render(_summary(), rows))
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert "b" not in page.tags


def test_the_audited_rows_stand_in_place_of_the_bare_scores() -> None:
    from bspauc_spark.results.report import render

    rows = pd.DataFrame({"claim": [f"claim-{k}" for k in range(30)], "suspicion": np.linspace(1, 0, 30)})
    text = render(_summary(), rows)
    assert "claim-19" in text
    assert "claim-20" not in text


def test_plots_are_well_formed_and_take_the_pages_colours() -> None:
    from bspauc_spark.results.report import render

    plots = re.findall(r"<svg.*?</svg>", render(_summary()), re.DOTALL)
    for plot in plots:
        ET.fromstring(plot)
        assert "#000000" not in plot
        assert "var(--" in plot


def test_a_fit_without_validation_rows_says_whose_curves_they_are() -> None:
    from bspauc_spark.results.report import render

    text = render(_summary(float("nan")))
    assert "No row was held back" in text
    assert "validation AUC</li>" not in text
    assert ">nan<" not in text


def test_a_summary_of_an_older_model_has_a_report_too() -> None:
    from bspauc_spark.results.report import render

    old = TrainingSummary.from_dict(
        {name: value for name, value in _summary().to_dict().items() if name not in ("diagnostics", "about")}
    )
    text = render(old)
    assert _Page(text).tags.count("svg") == 6


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_flat_histories_can_be_drawn(fraction: float) -> None:
    from bspauc_spark.results.report import render

    summary = _summary()
    render(replace(summary, rounds=tuple(replace(row, positive_fraction=fraction) for row in summary.rounds)))
