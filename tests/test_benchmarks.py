"""The benchmarks run and print what they promise; of the figures, only what no machine changes is asserted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures import Aims, unsteady

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )


def _rows(output: str) -> dict[str, list[str]]:
    """The cells of each row after its title, which ends where two spaces begin."""
    rows = {}
    for line in output.splitlines():
        title, *cells = re.split(r"\s{2,}", line.strip())
        if cells:
            rows[title] = cells
    return rows


def test_idle_cost_measures_the_callbacks_of_a_real_fit_and_costs_less_than_tensorflows_handler() -> None:
    result = _run("all.py", "--quick", "--only", "idle_cost.py", "input_state.py")
    assert result.returncode == 0, result.stdout + result.stderr
    printed, all_ratios = result.stdout.split("\n=== All")
    assert float(_rows(printed)["1,000 elements of 8 bytes"][1]) > 0
    told = _rows(all_ratios)["a step under the callback, idle"]
    rows = _rows(printed)
    ours = rows["with PreemptionCallback and _Last"]
    theirs = rows["through PreemptionCheckpointHandler.run"]
    assert len(ours) == len(theirs) == len(rows["ns per step"]) == 4
    net, ratio = float(ours[2]), float(ours[3])
    assert net > 0
    assert 0 < ratio < 1
    assert told == ["TensorFlow's handler", f"{ratio:.2f}", "less", "idle_cost.py"]
    assert theirs[3] == "1.00"
    assert 0 < float(rows["through keras_preempt.PreemptionCheckpointHandler.run"][3]) < 1
    assert "with one empty keras.callbacks.Callback" in rows
    # TensorFlow's handler did its work and did not only pass the call through.
    assert float(theirs[2]) > float(rows["a function that does nothing"][0])


def test_a_missed_aim_is_named_and_makes_the_status_non_zero() -> None:
    """With an aim that nothing can reach."""
    missing = "import sys, idle_cost; idle_cost.AIM = 0.0; sys.exit(idle_cost.main(sys.argv[1:]))"
    result = subprocess.run(
        [sys.executable, "-c", missing, "--repetitions", "4", "--steps", "50"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=BENCHMARKS,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(BENCHMARKS.parent)},
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(r"ours, net: \d+\.\d\d ns \(aim: below 0 ns: MISSED\)", result.stdout)


@pytest.mark.parametrize(
    ("value", "relation", "bound", "met"),
    [(1, "below", 1, False), (0.9, "below", 1, True), (1, "at most", 1, True), (1, "above", 1, False)],
)
def test_an_aim_is_met_or_missed(value: float, relation: str, bound: float, met: bool) -> None:
    aims = Aims()
    aims.check("figure", value, relation, bound)
    aims.check("other", 2, "at least", 1)
    assert aims.report() == (0 if met else 1)


def test_an_aim_that_a_run_cannot_judge_is_said_and_is_not_missed(capsys: pytest.CaptureFixture[str]) -> None:
    aims = Aims()
    aims.check("figure", 0.5, "above", 1, unsure="the disk alone varied 7.0-fold")
    assert aims.report() == 0
    assert (
        "figure: 0.50 (aim: above 1: not judged, the disk alone varied 7.0-fold)" in capsys.readouterr().out
    )
    assert (unsteady([1.0, 1.9]), unsteady([1.0, 7.0])) == ("", "the disk alone varied 7.0-fold")


def test_notice_to_exit_runs_both_handlers_and_ours_runs_no_extra_step() -> None:
    result = _run("notice_to_exit.py", "--workers", "2", "--runs", "1")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = _rows(result.stdout)
    assert rows["milliseconds"] == ["ours p50", "p99", "TensorFlow's p50", "p99", "ratio of p50"]
    assert rows["2 workers: extra steps"] == ["0", "0", *rows["2 workers: extra steps"][2:]]
    aligned, committed, gone = (
        float(rows[f"2 workers: notice -> {what}"][0])
        for what in ("aligned", "committed", "exit, last worker")
    )
    assert 0 < aligned < committed < gone
    assert "0 extra steps, 0 failed runs; TensorFlow's: 0 failed runs" in result.stdout


def test_notice_to_exit_tells_of_a_job_that_does_not_end_as_a_preempted_one() -> None:
    """No machine has the memory for this model."""
    result = _run("notice_to_exit.py", "--workers", "2", "--runs", "1", "--width", "1000000000")
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stderr.count("FAILED with 2 workers: ") == 2
    assert "did not get to step" in result.stderr
    assert _rows(result.stdout)["2 workers: notice -> aligned"] == ["-", "-", "-", "-"]
    assert "Ours: 0 extra steps, 1 failed runs; TensorFlow's: 1 failed runs." in result.stdout


def test_save_measures_every_way_to_save_and_ours_takes_no_more_memory_than_promised() -> None:
    small = ("--megabytes", "48", "--repetitions", "1", "--no-peaks", "--no-aims")
    result = _run("save.py", *small, "--writers", "1", "2", "4")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = _rows(result.stdout)
    columns = ("save", "restore, cached", "restore, not cached")
    others = ("tf.train.Checkpoint", "model.save_weights", "safetensors.save_file", "os.write / os.readv")
    for column in columns:
        for name in ("keras-preempt", *others):
            assert float(rows[f"{column}: {name}"][1]) > 0
        assert rows[f"{column}: tf.train.Checkpoint"][3] == "1.00"
        assert rows[f"{column}: os.write / os.readv"][2] == "1.00"
    for count in ("1 writer", "2 writers", "4 writers"):
        least, most = map(float, rows[count][2].split(" - "))
        assert 0.9 <= least <= most <= 1.1
    larger = _run("save.py", "--megabytes", "160", "--peak-of", "keras-preempt")
    peak = json.loads(larger.stdout.splitlines()[-1])
    assert peak["save"] < 0.4  # nothing but 32 MiB of buffers
    assert 0.9 < peak["restore, cached"] < 1.4


def test_a_background_save_holds_training_up_for_about_one_copy_of_the_state() -> None:
    result = _run("background_save.py", "--gb", "0.1", "--repetitions", "5", "--no-aims")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = _rows(result.stdout)
    assert float(rows["training held up by a save"][2]) < 4  # 1.5 on a machine that does nothing else
    peak = re.search(r"Peak memory beyond the model's: ([0-9.]+) x the state", result.stdout)
    assert peak is not None
    assert 0.9 < float(peak.group(1)) < 1.4


@pytest.mark.chaos
def test_grace_uses_most_of_the_time_and_is_gone_before_it_is_over() -> None:
    result = _run("grace.py", "--quick")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = _rows(result.stdout)
    assert rows["grace of 10 s"] == ["ours p50", "least", "TensorFlow's p50", "least"]
    used = float(rows["used, % of the grace"][0])
    committed, gone = (float(rows[what][0]) for what in ("committed, s left", "last process gone, s left"))
    assert 0 < gone < committed < 10 * (1 - used / 100)
    assert "Ours: 0 runs too late, 0 failed." in result.stdout
