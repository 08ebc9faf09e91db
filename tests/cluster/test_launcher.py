"""The local cluster, with real but light processes: no TensorFlow in them."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from keras_preempt.cluster import LocalCluster
from keras_preempt.cluster.tf_config import VARIABLES
from tests.cluster import harness
from tests.cluster.harness import is_running

run_cluster = functools.partial(harness.run_cluster, fresh=True)
start_cluster = functools.partial(harness.start_cluster, fresh=True)


def assert_ends(pid: int, timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)  # Somebody else's process: there is nothing to wait on.


def test_every_worker_gets_the_same_cluster_and_its_own_index_also_for_keras_distribution(worker_script):
    body = """
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith("KERAS_DIST")}))
print(os.environ["TF_CONFIG"])
"""
    result = run_cluster(worker_script(body), 3).assert_ok()
    told = [[json.loads(line) for line in output.splitlines()] for output in result.outputs]
    cluster = told[0][1]["cluster"]
    assert len(set(cluster["worker"])) == 3
    for index, (for_keras, config) in enumerate(told):
        assert config == {"cluster": cluster, "task": {"type": "worker", "index": index}}
        assert for_keras == {
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": ",".join(cluster["worker"]),
            "KERAS_DISTRIBUTION_NUM_PROCESSES": "3",
            "KERAS_DISTRIBUTION_PROCESS_ID": str(index),
        }


def test_one_worker_is_a_plain_job_even_inside_another_cluster(worker_script, monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "inherited")
    result = run_cluster(worker_script("print('inherited' in os.environ.values())"), 1).assert_ok()
    assert result.outputs == ["False"]


def test_each_line_of_a_log_file_names_its_worker(worker_script):
    log = io.StringIO()
    with LocalCluster(
        2, [sys.executable, str(worker_script("print('out'); print('err', file=sys.stderr)"))], log=log
    ) as it:
        it.wait(30)
    assert sorted(log.getvalue().splitlines()) == ["[w0] err", "[w0] out", "[w1] err", "[w1] out"]


def test_no_output_is_lost_even_without_a_last_newline_or_with_odd_bytes(worker_script):
    body = "sys.stdout.buffer.write(b'x' * 100_000 + b'\\n' + b'\\xff end')"
    result = run_cluster(worker_script(body), 1).assert_ok()
    assert result.outputs[0].replace("\n", "") == "x" * 100_000 + "\ufffd end"


def test_a_signal_reaches_one_worker_only(worker_script):
    path = worker_script("until_terminated(); print('got it'); sys.exit(75)")
    with start_cluster(path, 2) as running:
        for worker in (0, 1):
            running.wait_for_line(worker, "listening")
        assert running.signal(1, signal.SIGTERM)
        running.wait_for_line(1, "got it")
        assert "got it" not in running.outputs[0]
        running.signal(0, signal.SIGTERM)
        running.wait(30).assert_codes(75)
        assert not running.signal(0, signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda n: n.name)
def test_a_signal_in_the_instant_of_the_start_is_not_lost(number):
    for _ in range(8):  # Before the keeper held signals back, every second one was lost.
        with LocalCluster(1, ["sleep", "600"]) as cluster:
            cluster.signal_all(number)
            codes = [each.code for each in cluster.wait(30)]
        assert codes == [-(signal.SIGINT if number is signal.SIGINT else signal.SIGTERM)]


def test_a_worker_starts_with_the_signals_of_its_launcher(worker_script):
    """What the keeper ignores or holds back is its own affair."""
    body = "print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), open('/proc/self/status').read())"
    result = run_cluster(worker_script(body), 1).assert_ok()
    (ignored,) = re.findall(r"^SigIgn:\s*(\w+)", result.outputs[0], re.MULTILINE)
    assert result.outputs[0].startswith("[] ")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        assert not int(ignored, 16) >> (number - 1) & 1


def test_survivors_of_a_crash_are_ended_after_the_grace(worker_script):
    path = worker_script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif index: sys.exit(3)\ntime.sleep(600)"
    )
    with LocalCluster(2, [sys.executable, str(path)]) as cluster:
        exits = cluster.wait(60, failure_grace=0.2, kill_grace=0.2)
    assert [(e.index, e.code, e.by_launcher) for e in exits] == [(1, 3, False), (0, -signal.SIGKILL, True)]


def test_survivors_of_a_preempted_worker_may_continue_to_write(worker_script):
    path = worker_script("if index: sys.exit(75)\ntime.sleep(0.7)\nsys.exit(75)")
    with LocalCluster(2, [sys.executable, str(path)]) as cluster:
        exits = cluster.wait(60, failure_grace=0.1)
    assert [(e.index, e.code, e.by_launcher) for e in exits] == [(1, 75, False), (0, 75, False)]


def test_a_wait_that_ends_too_early_names_who_still_runs(worker_script):
    with (
        LocalCluster(2, [sys.executable, str(worker_script("if index: time.sleep(600)"))]) as cluster,
        pytest.raises(TimeoutError, match="w1 still running"),
    ):
        cluster.wait(0.5)


def test_leaving_the_context_ends_workers_and_their_children(worker_script):
    body = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid)
time.sleep(600)
"""
    with start_cluster(worker_script(body), 2) as running:
        children = [int(running.wait_for_line(worker, r"child \d+").split()[1]) for worker in (0, 1)]
        pids = running.cluster.pids
        assert all(is_running(pid) for pid in children + pids)
    for pid in children + pids:
        assert_ends(pid)


def test_a_child_left_behind_by_a_worker_does_not_keep_the_cluster_waiting(worker_script):
    body = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid)
"""
    result = run_cluster(worker_script(body), 1, timeout=30).assert_ok()
    assert_ends(int(result.outputs[0].split()[1]))


def test_no_worker_outlives_a_launcher_that_is_killed(worker_script, tmp_path):
    worker = worker_script("print('pid', os.getpid()); time.sleep(600)")
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "import sys, threading\n"
        "from keras_preempt.cluster import LocalCluster\n"
        "cluster = LocalCluster(2, [sys.executable, sys.argv[1]], log=sys.stdout)\n"
        # From a thread that ends: the workers must not end with it.
        "starter = threading.Thread(target=cluster.start)\n"
        "starter.start(); starter.join()\n"
        "cluster.wait(600)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(launcher), str(worker)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline().split()[2]) for _ in range(2)]
        assert all(is_running(pid) for pid in pids)
        process.kill()
    for pid in pids:
        assert_ends(pid)


def test_threads_end_with_the_cluster(worker_script):
    before = set(threading.enumerate())
    run_cluster(worker_script(""), 2).assert_ok()
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize(
    ("workers", "command", "match"), [(0, ["x"], "at least 1 worker"), (2, [], "a command to run")]
)
def test_a_cluster_without_workers_or_command_is_refused(workers, command, match):
    with pytest.raises(ValueError, match=match):
        LocalCluster(workers, command)


def test_a_command_that_does_not_exist_is_named():
    log = io.StringIO()
    with LocalCluster(1, ["no-such-program"], log=log) as cluster:
        assert [e.code for e in cluster.wait(30)] == [127]
    assert "cannot start 'no-such-program'" in log.getvalue()
