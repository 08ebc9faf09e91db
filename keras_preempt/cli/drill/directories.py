"""Where the runs of a drill work, and where they keep their checkpoints: a directory, or a bucket with faults."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import click

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.options import store_of
from keras_preempt.cluster.scratch import scratch_directory
from keras_preempt.process.words import some
from keras_preempt.testing import FakeGcs, Faults


class RunDirectories:
    """A place below which each run gets a directory of its own.

    Args:
        place: A path, or ``gs://bucket/prefix``.

    Attributes:
        path: The place, if it is on this machine's disk.
    """

    def __init__(self, place: str) -> None:
        self._place = place.rstrip("/")
        self.path = open_store(place).path

    def of(self, run: str) -> str:
        """Returns the directory of the run of that name; makes it if need be."""
        directory = f"{self._place}/{run}"
        if self.path is not None:
            Path(directory).mkdir(exist_ok=True)
        return directory


@contextlib.contextmanager
def run_directories(keep: str | None, bucket: DrillBucket | None = None) -> Iterator[RunDirectories]:
    """Gives the place of both runs: a temporary directory, the drill's bucket, or the user's, new or empty.

    Args:
        keep: The user's directory; None for none.
        bucket: The bucket of the drill, which excludes `keep`.

    Raises:
        click.UsageError: The user's directory cannot be used.
    """
    if bucket is not None:
        yield RunDirectories(bucket.place)
    elif keep is None:
        with scratch_directory("drill") as path:
            yield RunDirectories(str(path))
    else:
        yield RunDirectories(_new_or_empty(keep))


def _new_or_empty(keep: str) -> str:
    with contextlib.closing(store_of(keep)) as store:
        try:
            store.prepare()
            taken = store.children("") if store.path is None else os.listdir(store.path)
        except StoreUnavailable as error:
            raise click.UsageError(str(error)) from None
    if taken:
        raise click.UsageError(
            f"Expected a new or empty directory for --keep. Received: {keep}, with files in it."
        )
    return store.url if store.path is None else str(store.path)


MIXES: Mapping[str, tuple[str, ...]] = {
    "errors": ("429", "500", "503"),
    "resets": ("reset", "truncated"),
    "lost-responses": ("lost-response",),
    "stalls": ("stall",),
    "corruption": ("corrupted", "corrupted-upload"),
    "all": (
        *("429", "500", "503", "reset", "truncated", "lost-response", "stall"),
        *("corrupted", "corrupted-upload"),
    ),
}
"""The faults of each mix, by its name; docs/testing.md says what each kind does."""

RATE = 0.1
"""The fraction of all requests that meet a fault."""

STALL_SECONDS = 2.0

_BUCKET = "drill"


class DrillBucket:
    """A running fake bucket with faults on demand.

    Attributes:
        place: Where in it the runs go.
    """

    place = f"gs://{_BUCKET}"

    def __init__(self, gcs: FakeGcs, mix: str, seed: int) -> None:
        self._gcs = gcs
        self._faults = Faults(seed=seed, rate=RATE, kinds=MIXES[mix], stall_seconds=STALL_SECONDS)

    def begin_faults(self) -> None:
        """Makes requests meet faults from now on."""
        self._gcs.faults = self._faults

    def end_faults(self) -> None:
        """Ends the faults."""
        self._gcs.faults = Faults()

    def summary(self) -> str:
        """Says how many requests met which fault."""
        requests = self._gcs.requests
        met = Counter(request.fault for request in requests if request.fault is not None)
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(met.items()))
        return f"{sum(met.values())} of {len(requests)} requests to the bucket met a fault: {told or 'none'}"


@contextlib.contextmanager
def drill_bucket(mix: str, seed: int) -> Iterator[DrillBucket]:
    """Runs a bucket to which ``gs://`` leads in this process and in the workers that it starts."""
    with contextlib.ExitStack() as stack:
        gcs = stack.enter_context(FakeGcs(buckets=(_BUCKET,)))
        before = {name: os.environ.get(name) for name in gcs.environment()}
        stack.callback(_put_back, before)
        os.environ.update(gcs.environment())
        yield DrillBucket(gcs, mix, seed)


