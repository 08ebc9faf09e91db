"""What a commit and a start of many workers take on a store that answers after 30 ms, before and after.

Simulated with the classes that jobs use: the files of all workers are laid out in a store in memory that sleeps before
every request; then one worker commits them, and worker 0 and another one begin a fit, each by itself. What the other
workers say and give is prepared. So the seconds are real, and those of a worker that has a processor for itself. The
requests of a whole start are those of worker 0, and those of the other one for each of the rest.

A request is a call of the store; a listing is one for each 1,000 names. (On gs:// a read of a small file makes two.)
"Before" is how releases up to 0.2 read part lists: one after the other, and all of them on each worker. A plan named
every worker then.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO
from unittest import mock

import numpy as np
from figures import Aims, conditions, table

from keras_preempt.agreement.coordinator import LocalCoordinator
from keras_preempt.agreement.messages import Kind, Plan
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.checked_file import Bytes
from keras_preempt.checkpoint.commit import Patience, commit
from keras_preempt.checkpoint.errors import AlreadyExists, NotFound
from keras_preempt.checkpoint.exchange import give_all, share_out
from keras_preempt.checkpoint.finding import CheckpointInfo, newest_first
from keras_preempt.checkpoint.identity import check_or_create
from keras_preempt.checkpoint.layout import MANIFEST, attempt_name
from keras_preempt.checkpoint.part_lists import PartLists
from keras_preempt.checkpoint.reader import Reading
from keras_preempt.checkpoint.storage import parallel
from keras_preempt.checkpoint.storage.store import (
    Buffer,
    FileInfo,
    FileInfos,
    LineSink,
    Moved,
    Names,
    Store,
    uncounted,
)
from keras_preempt.checkpoint.values import Value
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from keras_preempt.training.start.handshake import Handshake
from keras_preempt.training.start.reading_together import Share
from keras_preempt.training.start.startup import Startup

PAGE = 1000  # names of a listing that one request brings
TENSORS = 100
STATE = {"epoch": 3, "seeds": list(range(400))}  # 2 kB, as of a fit with a few callbacks
STEP = 70
POSITION = {"epoch": 3, "phase": "train", "batch": 10, "step": STEP}
IDENTITY = {
    "format": 1,
    "run_id": "many",
    "model": [{"name": "kernel", "shape": [2], "dtype": "float32"}],
    "optimizer": [],
    "optimizer_class": "Adam",
    "setup": {"workers": 2, "replicas": 2, "global_batch": 8, "batches": 6, "built_from": 1},
    "config": {},
}


class Distant(Store):
    """Files in memory, of which each request takes `delay` seconds.

    Attributes:
        asked: The requests, by the kind of file that they are about.
    """

    url = key = "memory://many"

    def __init__(self) -> None:
        self.delay = 0.0
        self.files: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def _request(self, name: str, count: int = 1) -> None:
        kind = "part lists" if name.endswith(".part.json") else name.rpartition(".")[2]
        with self._lock:
            self.asked["tensors" if kind == "safetensors" else kind if kind == "part lists" else "rest"] += (
                count
            )
        time.sleep(self.delay * count)

    def prepare(self) -> None:
        self._request("")

    def check_space(self, size: int) -> None:
        """There is room."""

    def file_size(self, total: int) -> int:
        return max(total, 1)

    def read(self, name: str, *, limit: int) -> bytes:
        return self.open(name).read()

    def create(self, name: str, data: bytes) -> FileInfo:
        self._request(name)
        with self._lock:
            if name in self.files:
                raise AlreadyExists(name, self.url)
            self.files[name] = data
        return FileInfo(name, len(data))

    @contextlib.contextmanager
    def writer(self, name: str, moved: Moved = uncounted) -> Iterator[Any]:
        written = bytearray()

        class Written:
            def write(self, buffer: Buffer) -> None:
                written.extend(buffer)

        yield Written()
        self.create(name, bytes(written))

    def open(self, name: str, moved: Moved = uncounted) -> BinaryIO:
        self._request(name)
        if name not in self.files:
            raise NotFound(name, self.url)
        return io.BytesIO(self.files[name])

    def stat(self, name: str) -> FileInfo:
        return FileInfo(name, len(self.open(name).read()))

    def list(self, prefix: str) -> FileInfos:
        below = f"{prefix}/" if prefix else ""
        found = sorted(name for name in self.files if name.startswith(below))
        self._request("", max(1, -(-len(found) // PAGE)))
        return [FileInfo(name, len(self.files[name])) for name in found]

    def children(self, prefix: str) -> Names:
        below = f"{prefix}/" if prefix else ""
        found = {name[len(below) :].split("/")[0] for name in list(self.files) if name.startswith(below)}
        self._request("", max(1, -(-len(found) // PAGE)))
        return sorted(found)

    def delete(self, name: str) -> None:
        self._request(name)
        if self.files.pop(name, None) is None:
            raise NotFound(name, self.url)

    def append_log(self, name: str) -> LineSink:
        raise NotImplementedError

    @contextlib.contextmanager
    def measured(self, delay: float) -> Iterator[Counter[str]]:
        """Takes `delay` seconds for each request in the block; gives what is asked for in it."""
        self.asked, self.delay = Counter(), delay
        try:
            yield self.asked
        finally:
            self.delay = 0.0


@dataclasses.dataclass(frozen=True)
class Measured:
    """The seconds that something took one worker, and the requests that it took all of them, by kind."""

    seconds: float
    asked: Counter[str]


def one_after_the_other() -> Any:
    """Requests are made so in the block."""
    return mock.patch.multiple(parallel, REQUESTS=1, TRANSFERS=1)


def saved(members: int) -> tuple[Distant, Attempt]:
    """Returns a store in which each of so many workers has written its part, and the attempt to commit."""
    store = Distant()
    check_or_create(store, IDENTITY)
    attempt = Attempt(
        step=STEP,
        name=attempt_name(incarnations.claim(store, {}), 1),
        position=POSITION,
        kind="preempted",
        members=members,
        writers=tuple(range(members)),
        values=[
            Value(f"layer_{n}/kernel", "float32", (members * 256 // TENSORS + 1,)) for n in range(TENSORS)
        ],
    )
    for member in range(members):
        boxes = [(box, np.full(box.extent, member, box.dtype)) for box in attempt.boxes[member]]
        own = {"moving_mean": np.full((3,), member, np.float32)}
        share = WorkerShare(boxes, own, {**STATE, "member": member}, POSITION)
        write_part(store, attempt.directory, member, share)
    return store, attempt


def measure_commit(store: Distant, attempt: Attempt, delay: float) -> Measured:
    """Commits what is there; the checkpoint stays."""
    with contextlib.suppress(NotFound):
        store.delete(f"{attempt.directory}/{MANIFEST}")
    with store.measured(delay) as asked:
        begun = time.perf_counter()
        commit(store, attempt, Patience(required=60.0))
        return Measured(time.perf_counter() - begun, asked)


class Crowd(LocalCoordinator):
    """The coordination service of many workers, of which all but worker 0 say the same."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.members = members

    def wait_for(self, key: str, timeout: float | None) -> str:
        return super().wait_for(re.sub(r"/\d{2,}$|/[2-9]$", "/1", key), timeout)


