"""Every notebook from top to bottom, in a kernel of its own; and that the committed ones carry their outputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize(
    "notebook",
    [NOTEBOOKS[0], *(pytest.param(one, marks=pytest.mark.thorough) for one in NOTEBOOKS[1:])],
    ids=lambda notebook: notebook.stem,
)
def test_the_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "notebooks.py"), notebook.stem, "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / notebook.name).exists()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_the_committed_notebook_can_be_read_with_its_outputs(notebook: Path) -> None:
    cells = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    # No path of the machine that ran it.
    assert str(ROOT) not in notebook.read_text()
    assert "/tmp/" not in notebook.read_text()


def test_plots_are_in_the_notebooks() -> None:
    pictures = [
        "image/png" in output.get("data", {})
        for notebook in NOTEBOOKS
        for cell in nbformat.read(notebook, as_version=4).cells
        for output in cell.get("outputs", [])
    ]
    assert sum(pictures) >= 2
