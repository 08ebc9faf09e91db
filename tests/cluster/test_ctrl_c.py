"""Ctrl-C: once it saves and leaves, at one step of all workers; twice it leaves at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_preempt.cluster import RestartPolicy, Supervisor, supervisor
from keras_preempt.notices import interrupt
from keras_preempt.process.exit_codes import EXIT_INTERRUPTED, EXIT_NOT_SAVED
from keras_preempt.training.start import beginning
from tests.cluster.forked import QUIET_CPU, ForkedCluster
from tests.cluster.handled_loop import eight_runs
from tests.cluster.harness import start_cluster
from tests.cluster.noticed_fit import PATIENCE, NoticedFit, Outcome, sigterm
from tests.cluster.training import SCRIPT, Strike, Training, Undisturbed
from tests.docs.shown import assert_shown

INTERRUPTED = -signal.SIGINT


@pytest.mark.parametrize(
    ("workers", "resumed"), [(1, False), (2, False), pytest.param(2, True, marks=pytest.mark.chaos)]
)
def test_once_saves_at_one_step_and_leaves_as_interrupted_with_one_line(
    workers: int, resumed: bool, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, workers)
    result = training.start(Strike("batch 1 2", (0,), signal="SIGINT")).assert_codes(INTERRUPTED)
    holds = [training.events(worker)[0]["hold"][-1] for worker in range(workers)]
    assert {(hold["epoch"], hold["phase"], hold["batch"]) for hold in holds} == {(1, "train", 3)}
    for worker in range(workers):
        assert "Traceback" not in result.outputs[worker]
        last = result.outputs[worker].splitlines()[-1]
        assert last.startswith("keras_preempt: Interrupted: its checkpoint is step-00000009/"), last
        assert [event["code"] for event in training.events(worker)[0]["exit"]] == [EXIT_INTERRUPTED]
    if workers == 1:
        assert_shown("Ctrl-C", result.outputs[0])
    if resumed:  # In `make test` this is seen in one process, below.
        training.finish_as(undisturbed(workers))


def test_twice_leaves_at_once_though_the_step_goes_on(tmp_path: Path) -> None:
    args = [str(tmp_path / "output"), str(tmp_path / "run"), "--marks", "--slow", "600"]
    with start_cluster(SCRIPT, 1, args=args) as running:
        running.wait_for_line(0, "^AT batch 0 0", timeout=240)
        running.signal(0, signal.SIGINT)
        running.wait_for_line(0, "Ctrl-C: saving after this step, then leaving.")
        limit = time.monotonic() + PATIENCE
        while running.signal(0, signal.SIGINT):  # Those that come at once are the same press.
            assert time.monotonic() < limit
            time.sleep(0.1)
        result = running.wait(60).assert_codes(EXIT_INTERRUPTED)
    assert "Ctrl-C again: leaving at once" in result.outputs[0]
    assert list((tmp_path / "run").glob("step-*")) == []


def test_the_launcher_passes_it_on_and_starts_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LocalCluster", ForkedCluster)
    lines: list[str] = []

    def log(worker: int, line: str) -> None:
        lines.append(line)
        if line == "AT batch 0 1":
            press()

    output, directory = tmp_path / "output", tmp_path / "run"
    report = Supervisor(
        1,
        [sys.executable, str(SCRIPT), str(output), str(directory), "--marks", "--slow", "0.2"],
        log=log,
        policy=RestartPolicy(max_failures=3),
        environment=lambda incarnation: QUIET_CPU,
    ).run()
    shown = "\n".join(lines)
    assert report.exit_code == EXIT_INTERRUPTED, shown
    assert "Interrupted: its checkpoint is step-" in shown
    assert report.reason.startswith("stopped by SIGINT, saved at step")
    assert len(report.incarnations) == len(list((directory / "incarnations").iterdir())) == 1


@pytest.mark.parametrize(("told", "status"), [(signal.SIGTERM, EXIT_NOT_SAVED), (None, EXIT_INTERRUPTED)])
def test_twice_ends_a_job_whose_worker_does_nothing_any_more(
    told: signal.Signals | None, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped (SIGSTOP), it can neither save nor leave."""
    monkeypatch.setattr(supervisor, "LocalCluster", ForkedCluster)
    stopping = [told, signal.SIGINT, signal.SIGINT] if told else [signal.SIGINT, signal.SIGINT]

    def log(worker: int, line: str) -> None:
        if line == "AT batch 0 1":
            job.send(0, signal.SIGSTOP)
            for number in stopping:
                os.kill(os.getpid(), number)
                time.sleep(0.1)

    arguments = [str(tmp_path / "output"), str(tmp_path / "run"), "--marks", "--slow", "0.2"]
    job = Supervisor(1, [sys.executable, str(SCRIPT), *arguments], log=log)
    report = job.run()
    assert report.exit_code == status
    assert report.incarnations[0].exits[0].code == -signal.SIGKILL


