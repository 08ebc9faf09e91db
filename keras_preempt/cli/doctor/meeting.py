"""Workers that check whether they see each other: in their directory, on their ports, by their clocks.

Each writes a file with a random name, answers the files of the others, and is done when all have answered its own. An
answer to a random name cannot be left over from an earlier meeting. Meanwhile each listens on its own address, where it
says which worker it is, and asks the others on theirs.

``python -m keras_preempt.cli.doctor.meeting PLACE DIR SECONDS`` is one of several such workers on this machine; it
prints its findings as JSON.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from keras_preempt.checkpoint.errors import AlreadyExists, CheckpointError, StoreUnavailable
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.doctor.finding import Finding, Findings
from keras_preempt.cluster import LocalCluster, tf_config_from_jobset
from keras_preempt.cluster.tf_config import training_tasks
from keras_preempt.process.environment import KERAS_ADDRESSES, KERAS_PROCESS, KERAS_PROCESSES, TF_CONFIG

_HELLO = re.compile(r"hello-(\d+)-([0-9a-f]{16})")
_OVER = re.compile(r"over-(\d+)-([0-9a-f]{16})")
_SMALL = 1 << 12  # the most bytes of such a file
_GREETING = "keras-preempt doctor, worker {}\n"
_CONNECT = 1.0  # seconds
_LEAVE = 10.0  # seconds for the others to see the last answers
_CLOCKS = 2.0  # seconds by which clocks may differ
_JOBSET = "JOBSET_NAME"
_START = 60.0  # seconds for processes to start, on a busy machine, and to end
_FINDING = "keras-preempt doctor finding: "


@dataclass(frozen=True)
class JobWorker:
    index: int
    workers: int
    addresses: tuple[str, ...]  # Where each worker listens; empty if the variables do not say.
    source: str  # The name of the variable that says so.


@dataclass
class Meeting:
    store: Store  # A place of the doctor in the directory of the job; the same for all workers.
    url: str  # What the user calls that directory.
    job: JobWorker
    patience: float  # Seconds to wait for the others.
    _own: str = field(default_factory=lambda: secrets.token_hex(8), init=False)
    _answers: dict[int, dict[str, Any]] = field(default_factory=dict, init=False)
    _answered: set[tuple[int, str]] = field(default_factory=set, init=False)
    _reached: set[int] = field(default_factory=set, init=False)
    _skew: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._others = set(range(self.job.workers)) - {self.job.index}

    @property
    def name(self) -> str:
        """A name that all workers of this meeting share: that of worker 0, once it has answered."""
        return self._own if self.job.index == 0 else str(self._answers.get(0, {}).get("from", self._own))

    def hold(self, findings: Findings) -> bool:
        """Meets the others, and adds findings; returns whether all share the directory."""
        try:
            with self._listening(findings):
                met = self._meet()
                self._wait_to_leave(met)
        except StoreUnavailable as error:
            findings.problem("shared", str(error), "Correct what the storage says.")
            return False
        self._report(findings, met)
        return met

    def _meet(self) -> bool:
        self.store.prepare()
        hello_at = time.time()
        self._write(f"hello-{self.job.index}-{self._own}", {"time": hello_at})
        until = time.monotonic() + self.patience
        pause = self.store.poll_interval[0]
        while True:
            self._answer_all()
            for other in self._others - set(self._answers):
                answer = self._read(f"seen-{other}-{self._own}")
                if answer is not None:
                    self._answers[other] = answer
                    answered_at = float(answer["time"])
                    self._skew = max(self._skew, hello_at - answered_at, answered_at - time.time())
            if self.job.addresses:
                for other in self._others - self._reached:
                    self._ask(other)
            shared = self._others <= set(self._answers) and all(
                (other, str(self._answers[other]["from"])) in self._answered for other in self._others
            )
            reached = not self.job.addresses or self._others <= self._reached
            if (shared and reached) or time.monotonic() > until:
                return shared
            time.sleep(pause)  # Files cannot be waited for.
            pause = min(2 * pause, self.store.poll_interval[1])

    def _answer_all(self) -> None:
        for name in self.store.children(""):
            hello = _HELLO.fullmatch(name)
            if hello is None or int(hello[1]) == self.job.index:
                continue
            key = (int(hello[1]), hello[2])
            if key not in self._answered:
                self._write(f"seen-{self.job.index}-{key[1]}", {"time": time.time(), "from": self._own})
                self._answered.add(key)

    def _wait_to_leave(self, met: bool) -> None:
        """Stays until the others have all answers that they need from this worker."""
        self._write(f"over-{self.job.index}-{self._own}", {})
        wanted = {(other, str(answer["from"])) for other, answer in self._answers.items()}
        until = time.monotonic() + (_LEAVE if met else 0.0)
        while True:
            self._answer_all()
            over = {(int(m[1]), m[2]) for m in map(_OVER.fullmatch, self.store.children("")) if m}
            # The first worker to leave removes everything.
            if wanted <= over or (self.job.index, self._own) not in over or time.monotonic() > until:
                return
            time.sleep(self.store.poll_interval[1])

    def _write(self, name: str, value: dict[str, Any]) -> None:
        with contextlib.suppress(AlreadyExists):
            self.store.create(name, json.dumps(value).encode())

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            value = json.loads(self.store.read(name, limit=_SMALL))
            return value if isinstance(value, dict) and {"time", "from"} <= set(value) else None
        except StoreUnavailable:
            raise
        except (CheckpointError, ValueError):  # Such as NotFound.
            return None

    @contextlib.contextmanager
    def _listening(self, findings: Findings) -> Iterator[None]:
        """Answers on this worker's address with its number."""
        if not self.job.addresses:
            yield
            return
        address = self.job.addresses[self.job.index]
        try:
            server = socket.create_server(("", int(address.rpartition(":")[2])))
        except (OSError, ValueError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            findings.problem(
                "ports",
                f"This worker cannot listen on its own address {address}: "
                f"{'another program has the port' if taken else error}.",
                f"End that program, or give the job other ports ({self.job.source} says these).",
            )
            yield
            return
        stopping = threading.Event()

        def serve() -> None:
            while not stopping.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = server.accept()
                    with connection:
                        connection.settimeout(_CONNECT)
                        connection.sendall(_GREETING.format(self.job.index).encode())

        server.settimeout(0.2)
        thread = threading.Thread(target=serve, name="doctor-port", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join(timeout=5)
            server.close()

    def _ask(self, other: int) -> None:
        host, _, port = self.job.addresses[other].rpartition(":")
        if not host:
            return
        with (
            contextlib.suppress(OSError, ValueError, OverflowError),
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT) as connection,
            connection.makefile("rb") as answer,
        ):
            if answer.readline(100) == _GREETING.format(other).encode():
                self._reached.add(other)

    def _report(self, findings: Findings, met: bool) -> None:
        missing = sorted(self._others - set(self._answers))
        unreached = sorted(self._others - self._reached)
        if met:
            findings.ok("shared", f"All {self.job.workers} workers see each other's files in {self.url}.")
        else:
            names = ", ".join(f"worker {number}" for number in missing)
            there = " They run, since they answer on their ports." if set(missing) <= self._reached else ""
            findings.problem(
                "shared",
                f"Worker {self.job.index} and {names} do not see each other's files in {self.url}, after "
                f"{self.patience:g} s.{there}",
                "Pass a path on a file system that all workers have mounted (not /tmp, not a machine's own disk), or "
                "the URL of a bucket. Start the doctor on all workers at once, as the job is started (or pass a longer "
                "--wait).",
            )
        if self.job.addresses and unreached:
            names = ", ".join(f"worker {number} ({self.job.addresses[number]})" for number in unreached)
            findings.problem(
                "ports",
                f"No answer from {names}, after {self.patience:g} s.",
                "Open these ports between the machines (firewall, network policy), and check that these names "
                "resolve to the workers.",
            )
        elif self.job.addresses:
            findings.ok("ports", f"All other workers answer on their addresses of {self.job.source}.")
        if met and self._skew <= _CLOCKS:
            findings.ok("clocks", f"No clock differs by more than {_CLOCKS:g} s, as far as files show.")
        elif met:
            findings.warning(
                "clocks",
                f"The clock of another worker differs from this one's by at least {self._skew:.1f} s. Reports and "
                "deadlines are off by as much.",
                "Run chrony or ntpd on all machines.",
            )


def job_of(variables: Mapping[str, str]) -> JobWorker | None:
    """Returns which worker of a job this process is; None if no variable names more than one worker.

    TF_CONFIG and Keras' own variables come first: the script has made them of the others, or does not look at those.
    Raises ValueError if a variable of TensorFlow, Keras or JobSet is missing or wrong.
    """
    if text := variables.get(TF_CONFIG):
        return _of_tf_config(text)
    if variables.get(KERAS_PROCESSES):
        return _of_keras(variables)
    if variables.get(_JOBSET):
        return _of_tf_config(json.dumps(tf_config_from_jobset(variables)), _JOBSET)
    tasks, number = variables.get("SLURM_STEP_NUM_TASKS", ""), variables.get("SLURM_PROCID", "")
    if tasks.isdecimal() and number.isdecimal() and int(tasks) > 1:
        return JobWorker(int(number), int(tasks), (), "SLURM_PROCID")
    return None


def _of_keras(variables: Mapping[str, str]) -> JobWorker | None:
    given = {name: variables.get(name, "") for name in (KERAS_ADDRESSES, KERAS_PROCESSES, KERAS_PROCESS)}
    addresses = tuple(filter(None, given[KERAS_ADDRESSES].split(",")))
    try:
        workers, index = int(given[KERAS_PROCESSES]), int(given[KERAS_PROCESS])
    except ValueError:
        workers, index = 0, 0
    if not 0 <= index < workers or (len(addresses) > 1 and len(addresses) != workers):
        raise ValueError(
            f"Expected {KERAS_PROCESSES} to be a number, {KERAS_PROCESS} one below it, and {KERAS_ADDRESSES} to name "
            f"as many addresses, or that of process 0. Received: {given}. See docs/clusters.md."
        )
    if workers < 2:
        return None
    # With the address of process 0 alone, nobody knows where the others listen.
    return JobWorker(index, workers, addresses if len(addresses) == workers else (), KERAS_PROCESSES)


def _of_tf_config(text: str, source: str = TF_CONFIG) -> JobWorker | None:
    try:
        config = json.loads(text)
        cluster = config.get("cluster") or {}
        order = training_tasks({"cluster": cluster})
        if len(order) < 2:
            return None
        here = (config["task"]["type"], int(config["task"]["index"]))
        addresses = tuple(str(cluster[job][task]) for job, task in order)
        return JobWorker(order.index(here), len(order), addresses, source)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"Expected {TF_CONFIG} to be JSON with a cluster and this process' task in it. Received: {text!r} "
            f"({error}). See docs/clusters.md."
        ) from None


