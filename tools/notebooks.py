"""Run the notebooks and keep their outputs: ``python tools/notebooks.py [--output FOLDER] [NAME …]``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def execute(notebook: Path, output: Path) -> None:
    """Run every cell in a new kernel of this Python; an error in one is an error here."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    content = nbformat.read(notebook, as_version=4)
    # In the folder of the output, so that nothing is written beside the notebooks.
    NotebookClient(content, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(output)}}).execute()
    for cell in content.cells:
        # When and how long is different each time.
        cell.get("metadata", {}).pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [shown for shown in cell.outputs if shown.get("name") != "stderr"]
    nbformat.write(content, output / notebook.name)


def main() -> None:
    """Run those named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--output", type=Path, default=NOTEBOOKS, help="default: in place")
    args = parser.parse_args()
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not args.names or notebook.stem in args.names:
            print(notebook.stem, flush=True)
            execute(notebook, args.output)


if __name__ == "__main__":
    main()
