"""examples/slurm under a real Slurm: training goes on at the same step and ends with the same bits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.compare import compare_states
from keras_preempt.cli.drill.comparison import find_parting, read_final_state
from keras_preempt.cli.drill.step_records import RunRecord, read_run_record
from keras_preempt.report.events import log_name
from tests.slurm.daemons import GRACE, NODES, Slurm
from tests.slurm.jobs import PATIENCE, TASKS, TrainingJob

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

STANDS_AT = 57  # In the second epoch of 44 steps, and no multiple of the ten steps of --save-every.


@pytest.fixture(scope="module")
def undisturbed(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    with closing(TrainingJob(slurm, tmp_path_factory.mktemp("undisturbed"))) as job:
        done = job.wait_for("COMPLETED", "FAILED")
        assert (done["JobState"], done["Restarts"]) == ("COMPLETED", "0"), job.describe()
        return job


@pytest.fixture
def job(slurm: Slurm, tmp_path: Path, undisturbed: TrainingJob) -> Iterator[TrainingJob]:
    """A job whose first worker stands still before a step."""
    with closing(TrainingJob(slurm, tmp_path, STANDS_AT)) as started:
        started.wait_until_it_stands()
        yield started


def record_of(job: TrainingJob, starts: int) -> RunRecord:
    """Reads what the tasks have recorded; each job has one fit, in a directory of its own, which is named alike."""
    record = read_run_record(job.record, starts, TASKS)
    return RunRecord(
        [
            [[{**line, "fit": "run"} if "fit" in line else line for line in task] for task in tasks]
            for tasks in record.incarnations
        ]
    )


def assert_same_end(job: TrainingJob, undisturbed: TrainingJob, last_saved: int | None = None) -> None:
    """Asserts that a job was started twice, continued at the right step, and trained as the undisturbed one did.

    Args:
        job: The job.
        undisturbed: The other one.
        last_saved: The step at which it has to continue; None for that at which all workers have stopped.
    """
    done = job.wait_for("COMPLETED", "FAILED", "CANCELLED")
    assert (done["JobState"], done["ExitCode"], done["Restarts"]) == ("COMPLETED", "0:0", "1"), job.describe()
    record = record_of(job, 2)
    stopped_at = [record.fits(0, member)[0].last for member in range(TASKS)]
    continued_at = stopped_at[0] if last_saved is None else last_saved
    assert last_saved is not None or stopped_at == [continued_at] * TASKS
    for member in range(TASKS):
        (first,), (second,) = record.fits(0, member), record.fits(1, member)
        assert first.last >= continued_at
        assert second.first == continued_at, job.log
        assert second.boundaries[0] == continued_at
        assert second.restored.startswith(f"step-{continued_at:08d}"), second.restored
    expected = record_of(undisturbed, 1)
    assert expected.names() == record.names() == ["run"]
    assert find_parting(expected, record) is None
    states = (read_final_state(each.directory, TASKS) for each in (undisturbed, job))
    compared = compare_states(*states)
    assert compared.identical, compared


def test_time_limit(slurm: Slurm, tmp_path: Path, undisturbed: TrainingJob) -> None:
    options = ["--time=2"]  # Nothing is said about a signal.
    with closing(TrainingJob(slurm, tmp_path, options=options, seconds_a_step=1.5)) as job:
        job.wait_for("PENDING", restarts=1)
        slurm.command("scontrol", "update", f"JobId={job.id}", "TimeLimit=240")
        job.start_again_now()
        assert_same_end(job, undisturbed)
        assert not re.search("SIG(TERM|USR1): ", job.log), "a signal had to tell it"
        assert "Time limit (SLURM_JOB_END_TIME)" in job.log
        assert job.log.count("Preempted, and saved") == 1
        for worker in range(TASKS):
            log = job.directory / log_name(1, worker)
            told = [json.loads(line) for line in log.read_text().splitlines()]
            (deadline,) = (each["deadline"] for each in told if each["event"] == "notice")
            (left,) = (each["time"] for each in told if each["event"] == "exit")
            print(f"worker {worker} leaves {deadline - left:.1f} s before the end of its allocation")
            assert 0 < deadline - left < 60


def test_time_limit_with_a_signal(slurm: Slurm, tmp_path: Path, undisturbed: TrainingJob) -> None:
    with closing(TrainingJob(slurm, tmp_path, STANDS_AT, ["--signal=USR1@300"])) as job:
        job.wait_until_it_stands()
        # The script's own limit is hours. The signal is due at once when only five minutes are left.
        slurm.command("scontrol", "update", f"JobId={job.id}", "TimeLimit=5")
        job.wait_until_it_has_heard()
        job.wait_for("PENDING", restarts=1)
        slurm.command("scontrol", "update", f"JobId={job.id}", "TimeLimit=240")
        job.start_again_now()
        assert_same_end(job, undisturbed)
        assert "SIGUSR1" in job.log
        assert "Preempted, and saved" in job.log


def test_preemption_by_a_higher_partition(slurm: Slurm, job: TrainingJob, undisturbed: TrainingJob) -> None:
    everything = [f"--nodes={len(NODES)}", "--exclusive", "--output=/dev/null"]
    higher = slurm.command(
        "sbatch", "--parsable", "--partition=high", *everything, f"--wrap=sleep {GRACE * 10}"
    )
    try:
        job.wait_until_it_has_heard()
        job.wait_for("PENDING", restarts=1)
        slurm.wait_until(
            lambda: (
                set(slurm.command("squeue", "-h", "-o", "%i %T").splitlines())
                == {f"{higher} RUNNING", f"{job.id} PENDING"}
            ),
            "the higher job runs, and the preempted one waits",
            60,
        )
    finally:
        slurm.command("scancel", higher)
    job.start_again_now()
    assert_same_end(job, undisturbed)
    assert "SIGTERM" in job.log


def test_requeue_by_hand(slurm: Slurm, job: TrainingJob, undisturbed: TrainingJob) -> None:
    slurm.command("scontrol", "requeue", job.id)
    job.wait_until_it_has_heard()
    job.start_again_now()
    assert_same_end(job, undisturbed)


def test_node_set_down(slurm: Slurm, job: TrainingJob, undisturbed: TrainingJob) -> None:
    failed, other = nodes_of(job)
    slurm.command("scontrol", "update", f"NodeName={failed}", "State=DOWN", "Reason=test")
    try:
        job.wait_until_it_has_heard()  # Slurm still ends the tasks in its usual way.
        # Their output goes nowhere by then, but they save. The job may start on the other node before they have: on
        # this machine that has the same address.
        slurm.wait_until(lambda: not slurm.processes_of_jobs(failed), "the tasks have ended", PATIENCE)
        job.start_again_now()
        assert_same_end(job, undisturbed)
        assert job.shown()["NodeList"] == other
    finally:
        slurm.command("scontrol", "update", f"NodeName={failed}", "State=RESUME")


def test_node_that_loses_power(slurm: Slurm, job: TrainingJob, undisturbed: TrainingJob) -> None:
    failed, other = nodes_of(job)
    last_saved = STANDS_AT // 10 * 10
    slurm.wait_until(lambda: newest_step(job) == last_saved, f"step {last_saved} is saved", PATIENCE)
    slurm.cut_power(failed)
    try:
        slurm.command("scontrol", "update", f"NodeName={failed}", "State=DOWN", "Reason=test")
        job.start_again_now()
        # Nobody had time to save: it continues from the last checkpoint of --save-every.
        assert_same_end(job, undisturbed, last_saved)
        assert job.shown()["NodeList"] == other
    finally:
        slurm.start_node(failed)


def nodes_of(job: TrainingJob) -> tuple[str, str]:
    """The node on which it runs, and the other one."""
    here = job.shown()["NodeList"]
    (other,) = set(NODES) - {here}
    return here, other


def newest_step(job: TrainingJob) -> int:
    """The step of the newest checkpoint that counts."""
    with closing(open_store(job.directory)) as store:
        return max((found.step for found in committed(store)), default=0)
