"""What becomes of a job of examples/slurm by the exit status of its tasks: a real Slurm, without TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_preempt.process.exit_codes import EXIT_NOT_SAVED, EXIT_RESTART, EXIT_WORKER_LOST
from tests.slurm.daemons import NODES, Slurm
from tests.slurm.jobs import TASKS, Job

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

# The second start finishes.
BEGINNING = """
import os, signal, sys, time
signals = {signal.SIGTERM, signal.SIGUSR1}
if "SLURM_RESTART_COUNT" in os.environ:
    sys.exit(0)
"""
LEAVES_ONE_BY_ONE = f"""
if os.environ["SLURM_PROCID"] == "1":
    until = time.monotonic() + 60
    while "Exited with exit code {EXIT_RESTART}" not in open(sys.argv[1]).read() and time.monotonic() < until:
        time.sleep(0.02)
    os.write(1, b"written\\n")
sys.exit({EXIT_RESTART})
"""
LEAVES_AT_A_NOTICE = f"""
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
open(sys.argv[2] + "/ready-" + os.environ["SLURM_PROCID"], "x").close()
os.write(1, b"heard %d\\n" % signal.sigwait(signals))
sys.exit({EXIT_RESTART})
"""


def start(slurm: Slurm, folder: Path, rest: str, *options: str) -> Job:
    worker = folder / "worker.py"
    worker.write_text(BEGINNING + rest)
    return Job(slurm, folder, ["python", str(worker), str(folder / "job.log"), str(folder)], options)


def test_worker_that_leaves_first_does_not_end_the_one_that_still_writes(
    slurm: Slurm, tmp_path: Path
) -> None:
    job = start(slurm, tmp_path, LEAVES_ONE_BY_ONE)  # This Slurm has KillOnBadExit=1.
    job.start_again_now()
    assert job.wait_for("COMPLETED", "FAILED")["JobState"] == "COMPLETED", job.describe()
    assert job.log.index(f"Exited with exit code {EXIT_RESTART}") < job.log.index("written")


@pytest.mark.parametrize("code", [1, EXIT_NOT_SAVED, EXIT_WORKER_LOST])
def test_what_failed_stays_out_of_the_queue(slurm: Slurm, tmp_path: Path, code: int) -> None:
    job = start(slurm, tmp_path, f"sys.exit({code})")
    done = job.wait_for("COMPLETED", "FAILED")
    assert (done["JobState"], done["ExitCode"], done["Restarts"]) == ("FAILED", f"{code}:0", "0"), (
        job.describe()
    )
    assert "goes back" not in job.log


@pytest.mark.parametrize("partition", ["low", "at-once", "cancelled"])
def test_preempted_job_goes_back_into_the_queue_in_every_mode(
    slurm: Slurm, tmp_path: Path, partition: str
) -> None:
    job = start(slurm, tmp_path, LEAVES_AT_A_NOTICE, f"--partition={partition}")
    ready = [tmp_path / f"ready-{rank}" for rank in range(TASKS)]
    slurm.wait_until(lambda: all(path.exists() for path in ready), "both tasks are ready", 60)
    everything = [f"--nodes={len(NODES)}", "--exclusive", "--output=/dev/null"]
    higher = slurm.command("sbatch", "--parsable", "--partition=high", *everything, "--wrap=sleep 600")
    try:
        job.wait_for("PENDING", restarts=1)
    finally:
        slurm.command("scancel", higher)
    assert job.log.count("heard 15") == TASKS, job.log
    job.start_again_now()
    assert job.wait_for("COMPLETED", "FAILED")["JobState"] == "COMPLETED", job.describe()