READS_IN_PROCESSES = """
import sys, time
import keras, numpy as np
from keras_preempt import PreemptionCallback

class Data(keras.utils.PyDataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        time.sleep(0.02)
        return np.ones((4, 2), "float32"), np.ones((4, 1), "float32")

class Say(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("DONE", batch, flush=True)

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = Data(workers=2, use_multiprocessing=True, max_queue_size=2)
model.fit(data, verbose=0, callbacks=[PreemptionCallback(sys.argv[1]), Say()])
"""


def test_the_processes_that_read_the_data_outlive_the_ctrl_c_of_a_terminal(tmp_path: Path) -> None:
    """A terminal sends SIGINT to all of them. Without the readers the step would wait for its data for ever."""
    (tmp_path / "train.py").write_text(READS_IN_PROCESSES)
    with start_cluster(tmp_path / "train.py", 1, args=[str(tmp_path / "run")]) as running:
        running.wait_for_line(0, "^DONE 3")
        os.killpg(os.getpgid(running.cluster.pids[0]), signal.SIGINT)
        output = running.wait().assert_codes(INTERRUPTED).outputs[0]
    assert "Interrupted: its checkpoint is step-" in output
    assert "Traceback" not in output


# -- In this process ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _as_in_a_script() -> Iterator[None]:
    """Python's own handler, which a test runner may have replaced."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, earlier) is signal.default_int_handler, "it was not given back"


pytestmark = pytest.mark.usefixtures("nowhere", "everything_is_given_back")


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_who_catches_the_interrupt_goes_on_in_the_same_process(
    job: NoticedFit, undisturbed_fit: Outcome
) -> None:
    assert job.fit({(1, 2): press}).ended == "KeyboardInterrupt"
    assert job.checkpoints == ["step-00000009"]
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)


def test_it_interrupts_the_countdown_of_a_notice(job: NoticedFit, undisturbed_fit: Outcome) -> None:
    ended = job.fit({(0, 1): sigterm, (1, 2): press}, termination={"grace_period": 3600}, step_seconds=0.02)
    assert ended.ended == "KeyboardInterrupt"
    assert [plan["reason"] for plan in job.told("plan")] == ["preempted", "interrupted"]
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)


def test_it_can_be_turned_off(job: NoticedFit) -> None:
    assert job.fit({(1, 2): press}, termination={"save_on_interrupt": False}).ended == "KeyboardInterrupt"
    assert job.checkpoints == []


def test_named_as_a_signal_it_is_a_notice(job: NoticedFit) -> None:
    assert job.fit({(1, 2): press}, termination={"signals": ("SIGINT",)}).ended == "Preempted"
    assert [notice["source"] for notice in job.told("notice")] == ["signal"]


@pytest.mark.parametrize("when", ["before the fit", "during the fit"])
def test_a_program_that_handles_it_keeps_it(when: str, job: NoticedFit) -> None:
    heard: list[int] = []

    def take() -> None:
        signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))

    try:
        if when == "before the fit":
            take()
        outcome = job.fit({(0, 1): take if when == "during the fit" else bool, (1, 2): press})
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert (outcome.ended, heard) == ("finished", [signal.SIGINT])


def test_in_a_notebook_the_second_one_interrupts_wherever_the_program_is_and_the_process_lives_on(
    job: NoticedFit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setattr(interrupt, "SAME_PRESS", 0.0)

    def press_twice() -> None:
        press()
        job.await_told("notice")
        press()
        wait_without_end()

    assert job.fit({(1, 2): press_twice}).ended == "KeyboardInterrupt"
    assert job.outcomes[0].steps[-1][:2] == (1, 1)
    assert job.checkpoints == []


def test_while_the_fit_still_begins_there_is_nothing_to_save_and_it_interrupts_at_once(
    job: NoticedFit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press_and_wait(*arguments: object) -> None:
        press()
        wait_without_end()

    with monkeypatch.context() as patch:
        patch.setattr(beginning._Beginning, "choose_checkpoint", press_and_wait)
        assert job.fit().ended == "KeyboardInterrupt"
    assert (job.outcomes[0].steps, job.checkpoints) == ([], [])


def test_at_the_last_step_the_run_is_finished_and_the_program_interrupted(
    job: NoticedFit, undisturbed_fit: Outcome
) -> None:
    last = undisturbed_fit.steps[-1][:2]
    assert job.fit({last: press}).ended == "KeyboardInterrupt"
    assert job.fit().ended == "finished"
    assert job.steps == undisturbed_fit.steps


def wait_without_end() -> None:
    """Runs Python, as a program does: the interrupt comes between two of its instructions."""
    limit = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < limit, "it was not interrupted"
        time.sleep(0.01)


def test_a_custom_loop_saves_before_its_next_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="its state after 4 runs is saved"):
        eight_runs(tmp_path / "run", press)
    assert (tmp_path / "run" / "ckpt-1.index").exists()
