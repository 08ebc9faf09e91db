"""Fits whose storage fails in mid-run, and is well again, and fails again when the preemption comes.

Run as: failing_storage.py FOLDER KIND... For each kind a fit of 16 steps in FOLDER/KIND/run, saved every 2 steps:

| before step | |
|---|---|
| 6 | the storage fails; the saves at steps 6 and 8 find that out |
| 9, when both have failed | it is well again; the saves at steps 10 and 12 succeed |
| 14 | it fails; then SIGTERM comes |

The storage fails or is well again only when the saves before are over, one way or the other. Prints where it is, and
what came of each fit; the last fit ends the process.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from keras_preempt import TerminationConfig
from tests.cluster.small_fit import STEPS, await_, fit
from tests.fits import Doing

PATIENCE = 60.0  # seconds
STRUCK_STEP = 0.5
"""Seconds that the step lasts in which the signal comes, so that a busy machine, too, gets to answer it meanwhile."""
EPOCHS = 4


@contextlib.contextmanager
def full(directory: Path) -> Iterator[None]:
    """The file system is full. FOLDER/KIND is one of its own, and a small one."""
    filler = directory.parent / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    yield
    filler.unlink()


@contextlib.contextmanager
def file_size(directory: Path) -> Iterator[None]:
    """No file may grow: what a quota does, and nobody needs to be root for it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextlib.contextmanager
def permission(directory: Path) -> Iterator[None]:
    """Nobody may write to the directory any more."""

    def allow(mode: int) -> None:
        for folder in [directory, *directory.rglob("*")]:
            if folder.is_dir():
                folder.chmod(mode)

    allow(0o555)
    yield
    allow(0o755)


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """The file system can only be read, as after an error of the disk."""
    subprocess.run(["mount", "--bind", directory, directory], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", directory], check=True)
    yield
    subprocess.run(["umount", "--lazy", directory], check=True)


@contextlib.contextmanager
def removed(directory: Path) -> Iterator[None]:
    """The directory is gone."""
    directory.rename(directory.with_name("gone"))
    yield
    if directory.exists():
        shutil.rmtree(directory)
    directory.with_name("gone").rename(directory)


@contextlib.contextmanager
def emptied(directory: Path) -> Iterator[None]:
    """Another directory is in its place, as where a network's file system was unmounted."""
    with removed(directory):
        directory.mkdir()
        yield


KINDS: dict[str, Callable[[Path], contextlib.AbstractContextManager[None]]] = {
    "full": full,
    "file size": file_size,
    "permission": permission,
    "read-only": read_only,
    "removed": removed,
    "emptied": emptied,
}


def await_saves(over: Callable[[], bool]) -> None:
    await_(over, PATIENCE, "the saves before are not over")


class Failures(logging.Filter):
    """Counts the saves that were said to have failed. No handler, beside which the package would be silent."""

    count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.count += "was NOT saved" in record.getMessage()
        return True


class Fails(Doing):
    """Lets the storage of a directory fail and be well at the steps in the table above."""

    def __init__(self, kind: str, directory: Path) -> None:
        super().__init__()
        self._kind = kind
        self._directory = directory
        self.failing = contextlib.ExitStack()
        self._steps = 0
        self._said = Failures()
        logging.getLogger("keras_preempt").addFilter(self._said)

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if self._steps == 5:
            # A committer looks at the parts once more after the manifest, and tells the commit then.
            await_saves(lambda: self._committed() == [2, 4] and self._told() == 2)
            self._fail()
        elif self._steps == 8:
            await_saves(lambda: self._said.count == 2)
            self.failing.close()
        elif self._steps == 13:
            # Of an older checkpoint the manifest goes first: the room of its other files must not come back later.
            await_saves(lambda: self._committed() == [10, 12] and not self._left_of(2, 4))
            self._fail()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(STRUCK_STEP)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self._steps += 1
        print(f"RAN {self._steps}", flush=True)

    def _fail(self) -> None:
        self.failing.enter_context(KINDS[self._kind](self._directory))

    def _committed(self) -> list[int]:
        """Steps of the checkpoints, of which the older ones go when the newer ones are there."""
        return sorted(int(Path(name).parts[-3][5:]) for name in self._found("step-*/*/MANIFEST.json"))

    def _left_of(self, *steps: int) -> list[str]:
        return [name for step in steps for name in self._found(f"step-{step:08d}/*/*")]

    def _found(self, pattern: str) -> list[str]:
        # `Path.glob` fails if a folder goes in which it looks.
        return glob.glob(f"{self._directory}/{pattern}")

    def _told(self) -> int:
        logs = self._directory.glob("events/*.jsonl")
        return sum(path.read_text().count('"event":"commit"') for path in logs)


def main() -> None:
    folder, kinds = Path(sys.argv[1]), sys.argv[2:]
    for kind in kinds:
        directory = folder / kind / "run"
        fails = Fails(kind, directory)
        print(f"BEGINS {kind}", flush=True)
        try:
            fit(directory, epochs=EPOCHS, more=[fails], save_every=2, termination=TerminationConfig())
            print(f"ENDS {kind}: not preempted", flush=True)
        except SystemExit as left:
            fails.failing.close()
            print(f"ENDS {kind}: {left.code}", flush=True)
            if kind == kinds[-1]:
                raise


if __name__ == "__main__":
    assert STEPS == 4
    main()
