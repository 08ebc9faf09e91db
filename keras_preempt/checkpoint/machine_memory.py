"""The newest checkpoint of a run in the memory of the machines that train it: a directory on tmpfs on each of them.

::

    /dev/shm/keras_preempt-1000/<run>/w00002/step-00000070/00001-0003/...
                                     /w00002.lock

Every worker has a folder of its own. It holds the worker's own part and those of its neighbours, as any checkpoint
holds them, and a manifest that lists only these: the other parts are on other machines. A restart puts them together.
The parts survive the worker; those of a machine that is lost are on its neighbour.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import google_crc32c

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.checked_file import PIECE
from keras_preempt.checkpoint.errors import AlreadyExists, NotFound, StoreUnavailable
from keras_preempt.checkpoint.finding import CheckpointInfo, newest_first
from keras_preempt.checkpoint.layout import MANIFEST, attempt_directory, part_file
from keras_preempt.checkpoint.manifest import Manifest, Part, PartRef
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process import environment

DEFAULT = "/dev/shm"
"""Where Linux has a tmpfs for every process."""

KIND = "memory"
"""The `kind` of such a checkpoint."""

SPARED = 0.1
"""The share of the memory that is available which has to stay so."""

_OWNER = "launcher"
"""A file that names the launcher's own folder, which is gone when the launcher is."""

_WORKER = re.compile(r"w[0-9]{5,9}")
_AVAILABLE = re.compile(r"MemAvailable:\s+([0-9]+) kB")
_CONTAINER = Path("/sys/fs/cgroup")


