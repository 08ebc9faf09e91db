"""Compares two ways in which several workers restore a state from a bucket: each reads all of it, or together.

Together, each worker reads a share and gets the others' by TensorFlow's collectives. The workers are a real cluster;
the bucket is a fake with a limit for each worker, as of its network card, or, on gs://, one for all of them, as of a
quota. Both ways take turns, and medians are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

from bucket_services import BUCKET, END_TIMEOUT, FAKES, SCRIPTS, served_here, store_of
from bucket_ways import save_checkpoint, state
from figures import Aims, conditions, table, tell

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.storage.bucket import CONNECTIONS

READ, EXCHANGE = "read", "exchange"
FOLDER = "run"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mb", type=float, default=32, help="size of the state")
    parser.add_argument(
        "--rate", type=float, default=4, help="MB/s of each worker, or of all of them together"
    )
    parser.add_argument("--services", nargs="+", choices=[*FAKES], default=[*FAKES])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a small state, once, with 2 workers")
    options = parser.parse_args()
    if options.quick:
        options.mb, options.rate, options.rounds, options.workers = 8, 2, 1, [2]
    print(f"{conditions()}.")
    print(f"A state of {options.mb:g} MB; medians of {options.rounds}.\n", flush=True)
    aims, rows = Aims(apply=not options.quick), []
    for scheme in options.services:
        for limit in ("each worker", "the bucket") if scheme == "gs" else ("each worker",):
            for workers in options.workers:
                setting = Setting(scheme, int(options.mb * 1e6), limit, options.rate * 1e6, workers)
                found = measure(setting, options.rounds)
                rows += _rows(
                    f"{workers} workers, {scheme}://, {options.rate:g} MB/s for {limit}", found, workers, aims
                )
    print(table(["", "x the state from the bucket", "seconds", "times as fast"], rows))
    return aims.report()


@dataclass(frozen=True)
class Setting:
    """What is restored, and where.

    Attributes:
        scheme: Of the service.
        size: Bytes of the state.
        limit: What is limited: "each worker" or "the bucket".
        rate: To how many bytes a second.
        workers: How many there are.
    """

    scheme: str
    size: int
    limit: str
    rate: float
    workers: int


@dataclass(frozen=True)
class Restore:
    """One restore by all workers.

    Attributes:
        read: The bytes that left the bucket, over those of the state's files.
        seconds: From the moment at which all may begin until the last one has the state.
    """

    read: float
    seconds: float


def _rows(title: str, found: dict[str, list[Restore]], workers: int, aims: Aims) -> list[list[str]]:
    plain = median(each.seconds for each in found[READ])
    rows = []
    for way, runs in found.items():
        read, took = max(each.read for each in runs), median(each.seconds for each in runs)
        rows.append([f"{title}: {way}", f"{read:.2f}", f"{took:.2f}", f"{plain / took:.2f}"])
        if way == EXCHANGE:
            aims.check(f"{title}, bytes from the bucket", read, "at most", 1.01, " x")
            # The rest is for what is no faster: the exchange, and the own files of each worker.
            aims.check(f"{title}, times as fast as reading all", plain / took, "at least", 0.75 * workers)
            tell(f"restoring together, {title}", "each worker reads all", plain / took, better="more")
    return rows


def measure(setting: Setting, rounds: int) -> dict[str, list[Restore]]:
    """Restores a state in both ways, in turn.

    Args:
        setting: Which, and where.
        rounds: How often each way is measured.

    Raises:
        RuntimeError: A worker failed, or has restored something else.
    """
    found: dict[str, list[Restore]] = defaultdict(list)
    limits = {"each worker": "machine_bytes_per_second", "the bucket": "bucket_bytes_per_second"}
    # Only downloads are limited, so that the state is there in a moment.
    with served_here(setting.scheme, **{limits[setting.limit]: (1e12, setting.rate)}) as fake:
        store = store_of(setting.scheme, FOLDER, CONNECTIONS)
        incarnations.claim(store, {})
        save_checkpoint(store, state(setting.size))
        store.close()
        held = sum(seen.size for name, seen in fake.objects(BUCKET).items() if ".mirrored" in name)
        with cluster(setting, fake.environment()) as processes:
            for _ in range(rounds):
                for way in (READ, EXCHANGE):
                    fake.forget_requests()
                    seconds = max(_ask(processes, way))
                    read = sum(
                        request.bytes
                        for request in fake.requests
                        if request.method == "GET" and ".mirrored" in request.target
                    )
                    found[way].append(Restore(read / held, seconds))
    return found


@contextmanager
def cluster(setting: Setting, environment: dict[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Runs a cluster of worker processes that restore when they are told to."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(setting.workers)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
        for each in sockets:
            each.close()
        processes = []
        for index in range(setting.workers):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            process = subprocess.Popen(
                [
                    sys.executable,
                    str(SCRIPTS / "restore_worker.py"),
                    setting.scheme,
                    str(setting.size),
                    FOLDER,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    **environment,
                    "TF_CONFIG": json.dumps(config),
                    "CUDA_VISIBLE_DEVICES": "-1",
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                },
            )
            stack.callback(process.wait, END_TIMEOUT)
            stack.enter_context(process)
            stack.callback(process.terminate)
            processes.append(process)
        for process in processes:
            _line(process)
        yield processes


def _ask(processes: list[subprocess.Popen[str]], way: str) -> list[float]:
    for process in processes:
        assert process.stdin is not None
        print(way, file=process.stdin, flush=True)
    return [float(_line(process)) for process in processes]


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("Expected a worker to restore. Received: its end; see above.")
    return line


if __name__ == "__main__":
    sys.exit(main())
