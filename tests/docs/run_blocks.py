"""Runs Python blocks and commands of the pages, one after the other, in one process that has TensorFlow.

``python run_blocks.py REQUEST RESULTS``: the request is JSON, a list of blocks with `where`, `names` (preparations),
and either `code` or `commands` (words of `keras-preempt`). The results are JSON: for each `where` the error, or "".
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

import keras

from keras_preempt.cli.main import main as keras_preempt_main
from keras_preempt.training.run import several_fits
from tests.docs.pages import SKIPPED
from tests.docs.preparations import Missing, Names, prepared

# A command that names such a file writes it.
_WRITTEN = re.compile(r".*\.(html|h5|keras|safetensors)")


def run_python(where: str, code: str, names: Names) -> None:
    # /shared is for a path that all workers share; here it is in this block's folder.
    exec(compile(code.replace('"/shared/', '"shared/'), where, "exec"), names)


def run_command(words: list[str]) -> int:
    """Runs a command of the command line; returns its exit status, or fails with what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = keras_preempt_main(words)
    assert status == 0, f"keras-preempt {' '.join(words)}: exit status {status}\n{printed.getvalue()}"
    for word in words:
        assert not _WRITTEN.fullmatch(word) or Path(word).exists(), (
            f"{word} was not written\n{printed.getvalue()}"
        )
    return status


def run_block(block: dict[str, Any]) -> None:
    names: Names = {"__name__": "__main__"}
    with contextlib.ExitStack() as around:
        around.enter_context(mock.patch.dict("os.environ"))
        # Fits of a process are counted by directory. Each block is taken for a process of its own.
        around.enter_context(mock.patch.dict(several_fits._scripts, clear=True))
        for name in block["names"]:
            names.update(around.enter_context(prepared(name, names)))
        if "code" in block:
            run_python(block["where"], block["code"], names)
        for words in block.get("commands", []):
            run_command(words)


def main(request: Path, results: Path) -> None:
    errors = {}
    for block in json.loads(request.read_text()):
        folder = request.parent / re.sub(r"\W", "-", block["where"])
        folder.mkdir()
        os.chdir(folder)
        keras.utils.clear_session()
        began = time.process_time()
        errors[block["where"]] = ""
        try:
            run_block(block)
        except Missing as missing:
            errors[block["where"]] = f"{SKIPPED}{missing}"
        except BaseException:  # Also SystemExit, with which training leaves.
            errors[block["where"]] = traceback.format_exc()
        print(f"{block['where']}: {time.process_time() - began:.1f} s of the processor", flush=True)
    results.write_text(json.dumps(errors))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
