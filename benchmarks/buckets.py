"""Compares ways to save a state to a bucket and to restore it, over a network with a limit for each connection.

The buckets are fakes of the three services, each in its own process, since nothing else gives every run the same
network. Every way moves the same bytes; they take turns, and medians are printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bucket_peers import peers
from bucket_requests import KINDS, count
from bucket_services import END_TIMEOUT, FAKES, SCRIPTS, served
from bucket_ways import Ours, Way, state
from figures import Aims, conditions, table, tell

WORKER_CONNECTIONS = 4

_BUSY = 0.03  # by how much one connection may be slower than its limit, on a machine that does nothing else


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", nargs="+", choices=[*FAKES], default=[*FAKES])
    parser.add_argument("--mb", type=float, default=96, help="size of the state")
    parser.add_argument("--rate", type=float, default=5, help="MB/s of one connection, in each direction")
    parser.add_argument(
        "--machine-rate",
        type=float,
        default=8,
        help="MB/s of all connections of one worker of several, who save half the state together; 0 for no limit",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--no-tensorflow", action="store_true", help="leave TensorFlow's own writer out")
    parser.add_argument("--quick", action="store_true", help="a small state, once, without TensorFlow")
    options = parser.parse_args()
    if options.quick:
        options.mb, options.rate, options.machine_rate, options.rounds = 12, 4, 4, 1
        options.connections, options.workers, options.no_tensorflow = [4], [1, 2], True
    size = int(options.mb * 1e6)
    print(f"{conditions()}.")
    print(
        f"A state of {options.mb:g} MB; {options.rate:g} MB/s for each connection; medians of {options.rounds}.\n"
    )
    aims = Aims(apply=not options.quick)
    for scheme in options.services:
        compare(scheme, size, options, aims)
    if "gs" in options.services:  # How workers share the bytes is the same on each.
        share("gs", size // 2, options, aims)
    for scheme in options.services:
        count_requests(scheme, size)
    return aims.report()


def compare(scheme: str, size: int, options: argparse.Namespace, aims: Aims) -> None:
    """Prints the times of all ways to use one service; the first is ours with one connection."""
    tensorflow = not options.no_tensorflow and scheme == "gs"
    if tensorflow and importlib.util.find_spec("cryptography") is None:
        print("TensorFlow's own writer is left out: leading it to the fake takes the package cryptography.\n")
        tensorflow = False
    saves: dict[str, list[float]] = defaultdict(list)
    restores: dict[str, list[float]] = defaultdict(list)
    tensors = state(size)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(scheme, bytes_per_second=options.rate * 1e6),
    ):
        path = Path(folder, "state")
        path.write_bytes(b"".join(array.data for array in tensors.values()))
        ours: list[Way] = [Ours(scheme, tensors, number) for number in [1, *options.connections]]
        with peers(scheme, path, options.connections, tensorflow=tensorflow) as others:
            compared = [*ours, *others]
            for turn in range(options.rounds):
                for way in compared:
                    if turn and not _has_several(way):
                        continue  # One connection is as fast each time, and takes the longest.
                    saves[way.name].append(way.save())
                    restores[way.name].append(way.restore())
                    way.forget()
    rows = {way.name: [f"{scheme}://, {way.name}"] for way in compared}
    for what, times in (("saving to", saves), ("restoring from", restores)):
        took = {name: median(found) for name, found in times.items()}
        for name, row in rows.items():
            row += [f"{took[name]:.2f}", f"{took[compared[0].name] / took[name]:.2f}"]
        ideal = sum(array.nbytes for array in tensors.values()) / options.rate / 1e6
        _judge(f"{what} {scheme}://", compared, took, busy(took[compared[0].name], ideal), aims)
    print(table(["seconds", "save", "x one", "restore", "x one"], [*rows.values()]), end="\n\n")


def _has_several(way: Way) -> bool:
    return getattr(way, "connections", 1) > 1


def busy(took: float, ideal: float) -> str:
    """Says so if the machine was too busy to tell several connections from one; "" if it was not.

    Args:
        took: Seconds that one connection took.
        ideal: Seconds that its limit makes of the bytes.
    """
    more = took / ideal - 1
    return f"one connection took {more:.0%} longer than its limit makes it" if more > _BUSY else ""


def _judge(what: str, ways: Sequence[Way], took: dict[str, float], unsure: str, aims: Aims) -> None:
    """Compares several connections with one, and with a peer that has as many, or one that has no such number."""
    single, *more = (way for way in ways if isinstance(way, Ours))
    for way in more:
        faster = took[single.name] / took[way.name]
        aims.check(
            f"{what}, {way.connections} connections, times as fast as one",
            faster,
            "at least",
            0.95 * way.connections,
            unsure=unsure,
        )
        for peer in ways:
            number = getattr(peer, "connections", 1)
            if not isinstance(peer, Ours) and number in (way.connections, 1):
                tell(
                    f"{what}, {way.name}",
                    peer.name.partition(",")[0],
                    took[peer.name] / took[way.name],
                    better="more",
                )


def share(scheme: str, size: int, options: argparse.Namespace, aims: Aims) -> None:
    """Prints what each of several workers uploads, and how long they take together."""
    machine = options.machine_rate * 1e6
    found: dict[int, list[Shared]] = defaultdict(list)
    limits = {"machine_bytes_per_second": machine} if machine else {}
    with served(scheme, bytes_per_second=options.rate * 1e6, **limits):
        for turn in range(options.rounds):
            for workers in options.workers:
                folder = f"workers-{workers}-{turn}"
                found[workers].append(save_together(workers, size, WORKER_CONNECTIONS, folder))
    rows = []
    first = median(each.seconds for each in found[options.workers[0]])
    for workers, runs in found.items():
        even = sum(runs[0].bytes) / workers
        took = median(each.seconds for each in runs)
        uneven = max(abs(each / even - 1) for each in runs[0].bytes)
        aims.check(f"{workers} workers, bytes off 1/N", uneven, "at most", 0.1)
        rows.append(
            [
                f"{workers}",
                f"{min(runs[0].bytes) / 1e6:.2f}",
                f"{max(runs[0].bytes) / 1e6:.2f}",
                f"{uneven:.1%}",
                f"{took:.2f}",
                f"{first / took:.2f}",
            ]
        )
    limit = f", {options.machine_rate:g} MB/s for each worker" if machine else ""
    print(f"Workers that save {size / 1e6:g} MB together, {WORKER_CONNECTIONS} connections each{limit}:")
    print(table(["workers", "fewest MB", "most MB", "off 1/N", "s to commit", "times as fast"], rows))
    print()


@dataclass(frozen=True)
class Shared:
    """One save by several workers.

    Attributes:
        bytes: The bytes that each worker uploaded.
        seconds: From the moment at which all may begin to the commit.
    """

    bytes: tuple[int, ...]
    seconds: float


def save_together(workers: int, size: int, connections: int, folder: str) -> Shared:
    """Lets worker processes save one state together.

    Args:
        workers: How many processes.
        size: Bytes of the state.
        connections: How many each of them has.
        folder: The target folder in the bucket.

    Raises:
        RuntimeError: One of them failed.
    """
    with ExitStack() as stack:
        processes = []
        for worker in range(workers):
            command = [sys.executable, str(SCRIPTS / "bucket_worker.py")]
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


def count_requests(scheme: str, size: int) -> None:
    """Prints how many requests 2 workers make."""
    rows = [
        [f"{scheme}://, {what}", *(str(kinds[kind]) for kind in KINDS), str(kinds.total())]
        for what, kinds in count(scheme, size).items()
    ]
    print(table(["requests", *KINDS, "all"], rows), end="\n\n")


if __name__ == "__main__":
    sys.exit(main())