class Seat:
    """The crowd as one worker sees it."""

    def __init__(self, crowd: Crowd, member: int) -> None:
        self.member, self.members = member, crowd.members
        self.put_if_absent, self.wait_for = crowd.put_if_absent, crowd.wait_for
        self.delete, self.gone, self.report_error = crowd.delete, crowd.gone, crowd.report_error


def rows(given: Sequence[bytes]) -> Bytes:
    """Returns what each worker gives, a row for each, with zeros at its end."""
    made = np.zeros((len(given), max(map(len, given))), np.uint8)
    for row, data in zip(made, given, strict=True):
        row[: len(data)] = np.frombuffer(data, np.uint8)
    return made


class Beginning(Startup):
    """How one worker begins.

    Args:
        given: What all workers give in one exchange after the other.
        tells: Whether they tell each other the part lists.
    """

    together = True

    def __init__(self, store: Store, seat: Any, given: Sequence[Bytes], *, tells: bool) -> None:
        super().__init__(store, Handshake(seat, 1))
        self.tells = tells
        self._given = list(given)
        self._start = 0

    def gather(self, data: Bytes) -> Sequence[Bytes]:
        """See `exchange.Gather`: the others have given that already."""
        given, start = self._given[0], self._start
        self._start += len(data)
        if self._start >= given.shape[1]:
            self._given.pop(0)
            self._start = 0
        piece = given[:, start : start + len(data)]
        return np.pad(piece, ((0, 0), (0, len(data) - piece.shape[1])))

    def identity(self) -> dict[str, Any]:
        return IDENTITY

    def give(self, data: bytes) -> list[bytes]:
        here = self.handshake.coordinator
        return give_all(self.gather, here.members, here.member, data)

    def read_share(self, info: CheckpointInfo) -> Share:
        here = self.handshake.coordinator
        reading = Reading(self.store, info, share=(here.member, here.members))
        return Share(reading.load(here.member), reading, self.gather, contextlib.nullcontext)


