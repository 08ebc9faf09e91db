"""TF_CONFIG from the variables that Slurm sets for a task of a job step."""

from __future__ import annotations

import os
from typing import Any

import pytest

from keras_preempt.cluster import tf_config_from_slurm


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


def test_every_task_finds_itself_at_its_own_address(step):
    everybody = ["a1:5000", "a1:5001", "a2:5000", "b7:5000"]
    tasks = [("a1", 0), ("a1", 1), ("a2", 0), ("b7", 0)]
    for rank, (node, local) in enumerate(tasks):
        step("a[1-2],b7", "2,1(x2)", 4, node, local, rank)
        config = tf_config_from_slurm(port=5000)
        assert config["cluster"] == {"worker": everybody}
        assert config["task"] == {"type": "worker", "index": rank}


def test_names_of_nodes_are_read_as_slurm_writes_them(step):
    step("a[01-02,10]-ib,b7,c[1-2]r[8-9]", "1(x8)", 8, "b7")
    addresses = tf_config_from_slurm(port=1)["cluster"]["worker"]
    names = ["a01-ib", "a02-ib", "a10-ib", "b7", "c1r8", "c1r9", "c2r8", "c2r9"]
    assert addresses == [f"{name}:1" for name in names]


@pytest.mark.parametrize(
    ("nodes", "tasks", "message"),
    [
        ("a[1-2", "1(x2)", r"SLURM_STEP_NODELIST to be a list.*'a\[1-2'"),
        ("a[1-x]", "1(x2)", r"numbers in the brackets.*'\[1-x\]'"),
        ("a[1-2]", "one", r"SLURM_STEP_TASKS_PER_NODE to be a list.*'one'"),
        ("a[1-3]", "1(x2)", r"number of tasks on each, 2 in all.*'a\[1-3\]'.*'1\(x2\)'"),
        ("a[1-2]", "1,2", r"number of tasks on each, 2 in all"),
    ],
)
def test_variables_that_make_no_sense_are_shown(step, nodes, tasks, message):
    step(nodes, tasks, 2, "a1")
    with pytest.raises(ValueError, match=message):
        tf_config_from_slurm()


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
