"""The notebook of the examples runs from an empty folder, and shows what it prints.

`python -m tests.docs.test_notebook` runs it, and writes what it prints into the notebook.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.docs.pages import ROOT
from tests.docs.shown import plain

NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"
SECONDS_FOR_A_CELL = 1500  # Each start of TensorFlow takes its time on a busy machine.


def run(folder: Path) -> nbformat.NotebookNode:
    """Runs the notebook in a folder as Jupyter does; returns it with what it has printed.

    The package is installed already, so that its first cell has nothing to fetch, and may not.
    """
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "IPYTHONDIR": str(folder / "ipython"),
    }
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=SECONDS_FOR_A_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        store_history=True,
        record_timing=False,
    )
    client.execute(env={**os.environ, **environment})
    return notebook


def printed(cell: nbformat.NotebookNode) -> str:
    """What a cell has printed, without what a terminal gets besides: colours, and spaces at a line's end."""
    outputs = cell.get("outputs", [])
    written = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    return re.sub(r"[ \r]+$", "", re.sub(r"\x1b\[[0-9;]*m", "", written), flags=re.MULTILINE)


def kept(cell: nbformat.NotebookNode) -> str:
    """What the notebook keeps of that: neither what pip says, nor where it ran."""
    if "pip install" in cell.source:
        return ""
    text = re.sub(r"^keras_preempt: Platform: .*\n", "", printed(cell), flags=re.MULTILINE)
    return re.sub(rf"\b{re.escape(platform.node())}\b", "vm", text)


@pytest.mark.timeout(3600)
@pytest.mark.docs
def test_the_notebook_runs_from_an_empty_folder_and_prints_what_it_shows(tmp_path: Path) -> None:
    done = run(tmp_path)
    for shown, cell in zip(nbformat.read(NOTEBOOK, 4).cells, done.cells, strict=True):
        # As one line: where a table breaks depends on the lengths of times and versions.
        assert plain(re.sub("─+", "─", printed(shown))) == plain(re.sub("─+", "─", kept(cell)))
    assert {path.name for path in tmp_path.iterdir()} == {"ipython", "runs", "train.py"}


def test_the_notebook_shows_a_preemption_a_restart_and_the_verdict() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    shown = "".join(map(printed, notebook.cells))
    order = ["exit status: 75", "Continuing from", "exit status: 0", "VERDICT: identical", "2 preemptions"]
    places = [shown.find(each) for each in order]
    assert -1 not in places
    assert places == sorted(places)
    kinds = {output["output_type"] for cell in notebook.cells for output in cell.get("outputs", [])}
    assert kinds == {"stream"}


def write() -> None:
    """Runs the notebook and keeps what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = run(Path(folder))
    for cell in notebook.cells:
        cell.get("metadata", {}).clear()
        if cell.cell_type == "code":
            text = kept(cell)
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text else []
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    write()
