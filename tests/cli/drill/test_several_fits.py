"""``keras-preempt drill`` on scripts with several fits, on a stand-in for one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.drill.test_command import drill


def test_each_fit_is_preempted_and_compared_in_directories_of_its_own(tmp_path):
    options = ("--at", "step:7", "--at", "validation:5", "--at", "step:40", "--keep", str(tmp_path / "kept"))
    result = drill("--workers", "1", *options, env={"FAKE_FITS": "pre,runs/fine,pre"})
    last = result.stdout.splitlines()[-1]
    assert "tensors and all other state of 3 fits; 3 preemptions: w" in last
    assert re.search(r"w\d at step 7 \(fit 1, step 7 of its model\)", last)
    assert re.search(r"w\d in the validation after step 25 \(fit 2, step 5 of its model\)", last)
    assert re.search(r"w\d at step 40 \(fit 3, step 0 of its model\)", last)
    assert "0 steps lost" in last
    for run in ("undisturbed", "preempted"):
        places = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "kept" / run).iterdir())
        assert places == ["fine", "pre"]
        assert list((tmp_path / "kept" / run).glob("pre-*/fit-00002/step-*"))


def test_a_difference_in_a_later_fit_is_found_and_named_with_it():
    told = drill("--at", "step:26", code=1, fault="weights", env={"FAKE_FITS": "pre,fine"}).stdout
    assert "different: fit 2 (fine): weights: 1 of 6 values" in told
    assert "fit 1 (pre): weights" not in told
    assert "From step 6 on (fit 2 of 2, epoch 0, w0) the runs differ: weights." in told
    assert "right where it continued, at step 6, restart 1 of 1" in told


def test_a_killed_worker_continues_from_the_checkpoint_of_its_fit():
    options = ("--kill", "--save-every", "5", "--at", "step:33")
    told = drill(*options, env={"FAKE_FITS": "pre,fine"}).stdout
    assert "the newest checkpoint of fit 2 is of step 10: starting again" in told
    continued = "training continued from step 10: 3 steps run again."
    assert f"w0 killed, 13 steps done in fit 2; {continued}" in told
    assert "; 3 steps run again," in told.splitlines()[-1]


def test_a_directory_that_changes_with_each_start_is_reported_with_the_cure(tmp_path: Path):
    told = drill("--at", "step:4", code=3, env={"FAKE_FITS": "run-TIME"}, tmp=tmp_path).stderr
    assert "gives its PreemptionCallback another directory in each start: 'run-" in told
    assert list(tmp_path.iterdir()) == []
