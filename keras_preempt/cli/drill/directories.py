"""Where the runs of a drill work, and where they keep their checkpoints: a directory, or a bucket with faults."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.staging import scratch_directory
from keras_preempt.cli.options import store_of
from keras_preempt.process.words import some

if TYPE_CHECKING:
    from keras_preempt.testing import FakeAzure, FakeGcs, FakeS3, Faults


class RunDirectories:
    """A path, or a place such as ``gs://bucket/prefix``, below which each run gets a directory of its own."""

    def __init__(self, place: str) -> None:
        self._place = place.rstrip("/")
        self.path = open_store(place).path  # None in a bucket.

    def of(self, run: str) -> str:
        directory = f"{self._place}/{run}"
        if self.path is not None:
            Path(directory).mkdir(exist_ok=True)
        return directory


@contextlib.contextmanager
def run_directories(keep: str | None, bucket: DrillBucket | None = None) -> Iterator[RunDirectories]:
    """Gives the place of both runs: a temporary directory, the drill's bucket, or the user's, new or empty."""
    if bucket is not None:
        yield RunDirectories(bucket.place)
    elif keep is None:
        with scratch_directory("drill") as path:
            yield RunDirectories(str(path))
    else:
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
        yield RunDirectories(store.url if store.path is None else str(store.path))


MIXES: Mapping[str, tuple[str, ...]] = {
    "errors": ("409", "429", "500", "503"),
    "resets": ("reset", "truncated"),
    "lost-responses": ("lost-response",),
    "stalls": ("stall",),
    "corruption": ("corrupted", "corrupted-upload"),
    "all": (
        *("409", "429", "500", "503", "reset", "truncated", "lost-response", "stall"),
        *("corrupted", "corrupted-upload"),
    ),
}
"""The faults of each mix, by its name; docs/testing.md says what each kind does, and on which service it happens."""

FAKES: Mapping[str, str] = {"gcs": "gs", "s3": "s3", "azure": "az"}
"""The services of which a drill can bring up a fake bucket, each with its scheme."""

RATE = 0.1
"""The fraction of all requests that meet a fault."""

STALL_SECONDS = 2.0

_BUCKET = "drill"


@dataclass
class DrillBucket:
    """A running fake bucket, at `place`, whose requests meet faults between `begin_faults` and `end_faults`."""

    place: str
    _fake: FakeGcs | FakeS3 | FakeAzure
    _faults: Faults

    def begin_faults(self) -> None:
        self._fake.faults = self._faults

    def end_faults(self) -> None:
        self._fake.faults = replace(self._faults, rate=0.0)

    def summary(self) -> str:
        requests = self._fake.requests
        met = Counter(request.fault for request in requests if request.fault is not None)
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(met.items()))
        return f"{sum(met.values())} of {len(requests)} requests to the bucket met a fault: {kinds or 'none'}"


@contextlib.contextmanager
def drill_bucket(service: str, mix: str, seed: int) -> Iterator[DrillBucket]:
    """Runs a bucket of a service, one of `FAKES`, to which its scheme leads in this process and in its workers."""
    from keras_preempt.testing import (
        FakeAzure,
        FakeGcs,
        FakeS3,
        Faults,
    )  # Other drills have no use for the fakes.

    # Uploads to Azure carry no checksum: there only TLS, which the fake does not speak, finds damage on the way.
    kinds = tuple(kind for kind in MIXES[mix] if (service, kind) != ("azure", "corrupted-upload"))
    faults = Faults(seed=seed, rate=RATE, kinds=kinds, stall_seconds=STALL_SECONDS)
    with {"gcs": FakeGcs, "s3": FakeS3, "azure": FakeAzure}[service](buckets=(_BUCKET,)) as fake:
        before, variables = dict(os.environ), fake.environment()
        os.environ.update(variables)
        try:
            yield DrillBucket(f"{FAKES[service]}://{_BUCKET}", fake, faults)
        finally:
            for name in variables:
                os.environ.pop(name, None)
            os.environ.update({name: before[name] for name in variables if name in before})


MOST_FILES = 20_000
"""The most files that are looked at: a drill must not take minutes to walk through a home directory."""

LARGEST_COPY = 1 << 30
"""The most bytes of a working directory that is copied for each run."""

_SKIPPED = frozenset(
    [
        ".git",
        ".hg",
        ".venv",
        "venv",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        "node_modules",
    ]
)
_FILES_NAMED = 5


class WorkingDirectories:
    """The working directories of the runs of a drill, and what the first run wrote if they share one.

    With `isolate` each run gets a copy in `scratch`, a folder of the drill. Checkpoints that are `kept` are left out.
    """

    def __init__(self, scratch: Path, kept: Path | None, *, isolate: bool) -> None:
        self._scratch = scratch
        self._without = {scratch} if kept is None else {scratch, kept}
        self._isolate = isolate
        self._here = Path.cwd()
        self._before = None if isolate else _snapshot(self._here, self._without)
        self.written = ""  # The files that the first run has left for the second one, in words.

    def of(self, run: str) -> Path | None:
        return self.copy_for(run) if self._isolate else None

    def copy_for(self, run: str) -> Path:
        """Returns a copy of the working directory for a run."""
        return _copy_of(self._here, self._scratch / f"{run}-copy", self._without)

    def report_written(self, say: Callable[[str], None]) -> None:
        """Says which files the first run has written where the second one will find them."""
        if self._isolate:
            return
        own = {str(path.relative_to(self._here)) for path in _output_files() if self._here in path.parents}
        before, after = self._before, _snapshot(self._here, self._without)
        if before is None or after is None:
            return
        written = sorted(
            name for name, status in after.items() if before.get(name) != status and name not in own
        )
        if written:
            self.written = some(written, _FILES_NAMED)
            say(
                f"the script also wrote {self.written} here. The next run finds it and writes it again: if that "
                "matters, use --isolate"
            )


def _snapshot(directory: Path, without: Collection[Path]) -> dict[str, tuple[int, int]] | None:
    """Notes time and size of every file below a directory; None if there are more than `MOST_FILES`."""
    found = {}
    for path in _files(directory, without):
        try:
            status = path.stat()
        except OSError:
            continue
        found[str(path.relative_to(directory))] = (status.st_mtime_ns, status.st_size)
        if len(found) > MOST_FILES:
            return None
    return found


def _copy_of(directory: Path, target: Path, without: Collection[Path]) -> Path:
    """Copies a working directory, without the names in `_SKIPPED` and the folders `without`, absolute paths."""
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


def _output_files() -> set[Path]:
    """Returns the files that standard output and standard error are written to, as by ``> drill.log`` or ``| tee``.

    Where the system has no ``/proc``, it returns none.
    """
    found, pipes = set(), set()
    for stream in (1, 2):
        try:
            kind = os.fstat(stream).st_mode
            target = os.readlink(f"/proc/self/fd/{stream}")
        except OSError:
            continue
        if stat.S_ISREG(kind):
            found.add(Path(target))
        elif stat.S_ISFIFO(kind):
            pipes.add(target)
    for process in Path("/proc").glob("[0-9]*") if pipes else ():
        if int(process.name) == os.getpid():
            continue
        opened = {}  # What the process has open, and whether for writing.
        with contextlib.suppress(OSError):  # It is gone, or another user's.
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    opened[os.readlink(link)] = bool(link.lstat().st_mode & stat.S_IWUSR)
        if any(target in pipes and not writes for target, writes in opened.items()):
            found.update(Path(name) for name, writes in opened.items() if writes and Path(name).is_file())
    return found