def _put_back(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


MOST_FILES = 20_000
"""The most files that are looked at: a drill must not take minutes to walk through a home directory."""

LARGEST_COPY = 1 << 30
"""The most bytes of a working directory that is copied for each run."""

_SKIPPED = frozenset(
    {
        ".git",
        ".hg",
        ".venv",
        "venv",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        "node_modules",
    }
)

_FILES_NAMED = 5

Snapshot = dict[str, tuple[int, int]]


class WorkingDirectories:
    """The working directories of the runs of a drill, and what the first run wrote if they share one.

    Args:
        scratch: A folder of the drill, for copies.
        kept: Where checkpoints are kept, or None.
        isolate: Whether each run gets a copy of its own.

    Attributes:
        written: The files that the first run has left for the second one, in words; empty for none.
    """

    def __init__(self, scratch: Path, kept: Path | None, *, isolate: bool) -> None:
        self._scratch = scratch
        self._without = {scratch} if kept is None else {scratch, kept}
        self._isolate = isolate
        self._here = Path.cwd()
        self._before = None if isolate else snapshot(self._here, self._without)
        self.written = ""

    def of(self, run: str) -> Path | None:
        """Returns the working directory of a run; None for the current one.

        Raises:
            click.UsageError: It cannot be copied.
        """
        return copy_of(self._here, self._scratch / f"{run}-copy", self._without) if self._isolate else None

    def tell_written(self, say: Callable[[str], None]) -> None:
        """Says which files the first run has written where the second one will find them."""
        if self._isolate:
            return
        own = {str(path.relative_to(self._here)) for path in output_files() if self._here in path.parents}
        written = [
            name
            for name in changed_files(self._before, snapshot(self._here, self._without))
            if name not in own
        ]
        if not written:
            return
        self.written = some(written, _FILES_NAMED)
        say(
            f"the script also wrote {self.written} here. The next run finds that, and writes it again: if that "
            "matters, use --isolate"
        )


def snapshot(directory: Path, without: Collection[Path] = ()) -> Snapshot | None:
    """Notes time and size of every file below a directory; None if there are more than `MOST_FILES`.

    Args:
        directory: Where to look.
        without: Folders to skip, as absolute paths.
    """
    found: Snapshot = {}
    for path in _files(directory, without):
        try:
            status = path.stat()
        except OSError:
            continue
        found[str(path.relative_to(directory))] = (status.st_mtime_ns, status.st_size)
        if len(found) > MOST_FILES:
            return None
    return found


def changed_files(before: Snapshot | None, after: Snapshot | None) -> list[str]:
    """Names the files that were written between two snapshots; none if one of those is missing."""
    if before is None or after is None:
        return []
    return sorted(name for name, status in after.items() if before.get(name) != status)


def copy_of(directory: Path, target: Path, without: Collection[Path] = ()) -> Path:
    """Copies a working directory, without the names in `_SKIPPED` and the folders `without`, absolute paths.

    Raises:
        click.UsageError: It is larger than `LARGEST_COPY`, or cannot be read.
    """
    size = 0
    for path in _files(directory, without):
        try:
            size += path.lstat().st_size
        except OSError:
            continue
        if size > LARGEST_COPY:
            raise click.UsageError(
                f"Expected a working directory of at most {LARGEST_COPY >> 20} MiB for --isolate. Received: "
                f"{directory}, which is larger. Start the drill in a directory that holds only what the script needs."
            )
    try:
        shutil.copytree(
            directory,
            target,
            symlinks=True,
            ignore=lambda folder, names: [
                name for name in names if name in _SKIPPED or Path(folder, name).resolve() in without
            ],
        )
    except (OSError, shutil.Error) as error:
        raise click.UsageError(
            f"The working directory {directory} cannot be copied for --isolate: {error}"
        ) from None
    return target


def _files(directory: Path, without: Collection[Path]) -> Iterator[Path]:
    for folder, names, files in os.walk(directory):
        names[:] = [
            name for name in names if name not in _SKIPPED and Path(folder, name).resolve() not in without
        ]
        for name in files:
            yield Path(folder, name)


_STREAMS = (1, 2)
_PROCESSES = Path("/proc")


def output_files() -> set[Path]:
    """Returns the files that standard output and standard error are written to, as by ``> drill.log`` or ``| tee``.

    Where the system has no ``/proc``, it returns none.
    """
    found, pipes = set(), set()
    for stream in _STREAMS:
        try:
            kind = os.fstat(stream).st_mode
            target = os.readlink(f"/proc/self/fd/{stream}")
        except OSError:
            continue
        if stat.S_ISREG(kind):
            found.add(Path(target))
        elif stat.S_ISFIFO(kind):
            pipes.add(target)
    if pipes:
        found.update(_written_by_readers(pipes))
    return found


def _written_by_readers(pipes: set[str]) -> Iterator[Path]:
    own = os.getpid()
    for process in _PROCESSES.iterdir() if _PROCESSES.is_dir() else ():
        if not process.name.isdigit() or int(process.name) == own:
            continue
        opened = dict(_opened(process))
        if any(target in pipes and not writes for target, writes in opened.items()):
            yield from (
                Path(target) for target, writes in opened.items() if writes and Path(target).is_file()
            )


def _opened(process: Path) -> Iterator[tuple[str, bool]]:
    """Yields what a process has open, and whether for writing; nothing for one that is gone or another user's."""
    try:
        links = list((process / "fd").iterdir())
    except OSError:
        return
    for link in links:
        try:
            yield os.readlink(link), bool(link.lstat().st_mode & stat.S_IWUSR)
        except OSError:
            continue
