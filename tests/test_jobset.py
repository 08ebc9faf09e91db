"""What describes a cluster, from what a JobSet's pods are told, and from the names of machines."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from keras_preempt.cluster import tf_config_from_hosts, tf_config_from_jobset, worker_environment


def pod(job: int, index: int, *, jobs: int = 1, pods: int = 2, **more: str) -> dict[str, str]:
    """The variables of one pod, as examples/kubernetes/jobset.yaml sets them."""
    return {
        "JOBSET_NAME": "digits",
        "REPLICATED_JOB_NAME": "worker",
        "REPLICATED_JOB_REPLICAS": str(jobs),
        "JOB_INDEX": str(job),
        "PODS_PER_JOB": str(pods),
        "JOB_COMPLETION_INDEX": str(index),
        **more,
    }


def test_pods_of_several_jobs_are_numbered_job_by_job():
    everybody = [f"digits-worker-{job}-{index}.digits:2222" for job in range(3) for index in range(2)]
    for job in range(3):
        for index in range(2):
            config = tf_config_from_jobset(pod(job, index, jobs=3))
            assert config["cluster"] == {"worker": everybody}
            assert config["task"]["type"] == "worker"
            assert everybody[config["task"]["index"]] == f"digits-worker-{job}-{index}.digits:2222"


def test_subdomain_of_its_own_is_used():
    config = tf_config_from_jobset(pod(0, 0, JOBSET_SUBDOMAIN="net"), port=5)
    assert config["cluster"]["worker"][0] == "digits-worker-0-0.net:5"


@pytest.mark.parametrize("name", list(pod(0, 0)))
def test_variable_that_is_missing_is_named_with_its_source(name):
    variables = pod(0, 0)
    del variables[name]
    with pytest.raises(ValueError, match=f"Expected {name} to be set, from .*Received: None.*jobset.yaml"):
        tf_config_from_jobset(variables)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("JOB_INDEX", "-1", r"JOB_INDEX to be a number.*job-index.*'-1'"),
        ("REPLICATED_JOB_REPLICAS", "two", r"REPLICATED_JOB_REPLICAS to be a number.*'two'"),
        ("PODS_PER_JOB", "0", "PODS_PER_JOB to be 1 or more.*Received: 0"),
        ("PODS_PER_JOB", "1", r"JOB_COMPLETION_INDEX to be below PODS_PER_JOB=1. Received: 1.*parallelism"),
        ("JOB_INDEX", "1", r"JOB_INDEX to be below REPLICATED_JOB_REPLICAS=1. Received: 1"),
    ],
)
def test_variables_that_make_no_sense_are_refused(name, value, message):
    with pytest.raises(ValueError, match=message):
        tf_config_from_jobset({**pod(0, 1), name: value})


@pytest.mark.parametrize("host", ["b.zone.internal", "b", "b.other"])
def test_machine_finds_itself_by_its_full_or_its_short_name(host):
    config = tf_config_from_hosts(["a.zone.internal", "b.zone.internal"], host)
    assert config["task"] == {"type": "worker", "index": 1}
    assert config["cluster"]["worker"][1] == "b.zone.internal:2222"


def test_full_name_counts_where_short_ones_are_alike():
    assert tf_config_from_hosts(["a.x", "a.y"], "a.y")["task"]["index"] == 1
    with pytest.raises(ValueError, match=r"this machine, 'a', .*\['a.x', 'a.y'\].*host="):
        tf_config_from_hosts(["a.x", "a.y"], "a")


@pytest.mark.parametrize("hosts", [["a", "b", "a"], "a b"])
def test_list_of_machines_that_is_none_is_refused(hosts):
    with pytest.raises(ValueError, match="names of machines, each once"):
        tf_config_from_hosts(hosts, "a")


def test_machine_asks_the_system_for_its_name():
    with pytest.raises(ValueError, match=r"this machine, '[^']+', to be one of the workers"):
        tf_config_from_hosts(["no-such-machine"])


def test_worker_finds_the_others_on_every_backend():
    config = tf_config_from_hosts(["a", "b", "c"], "b", port=5)
    variables = worker_environment(config)
    assert json.loads(variables.pop("TF_CONFIG")) == config
    assert variables == {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "a:5,b:5,c:5",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "3",
        "KERAS_DISTRIBUTION_PROCESS_ID": "1",
    }


@pytest.mark.parametrize(
    ("task", "number"), [(("chief", 0), "0"), (("worker", 1), "2"), (("evaluator", 0), None)]
)
def test_chief_is_process_0_and_an_evaluator_is_none(task, number):
    config = {
        "cluster": {"worker": ["b:1", "c:1"], "chief": ["a:1"], "evaluator": ["d:1"]},
        "task": {"type": task[0], "index": task[1]},
    }
    variables = worker_environment(config)
    assert variables.get("KERAS_DISTRIBUTION_PROCESS_ID") == number
    addresses = variables.get("KERAS_DISTRIBUTION_JOB_ADDRESSES")
    assert addresses == (None if number is None else "a:1,b:1,c:1")


def test_finding_the_cluster_does_not_wait_for_tensorflow():
    program = "import sys, keras_preempt.cluster; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