class MachineMemory:
    """The folder of one worker of a run, below `place`; nothing is made before `claim`."""

    def __init__(self, place: str | os.PathLike[str], run_id: str, member: int) -> None:
        self.base = _base(place)
        self.run = self.base / hashlib.sha256(run_id.encode()).hexdigest()[:16]
        self._name = f"w{member:05d}"
        self._lock: int | None = None
        self.store = LocalStore(self.run / self._name)

    def claim(self) -> None:
        """Makes the folder, which is this process's until `close`. Raises `StoreUnavailable` if it cannot be."""
        if self._lock is not None:
            return
        try:
            _remove_left(self.base, but=self.run)
            for left in (2, 1, 0):
                try:
                    self._make()
                    break
                except FileNotFoundError:  # A job that ends removes what is empty, at this moment.
                    self.close()
                    if not left:
                        raise
        except OSError as error:
            self.close()
            raise StoreUnavailable(
                f"Expected to write to {self.run / self._name}. Received: {error.strerror or error}."
            ) from error
        if self._lock is None:
            raise StoreUnavailable(
                f"Expected {self.run / self._name} for this process. Received: another has it."
            )

    def _make(self) -> None:
        _make_private(self.base)
        _make_private(self.run)
        if status := os.environ.get(environment.STATUS_DIR):
            (self.run / _OWNER).write_text(os.path.dirname(status))
        # The lock first: a folder without one belongs to nobody.
        self._lock = _locked(self.run / f"{self._name}.lock", os.O_CREAT)
        _claimed.add(self)
        _make_private(self.run / self._name)

    def check_room(self, size: int) -> None:
        """Makes sure that there is room for `size` bytes. Raises `StoreUnavailable` if there is not."""
        held = sum(file.size for file in self.store.list(""))
        free = max(0, min(shutil.disk_usage(self.run).free, int(available() * (1 - SPARED)))) + held
        if free < size:
            raise StoreUnavailable(
                f"Expected {size / 1e6:,.1f} MB free in {self.base.parent}, for two checkpoints in memory. Received: "
                f"{free / 1e6:,.1f} MB. Free some, or pass another memory_dir."
            )

    def commit(self, attempt: Attempt, parts: Sequence[Part], now: float) -> None:
        """Makes parts of an attempt a checkpoint as far as this worker has it."""
        refs = []
        for part in sorted(parts, key=lambda part: part.member):
            data = part.to_json()
            refs.append(PartRef(part.member, part_file(part.member), len(data), google_crc32c.value(data)))
        held = tuple(ref.member for ref in refs)
        manifest = Manifest(
            format=documents.FORMAT,
            step=attempt.step,
            position=dict(attempt.position),
            incarnation=attempt.incarnation,
            attempt=attempt.name,
            kind=KIND,
            finished=False,
            reason="kept in memory",
            members=attempt.members,
            writers=held,
            parts=tuple(refs),
            missing=tuple(member for member in range(attempt.members) if member not in held),
            created_at=now,
            versions=dict(attempt.versions),
        )
        self.store.create(f"{attempt.directory}/{MANIFEST}", manifest.to_json())

    def keep_only(self, directory: str) -> None:
        """Removes every other checkpoint from this worker's folder, and what processes that are gone left beside it."""
        for step in self.store.children(""):
            for attempt in self.store.children(step):
                if f"{step}/{attempt}" != directory:
                    self.discard(f"{step}/{attempt}")
        for folder in self._folders():
            if folder.name != self._name:
                _remove_unused(folder)

    def discard(self, directory: str) -> None:
        with contextlib.suppress(NotFound):
            self.store.delete(f"{directory}/{MANIFEST}")
        self.store.delete_tree(directory)

    def holdings(self) -> Iterator[CheckpointInfo]:
        """Finds what this machine holds of checkpoints of the run, also in the folders of other workers."""
        for folder in self._folders():
            yield from newest_first(LocalStore(folder))

    def adopt(self, directory: str, members: Collection[int]) -> None:
        """Makes sure that the files of some parts of a checkpoint are in this worker's folder, too; copies nothing."""
        for member in members:
            for folder in self._folders():
                if folder.name == self._name or not (folder / directory / part_file(member)).is_file():
                    continue
                (self.run / self._name / directory).mkdir(0o700, parents=True, exist_ok=True)
                for file in (folder / directory).glob(f"{part_file(member).partition('.')[0]}.*"):
                    with contextlib.suppress(FileExistsError):
                        os.link(file, self.run / self._name / directory / file.name, follow_symlinks=False)

    def copy_part(self, store: Store, directory: str, target: str, member: int) -> None:
        """Copies the files of a part that is in this worker's folder to a store; its list comes last."""
        own = f"{part_file(member).partition('.')[0]}."
        names = [name for name in self.store.children(directory) if name.startswith(own)]
        for name in sorted(names, key=lambda name: name == part_file(member)):
            with self.store.open(f"{directory}/{name}") as source, store.writer(f"{target}/{name}") as out:
                while piece := source.read(PIECE):
                    out.write(piece)

    def put(self, directory: str, file: str, data: bytes) -> None:
        """Keeps a file that another worker has given, unless this machine has it."""
        with contextlib.suppress(AlreadyExists):
            self.store.create(f"{directory}/{file}", data)

    def remove(self) -> None:
        """Removes this worker's folder, and those that nobody uses any more."""
        shutil.rmtree(self.run / self._name, ignore_errors=True)
        self.close()
        for folder in self._folders():
            _remove_unused(folder)
        with contextlib.suppress(OSError):
            for lock in self.run.glob("*.lock"):
                _remove_unused(lock.with_suffix(""))
            if not self._folders():
                (self.run / _OWNER).unlink(missing_ok=True)
            self.run.rmdir()
            self.base.rmdir()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _folders(self) -> list[Path]:
        with contextlib.suppress(OSError), os.scandir(self.run) as entries:
            names = [e.path for e in entries if _WORKER.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
            return [Path(name) for name in sorted(names)]
        return []


_claimed: weakref.WeakSet[MachineMemory] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """Closes the locks that a forked child inherited, such as a process of the data, which may outlive us."""
    for memory in list(_claimed):
        memory.close()


os.register_at_fork(after_in_child=_let_go_in_child)


def put_together(held: Sequence[tuple[int, Manifest]]) -> tuple[Manifest, dict[int, int]] | None:
    """Puts together what workers hold of one checkpoint.

    Returns its manifest, and by which worker each part is given; None if nobody holds some part. A worker gives its own
    part if it holds that.
    """
    givers: dict[int, int] = {}
    refs: dict[int, PartRef] = {}
    for worker, manifest in held:
        for ref in manifest.parts:
            if ref.member not in givers or ref.member == worker:
                givers[ref.member], refs[ref.member] = worker, ref
    first = held[0][1]
    if len(refs) != first.members:
        return None
    whole = tuple(range(first.members))
    created = max(manifest.created_at for _, manifest in held)
    parts = tuple(refs[member] for member in whole)
    return replace(first, parts=parts, writers=whole, missing=(), created_at=created), givers


def directory_of(manifest: Manifest) -> str:
    return attempt_directory(manifest.step, manifest.attempt)


def available() -> int:
    """Returns how many bytes of memory are left, of the machine and of its container."""
    left = []
    with contextlib.suppress(OSError):
        if found := _AVAILABLE.search(Path("/proc/meminfo").read_text()):
            left.append(int(found[1]) << 10)
    with contextlib.suppress(
        OSError, ValueError
    ):  # No control groups of the second version, or no limit ("max").
        used = int((_CONTAINER / "memory.current").read_text())
        left.append(int((_CONTAINER / "memory.max").read_text()) - used)
    return min(left, default=0)


def holds_any(place: str | os.PathLike[str]) -> bool:
    """Whether this machine holds a checkpoint of this user below `place`, of any run."""
    with contextlib.suppress(OSError):
        return next(_base(place).glob(f"*/*/*/*/{MANIFEST}"), None) is not None
    return False


def remove_left_by(launcher: str | os.PathLike[str], place: str | os.PathLike[str] = DEFAULT) -> None:
    """Removes the runs of the launcher with this folder: its job has ended."""
    _remove_left(_base(place), launcher=os.fspath(launcher))


def lose(place: str | os.PathLike[str], run_id: str, member: int) -> None:
    """Removes what a worker's machine holds, as if it were lost."""
    memory = MachineMemory(place, run_id, member)
    shutil.rmtree(memory.store.path, ignore_errors=True)


def _base(place: str | os.PathLike[str]) -> Path:
    # For one user; what another one has put there under this name is refused.
    return Path(place) / f"keras_preempt-{os.getuid()}"


def _remove_left(base: Path, but: Path | None = None, launcher: str | None = None) -> None:
    """Removes the runs of jobs whose launcher is gone, or of `launcher`, and of which no process is left."""
    with contextlib.suppress(OSError):
        if not _is_private(base):
            return
        for run in [run for run in base.iterdir() if run != but and _is_private(run)]:
            with contextlib.suppress(OSError):  # Without the file no launcher of ours has started it.
                owner = (run / _OWNER).read_text()
                if owner != launcher if launcher else os.path.exists(owner):
                    continue
                for entry in list(run.iterdir()):
                    if _WORKER.fullmatch(entry.stem):
                        _remove_unused(entry.with_suffix(""))
                if [entry.name for entry in run.iterdir()] == [_OWNER]:
                    (run / _OWNER).unlink()
                    run.rmdir()
        base.rmdir()


def _make_private(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    if not _is_private(folder):
        raise PermissionError(
            0,
            f"{folder} is not a directory that this user alone can enter: remove it, or pass another memory_dir",
        )


def _is_private(folder: Path) -> bool:
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _locked(path: Path, create: int = 0) -> int | None:
    """Returns a descriptor that holds the lock on a file; None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | create | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_unused(folder: Path) -> None:
    """Removes a worker's folder and its lock if no process has it."""
    lock = folder.with_name(f"{folder.name}.lock")
    descriptor = None
    with contextlib.suppress(FileNotFoundError):
        descriptor = _locked(lock)
        if descriptor is None:
            return
    try:
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def memory_place(place: object) -> str | os.PathLike[str]:
    """Returns where to keep checkpoints in memory. Raises ValueError for what is no existing directory."""
    if not isinstance(place, (str, os.PathLike)) or not os.path.isabs(place):
        raise ValueError(
            f"Expected memory_dir, or KERAS_PREEMPT_MEMORY_DIR, as an absolute path such as {DEFAULT!r}, on a tmpfs of "
            f"each machine. Received: {place!r}."
        )
    return place
