"""The example does what its page says: it trains, goes on, and survives its own drill."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.cli.main import main
from tests.cluster.harness import QUIET_CPU, keras_preempt, run_cluster
from tests.docs.shown import assert_shown, assert_shown_after

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.py"


def assert_goes_on_where_it_stopped(*arguments: object, **options: Any) -> None:
    """Trains an epoch of the example in one process, and then another one."""
    words = [*map(str, arguments), "--epochs"]
    first = run_cluster(EXAMPLE, 1, args=[*words, "1"], **options).assert_ok()
    assert "44/44" in first.outputs[0]
    assert "validation accuracy:" in first.outputs[0]

    more = run_cluster(EXAMPLE, 1, args=[*words, "2"], **options).assert_ok()
    assert "Continuing from step-00000044/00001-0000" in more.outputs[0]
    assert "Epoch 1/2" not in more.outputs[0]
    assert "Epoch 2/2" in more.outputs[0]


def test_example_trains_on_one_device_and_goes_on_where_it_stopped(tmp_path):
    assert_goes_on_where_it_stopped(tmp_path / "run")


@pytest.mark.docs
def test_example_on_two_workers_ends_with_the_same_bits_after_a_preemption(tmp_path, monkeypatch, capsys):
    log = tmp_path / "log"
    asked = f"drill --workers 2 --preempt 1 --seed 1 --timeout 400 --keep {tmp_path}/kept --"
    script = f"{sys.executable} {EXAMPLE} {tmp_path}/unused --epochs 2"
    with log.open("w") as output:
        environment = {**os.environ, **QUIET_CPU}
        done = subprocess.run(
            [*keras_preempt(), *asked.split(), *script.split()], env=environment, stdout=output, stderr=output
        )
    assert done.returncode == 0, log.read_text()
    assert not (tmp_path / "unused").exists(), "a drill trains in directories of its own"

    # The documentation shows this drill, and what may be looked at after it.
    assert_shown("digits drill", log.read_text())
    (preempted,) = (tmp_path / "kept" / "preempted").iterdir()
    (tmp_path / "runs").mkdir()
    for name in ("digits", "1"):
        (tmp_path / "runs" / name).symlink_to(preempted)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))

    def command(words: list[str]) -> str:
        main(words)
        return capsys.readouterr().out

    assert_shown_after("digits drill", preempted, command)
