"""Runs a training script in real worker processes, for tests.

``run_cluster`` waits for the end, ``start_cluster`` gives a handle for tests that signal workers or wait for
one of their lines. Both end every process they started, whatever happens.

The processes come from a fork server (`tests.cluster.fork_server`), which spares each the import of TensorFlow. With
``KERAS_PREEMPT_FRESH_PROCESSES=1``, as `make chaos FRESH=1` has it, and where a test says ``fresh=True``, every process
begins with nothing, as on a cluster.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preempt.cluster import LocalCluster
from tests.cluster import forked
from tests.cluster.forked import QUIET_CPU, ForkedCluster

_SHOWN_LINES = 60


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (
        FileNotFoundError,
        ProcessLookupError,
    ):  # The latter if it goes between the opening and the reading.
        return False


@dataclass(frozen=True)
class ClusterResult:
    """Exit codes and output by worker, and how long it took in seconds."""

    codes: list[int]
    outputs: list[str]
    seconds: float

    def assert_ok(self) -> ClusterResult:
        return self.assert_codes(*[0] * len(self.codes))

    def assert_codes(self, *expected: int) -> ClusterResult:
        """Asserts the exit codes: one for all workers, or one per worker; shows the logs if they differ."""
        wanted = list(expected) * (len(self.codes) if len(expected) == 1 else 1)
        assert self.codes == wanted, f"exit codes {self.codes}, expected {wanted}\n{describe(self.outputs)}"
        return self


def describe(outputs: Sequence[str]) -> str:
    """The last lines of every worker."""
    parts = []
    for index, output in enumerate(outputs):
        lines = output.splitlines()[-_SHOWN_LINES:]
        parts.append("\n".join([f"--- w{index}: last {len(lines)} lines", *lines]))
    return "\n".join(parts)


def keras_preempt() -> list[str]:
    """The command line whose workers are forked, too, unless every process is to start from scratch."""
    program = "keras_preempt" if all_fresh() else "tests.cluster.forked_cli"
    return [sys.executable, "-m", program]


def python() -> list[str]:
    """``python`` for a command that a shell or a terminal starts; its process is forked in the same way."""
    return [sys.executable] if all_fresh() else forked.python()


def all_fresh() -> bool:
    return os.environ.get("KERAS_PREEMPT_FRESH_PROCESSES") == "1"


class RunningCluster:
    """A started cluster; a context manager that ends it."""

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        env: Mapping[str, str | None] | None = None,
        per_worker_env: Mapping[int, Mapping[str, str | None]] | None = None,
        cwd: Path | None = None,
        fresh: bool = False,
    ):
        self._news = threading.Condition()
        self._lines: list[list[str]] = [[] for _ in range(workers)]
        self._gone: set[int] = set()
        fresh = fresh or command[0] != sys.executable or all_fresh()
        self._cluster = (LocalCluster if fresh else ForkedCluster)(
            workers,
            command,
            env={**QUIET_CPU, **(env or {})},
            worker_env=per_worker_env,
            log=self._on_line,
            on_exit=self._on_exit,
            cwd=cwd,
        )
        self._started_at = time.monotonic()
        self._cluster.start()

    def __enter__(self) -> RunningCluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def cluster(self) -> LocalCluster:
        return self._cluster

    @property
    def outputs(self) -> list[str]:
        with self._news:
            return ["\n".join(lines) for lines in self._lines]

    def wait_for_line(self, worker: int, pattern: str, timeout: float = 60.0, *, after: int = 0) -> str:
        """Waits for a line of the worker that ``pattern`` is found in, skipping its first ``after`` lines."""
        regex = re.compile(pattern)
        read = after
        deadline = time.monotonic() + timeout
        with self._news:
            while True:
                lines = self._lines[worker]
                for line in lines[read:]:
                    if regex.search(line):
                        return line
                read = max(read, len(lines))
                gone = worker in self._gone
                remaining = deadline - time.monotonic()
                if gone or remaining <= 0:
                    why = "ended without it" if gone else f"did not write it in {timeout:g} s"
                    outputs = ["\n".join(each) for each in self._lines]
                    raise AssertionError(f"w{worker} {why}: line like {pattern!r}\n{describe(outputs)}")
                self._news.wait(remaining)

    def await_end(self, worker: int, timeout: float = 60.0) -> None:
        """Waits until the process of the worker is gone."""
        with self._news:
            gone = self._news.wait_for(lambda: worker in self._gone, timeout)
        assert gone, f"w{worker} goes on for {timeout:g} s\n{describe(self.outputs)}"

    def signal(self, worker: int, number: int) -> bool:
        return self._cluster.signal(worker, number)

    def wait(self, timeout: float = 120.0) -> ClusterResult:
        """Waits for all workers to end; ends them and fails with their logs if they do not."""
        try:
            exits = self._cluster.wait(timeout)
        except TimeoutError as error:
            self.close()
            raise AssertionError(f"{error}\n{describe(self.outputs)}") from None
        codes = {e.index: e.code for e in exits}
        seconds = time.monotonic() - self._started_at
        return ClusterResult([codes[index] for index in range(len(codes))], self.outputs, seconds)

    def close(self) -> None:
        self._cluster.kill_all()

    def _on_line(self, index: int, line: str) -> None:
        with self._news:
            self._lines[index].append(line)
            self._news.notify_all()

    def _on_exit(self, index: int) -> None:
        with self._news:
            self._gone.add(index)
            self._news.notify_all()


def start_cluster(
    script: Path,
    workers: int,
    *,
    args: Sequence[str] = (),
    env: Mapping[str, str | None] | None = None,
    per_worker_env: Mapping[int, Mapping[str, str | None]] | None = None,
    cwd: Path | None = None,
    fresh: bool = False,
) -> RunningCluster:
    """Starts ``python script *args`` in ``workers`` processes; use the handle in a ``with`` statement."""
    return RunningCluster([sys.executable, str(script), *args], workers, env, per_worker_env, cwd, fresh)


def run_cluster(script: Path, workers: int, *, timeout: float = 120.0, **how: Any) -> ClusterResult:
    """As `start_cluster`, and waits for the end; fails with the logs of all after ``timeout``."""
    with start_cluster(script, workers, **how) as running:
        return running.wait(timeout)
