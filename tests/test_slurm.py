"""TF_CONFIG from Slurm's variables; the batch script of examples/slurm under stand-ins for srun and scontrol."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.cluster import tf_config_from_slurm
from keras_preempt.exit_codes import EXIT_NOT_SAVED, EXIT_RESTART
from tests.cluster.harness import QUIET_CPU
from tests.fake_slurm import FakeSlurm

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPT = EXAMPLES / "slurm" / "train.sbatch"

# A worker without TensorFlow: the signal ends it in the first start; in the second it finishes.
WORKER = """
import os, signal, sys
signals = {signal.SIGTERM, signal.SIGUSR1}
# A signal that the batch script ignores would be ignored here, too, until TensorFlow is imported.
assert {signal.getsignal(number) for number in signals} == {signal.SIG_DFL}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
if "SLURM_RESTART_COUNT" in os.environ:
    sys.exit(0)
os.write(1, b"training\\n")
number = signal.sigwait(signals)
os.write(1, b"got %s\\n" % signal.Signals(number).name.encode())
"""


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts this process into a task of a job step."""

    def set_variables(nodes: str, tasks: str, count: int, node: str, local: int = 0, rank: int = 0) -> None:
        values = {
            "SLURM_JOB_ID": "12",
            "SLURM_PROCID": rank,
            "SLURM_LOCALID": local,
            "SLURMD_NODENAME": node,
            "SLURM_STEP_NUM_TASKS": count,
            "SLURM_STEP_NODELIST": nodes,
            "SLURM_STEP_TASKS_PER_NODE": tasks,
        }
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    return set_variables


def run(folder: Path, last_lines: str, **env: str) -> FakeSlurm:
    worker = folder / "worker.py"
    worker.write_text(WORKER + last_lines)
    return FakeSlurm(folder, SCRIPT, ["python", str(worker)], env=env)


def test_every_task_finds_itself_at_its_own_address(step):
    everybody = ["a1:5000", "a1:5001", "a2:5000", "b7:5000"]
    tasks = [("a1", 0), ("a1", 1), ("a2", 0), ("b7", 0)]
    for rank, (node, local) in enumerate(tasks):
        step("a[1-2],b7", "2,1(x2)", 4, node, local, rank)
        config = tf_config_from_slurm(port=5000)
        assert config["cluster"] == {"worker": everybody}
        assert config["task"] == {"type": "worker", "index": rank}


def test_nodes_that_sort_differently_as_text_do_not_swap_addresses(step):
    # Slurm counts n9 first, TensorFlow's resolver n10: going by the task's number, each would be told the other's.
    found = {}
    for rank, node in enumerate(["n9", "n10"]):
        step("n[9-10]", "1(x2)", 2, node, rank=rank)
        config = tf_config_from_slurm(port=5000)
        found[node] = config["cluster"]["worker"][config["task"]["index"]]
    assert found == {"n9": "n9:5000", "n10": "n10:5000"}


def test_gpus_stay_as_slurm_has_given_them(step, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    step("n[1-2]", "1(x2)", 2, "n2", rank=1)
    tf_config_from_slurm()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"


def test_ports_differ_from_job_to_job_and_are_none_that_linux_gives_away(step, monkeypatch):
    step("n1", "2", 2, "n1")
    used = set()
    for job in range(1000, 1350):
        monkeypatch.setenv("SLURM_JOB_ID", str(job))
        ports = {int(address.split(":")[1]) for address in tf_config_from_slurm()["cluster"]["worker"]}
        assert not ports & used
        assert all(1024 < port < 32768 for port in ports)
        used |= ports


def test_outside_of_a_step_the_error_says_srun(monkeypatch):
    for name in ("SLURM_STEP_NODELIST", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"no .*SLURM_LOCALID.*SLURM_STEP_NODELIST.*through srun"):
        tf_config_from_slurm()


def test_a_node_that_is_not_in_the_list_is_an_error(step):
    step("n[1-2]", "1(x2)", 2, "n3")
    with pytest.raises(ValueError, match=r"this task, n3:5000, .*'n1:5000', 'n2:5000'.*n\[1-2\]"):
        tf_config_from_slurm(port=5000)


def test_job_goes_back_into_the_queue_before_its_time_is_up_and_finishes_when_it_is_started_again(tmp_path):
    job = run(tmp_path, f"sys.exit({EXIT_RESTART})")
    first = job.start(time_is_up_at="training")
    assert (first.code, first.requeued) == (EXIT_RESTART, True), first.output
    assert first.output.count("got SIGUSR1") == job.tasks == 2, first.output
    second = job.start()
    assert (second.code, second.requeued) == (0, False), second.output


def test_batch_script_outlives_a_preemption_that_slurm_requeues_itself(tmp_path):
    job = run(tmp_path, f"sys.exit({EXIT_RESTART})", FAKE_SLURM_HAS_REQUEUED="1")
    preempted = job.start(preempt_at="training")
    assert preempted.code == EXIT_RESTART, preempted.output
    assert preempted.output.count("got SIGTERM") == 2, preempted.output
    assert "goes back into the queue" in preempted.output


def test_a_worker_that_leaves_first_does_not_end_the_one_that_still_writes(tmp_path):
    # The stand-in has the setting of clusters that kill the others by default.
    last_lines = f"""
import time
first, until = os.environ["FAKE_SLURM"] + "/exited", time.monotonic() + 30
if os.environ["SLURM_PROCID"] == "1":
    while not os.path.exists(first) and time.monotonic() < until:
        time.sleep(0.01)
    os.write(1, b"written\\n")
sys.exit({EXIT_RESTART})
"""
    first = run(tmp_path, last_lines).start(time_is_up_at="training")
    assert first.requeued, first.output
    assert first.output.index("Exited with exit code 75") < first.output.index("written")


@pytest.mark.parametrize("code", [1, EXIT_NOT_SAVED])
def test_what_failed_stays_out_of_the_queue(tmp_path, code):
    failed = run(tmp_path, f"sys.exit({code})").start(time_is_up_at="training")
    assert (failed.code, failed.requeued) == (code, False), failed.output


@pytest.mark.chaos
def test_training_under_slurm_goes_on_at_the_next_step_when_its_time_is_up(tmp_path):
    command = ["python", str(EXAMPLES / "train_on_cluster.py"), str(tmp_path / "run"), "--epochs", "2"]
    job = FakeSlurm(tmp_path, SCRIPT, command, env={**QUIET_CPU, "KERAS_PREEMPT_PLATFORM": "slurm"})
    first = job.start(time_is_up_at="Epoch 2/", lines=1)  # Only the first worker says so.
    assert (first.code, first.requeued) == (EXIT_RESTART, True), first.output
    assert "SIGUSR1" in first.output, first.output
    saved = re.search(r"Saved (step-\d+/\S+):", first.output)
    assert saved is not None, first.output

    second = job.start()
    assert (second.code, second.requeued) == (0, False), second.output
    assert f"Continuing from {saved[1]}" in second.output, second.output
    assert "Epoch 1/" not in second.output
    assert "validation accuracy:" in second.output
