"""Killed without notice, with saves in memory: the restart goes on from there, and reads nothing from the directory.

| lost | one device | 2 workers | 3, 4 workers |
|---|---|---|---|
| a process, and not its machine | x, under the launcher | chaos | chaos |
| any one machine, with its memory | | x; on JAX: x | chaos |
| two neighbouring machines at once | | | chaos: the newest checkpoint in the directory |
| a worker's save | | x | |
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keras_preempt.checkpoint.failpoints import VARIABLE
from tests.cluster import harness
from tests.cluster.forked import QUIET_CPU
from tests.cluster.jax_training import JaxTraining
from tests.cluster.training import SCRIPT, Strike, Training, Undisturbed


class InMemory(Training):
    """A job that saves in memory at every other step, each worker as if on a machine of its own."""

    def __init__(self, folder: Path, workers: int = 1, *args: str, slow: float = 0.1) -> None:
        self.memory = folder / "memory"
        self.memory.mkdir(parents=True)
        options = ["--memory-every", "2", "--memory-dir", str(self.memory), "--slow", str(slow), *args]
        super().__init__(folder, workers, options)

    def lose(self, *machines: int) -> None:
        """What these machines had in memory is gone."""
        for machine in machines:
            (folder,) = self.memory.glob(f"*/*/w{machine:05d}")
            shutil.rmtree(folder)

    def restored(self) -> list[tuple[int, bool]]:
        """From which step each worker has continued at last, and whether from memory."""
        events = [self.events(worker)[-1]["restore"][0] for worker in range(self.workers)]
        return [
            (int(each["checkpoint"][len("step-") :].partition("/")[0]), each["memory_age"] is not None)
            for each in events
        ]

    def finish_from_memory(self, undisturbed: Training, died_at: int) -> None:
        """Comes to the same end. What is run again is no more than what was trained since the save before the last."""
        assert not list(self.directory.glob("step-*"))  # Nothing else is there to continue from.
        self.finish()
        ((step, from_memory),) = set(self.restored())
        assert from_memory
        assert died_at - 8 <= step <= died_at
        self.assert_same_end(undisturbed)
        for worker in range(self.workers):
            assert set(self.steps(worker)) == set(undisturbed.steps(worker))
        assert not list(self.memory.iterdir())


def test_any_machine_of_two_may_be_lost_with_its_memory(tmp_path: Path, undisturbed: Undisturbed) -> None:
    training = InMemory(tmp_path, 2, slow=0.3)  # On a busy machine agreeing may take seconds.
    # The save in which one worker fails is dropped by both, and the next one counts.
    failing = {1: {VARIABLE: "save.between-parts=raise"}}
    result = training.start(Strike("batch 2 2", (0,), signal="SIGKILL", settle=False), per_worker_env=failing)
    assert result.codes[0] == -9
    assert "Not saved in memory" in result.outputs[1]
    training.lose(0)
    training.finish_from_memory(undisturbed(2), died_at=14)


@pytest.mark.chaos
@pytest.mark.parametrize(("workers", "lost"), [(2, 1), (3, 0), (3, 2), (4, 0), (4, 1), (4, 3)])
@pytest.mark.parametrize("machine", [True, False], ids=["machine", "process"])
def test_any_one_of_several_may_be_lost(
    workers: int, lost: int, machine: bool, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = InMemory(tmp_path, workers)
    for place, died_at in (("batch 1 5", 11), ("batch 2 5", 17)):
        training.start(Strike(place, (lost,), signal="SIGKILL", settle=False))
        if machine:
            training.lose(lost)
        ends = place == "batch 2 5"
        if ends:
            training.finish_from_memory(undisturbed(workers), died_at)


@pytest.mark.chaos
def test_a_notice_right_after_the_restart_puts_it_into_the_directory(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = InMemory(tmp_path, 2)
    training.start(Strike("batch 1 5", (1,), signal="SIGKILL", settle=False))
    training.lose(1)
    training.start(Strike("train_begin", (0,), settle=False)).assert_codes(75)
    assert len(training.checkpoints) == 1
    assert not list(training.memory.iterdir())
    training.finish()
    training.assert_same_end(undisturbed(2))


@pytest.mark.chaos
def test_after_two_neighbours_at_once_the_newest_checkpoint_in_the_directory_counts(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = InMemory(tmp_path, 4, "--save-every", "5")
    training.start(Strike("batch 2 4", (1, 2), signal="SIGKILL", settle=False))
    training.lose(1, 2)
    newest = training.checkpoints[-1]
    result = training.finish()
    assert "is not used: the part of worker 2 was lost with its machines" in result.outputs[0]
    assert set(training.restored()) == {(int(newest.partition("/")[0][len("step-") :]), False)}
    training.assert_same_end(undisturbed(4))


def test_the_launcher_starts_a_killed_process_again_from_its_own_memory(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = InMemory(tmp_path)
    strikes = '[{"at": "batch 1 5", "members": [0], "signal": "SIGKILL", "after": null, "settle": false, "commits": 0}]'
    once = tmp_path / "struck"
    script = tmp_path / "once.py"
    script.write_text(
        "import os, runpy, sys\n"
        f"if not os.path.exists({str(once)!r}):\n"
        f"    open({str(once)!r}, 'w').close()\n"
        f"    os.environ['TRAIN_STRIKES'] = {strikes!r}\n"
        f"sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        f"sys.argv[0] = {str(SCRIPT)!r}\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    command = [*harness.keras_preempt(), "run", "--", sys.executable, str(script), *training.command]
    environment = {**os.environ, **QUIET_CPU, "PYTHONPATH": str(SCRIPT.parents[3])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "from the memory of the machines" in done.stdout
    training.assert_same_end(undisturbed(1))
    assert not list(training.memory.iterdir())


def test_on_jax_any_machine_of_two_may_be_lost(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    env = {"KERAS_PREEMPT_MEMORY_EVERY": "2", "MEMORY_DIR": str(memory), "SECONDS_A_STEP": "0.1"}
    training = JaxTraining(tmp_path / "killed", 2, "dp", env=env, fresh=False)
    training.start((1, "batch 2 2", "SIGKILL"))
    (folder,) = memory.glob("*/*/w00001")
    shutil.rmtree(folder)
    undisturbed = JaxTraining(tmp_path / "undisturbed", 2, "dp", fresh=False)
    undisturbed.finish()
    training.finish_as(undisturbed)
    assert all("from the memory of the machines" in output for output in training.results[-1].outputs)
    assert not list(memory.iterdir())


@pytest.mark.chaos
def test_divided_variables_are_not_covered_and_said_so_before_the_first_step(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    env = {"KERAS_PREEMPT_MEMORY_EVERY": "2", "MEMORY_DIR": str(memory)}
    training = JaxTraining(tmp_path / "divided", 2, "mp", env=env, fresh=False)
    output = training.finish().outputs[0]
    assert "Nothing is saved in memory: variables are divided among processes" in output
    assert not list(memory.iterdir())
