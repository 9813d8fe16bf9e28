"""The lines of code in the README, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

README = Path(__file__).resolve().parents[2] / "README.md"
NUMBER = re.compile(r"\d[\d.,]*\d")


@pytest.mark.classic
def test_the_lines_of_the_readme_print_what_it_shows(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(.*?)```\s+```\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    code, shown = found.groups()
    capsys.readouterr()
    exec(compile(code, README.name, "exec"), {})
    printed = capsys.readouterr().out
    assert NUMBER.sub("…", printed) == NUMBER.sub("…", shown)
    # Another type of CPU gives other last bits, and a training amplifies them.
    assert numbers(printed) == pytest.approx(numbers(shown), rel=0.01)


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]
