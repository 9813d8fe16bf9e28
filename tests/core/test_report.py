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

from bspauc_spark.results.summary import TrainingSummary
from tests.helpers.summaries import sample_summary


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
    path = sample_summary().report(tmp_path / "new" / "report.html")
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

    text = render(sample_summary())
    page = _Page(text)
    assert not {"script", "link", "iframe", "img", "object", "form"} & set(page.tags)
    # References inside the page only: the plots' own shapes and clip paths.
    assert all(address.startswith("#") for address in page.addresses)
    assert "url(http" not in text
    assert "@import" not in text


def test_names_and_values_of_the_caller_are_escaped() -> None:
    from bspauc_spark.results.report import render

    rows = pd.DataFrame({"<b>id</b>": ["<img src=x onerror=alert(1)>"], "suspicion": [0.9]})
    page = _Page(render(sample_summary(), rows))
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert "b" not in page.tags


def test_the_audited_rows_stand_in_place_of_the_bare_scores() -> None:
    from bspauc_spark.results.report import render

    rows = pd.DataFrame({"claim": [f"claim-{k}" for k in range(30)], "suspicion": np.linspace(1, 0, 30)})
    text = render(sample_summary(), rows)
    assert "claim-19" in text
    assert "claim-20" not in text


def test_plots_are_well_formed_and_take_the_pages_colours() -> None:
    from bspauc_spark.results.report import render

    plots = re.findall(r"<svg.*?</svg>", render(sample_summary()), re.DOTALL)
    for plot in plots:
        ET.fromstring(plot)
        assert "#000000" not in plot
        assert "var(--" in plot


def test_a_fit_without_validation_rows_says_whose_curves_they_are() -> None:
    from bspauc_spark.results.report import render

    text = render(sample_summary(float("nan")))
    assert "No row was held back" in text
    assert "validation AUC" not in text.split("<svg")[0]
    assert "<strong>0.8000</strong>training AUC on rows the network learned from, labels as given</li>" in text
    assert "estimated AUC on true labels" not in text
    assert ">nan<" not in text


def test_a_cross_fitted_model_says_that_its_auc_is_out_of_fold_and_what_that_says_about_true_labels() -> None:
    from bspauc_spark.results.report import render

    text = render(sample_summary(float("nan"), members=4, wrong_shares=(0.3, 0.1)))
    head, rest = text.split("<svg", maxsplit=1)
    assert "<title>BSPAUC fit: 0.8000 out-of-fold AUC (a single member&#39;s, so a lower estimate)" in head
    assert "<strong>0.8000</strong>out-of-fold AUC" in head
    # ½ + 0.3 / 0.6
    assert "<strong>≈ 1.000</strong>estimated AUC on true labels, if wrong labels are spread evenly" in head
    assert "mean of 4 members" in rest
    assert ">out-of-fold AUC</th>" in rest
    assert "training AUC" not in text


def test_what_a_table_found_about_its_selection_stands_at_the_top() -> None:
    from bspauc_spark.results.report import render

    summary = sample_summary()
    told = "All rows are kept: no labels were seen to be wrong."
    assert told not in render(summary)
    assert told in render(replace(summary, about={**summary.about, "verdict": told})).split("</header>")[0]


def test_a_summary_of_an_older_model_has_a_report_too() -> None:
    from bspauc_spark.results.report import render

    old = TrainingSummary.from_dict(
        {name: value for name, value in sample_summary().to_dict().items() if name not in ("diagnostics", "about")}
    )
    text = render(old)
    assert _Page(text).tags.count("svg") == 6


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_flat_histories_can_be_drawn(fraction: float) -> None:
    from bspauc_spark.results.report import render

    summary = sample_summary()
    render(replace(summary, rounds=tuple(replace(row, positive_fraction=fraction) for row in summary.rounds)))
