"""How workers share the work of a save: what each uploads, and the time until all of it is committed."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass

from gcs_ways import END_TIMEOUT, SCRIPTS


@dataclass(frozen=True)
class Shared:
    """One save by several workers.

    Attributes:
        bytes: what each worker uploaded.
        seconds: from the moment at which all may begin to the commit.
    """

    bytes: tuple[int, ...]
    seconds: float


def save_together(workers: int, size: int, connections: int, folder: str) -> Shared:
    """Lets worker processes save one state together.

    Args:
        workers: how many processes.
        size: bytes of the state.
        connections: how many each of them has.
        folder: where to, in the bucket.

    Raises:
        RuntimeError: one of them failed.
    """
    with ExitStack() as stack:
        processes = []
        for worker in range(workers):
            command = [sys.executable, str(SCRIPTS / "gcs_worker.py")]
            command += [str(each) for each in (worker, workers, size, connections, folder)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
            )
            stack.callback(process.wait, END_TIMEOUT)
            stack.enter_context(process)
            stack.callback(process.terminate)
            processes.append(process)
        for process in processes:
            _line(process)
        for process in processes:
            assert process.stdin is not None
            print(file=process.stdin, flush=True)
        told = [_line(process).split() for process in processes]
    return Shared(tuple(int(sent) for sent, _ in told), float(told[0][1]))


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("Expected a worker to save. Received: its end; see above.")
    return line