def measure_start(store: Distant, members: int, delay: float, *, tells: bool) -> Measured:
    """Begins on the checkpoint of a store; returns the seconds of the slower of the two workers that are run."""
    info = next(newest_first(store))
    lists = PartLists(store, info)
    parts = lists.of(list(lists.refs))
    files = [entry for part in parts for entry in part.files if entry.name != part.local]
    shares = share_out([entry.size for entry in files], members)
    tensors = rows(
        [b"".join(store.files[f"{info.directory}/{files[n].name}"] for n in share) for share in shares]
    )
    told = [lists.share(member, members) for member in range(members)]
    lengths = rows([np.int64(len(share)).tobytes() for share in told])
    given = [lengths, rows(told), tensors] if tells else [tensors]
    crowd = Crowd(members)

    def begin(member: int) -> None:
        start = Beginning(store, Seat(crowd, member), given, tells=tells).agree()
        assert start.restored is not None
        assert start.restored.state["member"] == member
        assert start.exchanged

    def measure(member: int) -> Measured:
        with store.measured(delay) as asked:
            begun = time.perf_counter()
            begin(member)
            return Measured(time.perf_counter() - begun, asked)

    # At first without a delay, both at once: then each of them has said what the other one waits for.
    follower = threading.Thread(target=begin, args=(1,))
    follower.start()
    begin(0)
    follower.join()
    first, second = measure(0), measure(1)
    asked = Counter({kind: first.asked[kind] + (members - 1) * second.asked[kind] for kind in first.asked})
    return Measured(max(first.seconds, second.seconds), asked)


def plan_of(members: int) -> Plan:
    """Returns a plan of so many workers, of which one in the middle is under notice."""
    doomed = (members // 2,)
    return Plan(1, Kind.PREEMPTED, tuple(n for n in range(members) if n not in doomed), doomed)


def named_one_by_one(plan: Plan) -> int:
    """Returns the bytes of a plan that names every worker."""
    return len(json.dumps(dataclasses.asdict(plan), separators=(",", ":")))


def main() -> int:
    """Measures and prints; the exit status is 1 if an aim is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, nargs="+", default=[200, 1000, 4096])
    parser.add_argument("--delay", type=float, default=0.03, metavar="SECONDS", help="of each request")
    parser.add_argument("--quick", action="store_true", help="100 workers and 5 ms")
    options = parser.parse_args()
    members, delay = ([100], 0.005) if options.quick else (options.members, options.delay)
    print(conditions())
    print(f"{1000 * delay:.0f} ms a request")
    aims = Aims(apply=not options.quick)
    shown = []
    for count in members:
        store, attempt = saved(count)
        with one_after_the_other():
            commit_before = measure_commit(store, attempt, delay)
        commit_after = measure_commit(store, attempt, delay)  # Before a start claims the directory.
        with one_after_the_other():
            start_before = measure_start(store, count, delay, tells=False)
        start_after = measure_start(store, count, delay, tells=True)
        plan = plan_of(count)
        sizes = named_one_by_one(plan), len(plan.encode())
        for when, commit_, start, size in (
            ("before", commit_before, start_before, sizes[0]),
            ("after", commit_after, start_after, sizes[1]),
        ):
            shown.append(
                [
                    f"{count:,} workers, {when}",
                    f"{commit_.seconds:.1f}",
                    f"{start.seconds:.1f}",
                    f"{start.asked.total():,}",
                    f"{start.asked['part lists']:,}",
                    f"{start.asked['tensors']:,}",
                    f"{start.asked['rest'] / count:.1f}",
                    f"{size:,}",
                ]
            )
        if count == 1000:
            aims.check("commit of 1,000 workers", commit_after.seconds, "at most", 3, " s")
            aims.check("start of 1,000 workers", start_after.seconds, "at most", 3, " s")
        aims.check(
            f"part lists that a start of {count:,} workers reads",
            start_after.asked["part lists"],
            "at most",
            count,
        )
        aims.check(
            f"other requests of a worker, of {count:,}", start_after.asked["rest"] / count, "at most", 4
        )
        aims.check(f"plan of {count:,} workers", sizes[1], "below", 1000, " bytes")
    header = ["seconds and requests", "commit", "start", "all requests", "part lists", "tensors"]
    print(table([*header, "rest a worker", "plan, bytes"], shown))
    return aims.report()


if __name__ == "__main__":
    raise SystemExit(main())