def meet_here(findings: Findings, workers: int, place: str, url: str, patience: float) -> bool:
    """Lets `workers` processes meet; returns whether they share `url`, in which `place` is the doctor's own."""
    lines: list[tuple[int, str]] = []
    command = [sys.executable, "-m", __name__, place, url, str(patience)]
    with LocalCluster(workers, command, log=lambda index, line: lines.append((index, line))) as cluster:
        try:
            exits = cluster.wait(timeout=patience + _START)
        except TimeoutError:
            exits = cluster.exits
    seen: set[Finding] = set()
    for index, line in sorted(lines):
        if line.startswith(_FINDING):
            finding = Finding(**json.loads(line.removeprefix(_FINDING)))
            if finding not in seen and (finding.level != "ok" or index == 0):
                seen.add(finding)
                findings.add(finding)
    codes = [exit.code for exit in exits]
    if len(codes) < workers or any(code not in (0, 1) for code in codes):
        last = " | ".join(line for _, line in lines[-5:])
        findings.problem(
            "shared",
            f"The {workers} processes that were to look for each other did not all end well ({codes}). {last}",
            "Correct what they say, or start fewer workers on this machine.",
        )
        return False
    return not any(finding.check == "shared" and finding.level == "problem" for finding in seen)


if __name__ == "__main__":
    _place, _url, _patience = sys.argv[1:]
    _job = job_of(os.environ)
    assert _job is not None
    _findings = Findings(lambda finding: print(_FINDING + json.dumps(asdict(finding)), flush=True))
    with contextlib.closing(open_store(_place)) as _store:
        sys.exit(0 if Meeting(_store, _url, _job, float(_patience)).hold(_findings) else 1)
