"""A worker's view of a store: every operation waits for its turn, and something may befall it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from keras_preempt.checkpoint.errors import CheckpointError, NotFound, StoreUnavailable
from keras_preempt.checkpoint.storage.store import (
    FileInfo,
    FileInfos,
    LineSink,
    Moved,
    Names,
    Store,
    uncounted,
)
from tests.checkpoint.campaign_checker import Checker
from tests.checkpoint.campaign_scheduler import Killed, Scheduler, Worker
from tests.checkpoint.campaign_store import Buffered, MemoryStore

_Result = TypeVar("_Result")

CHANGING = ("create", "writer", "delete")


class SteppedStore(Store):
    """What one worker sees of a store.

    What befalls an operation, by `Worker.faults`: "crash-before" and "crash-after" end the worker there; "failed" is
    an error, "lost" one after the operation has taken effect, "late" one before it takes effect, some time after the
    worker was told of the error. A number is a pause before it, of as many operations by others; "held-up" is one
    until somebody has begun to remove files of the same folder, and a little longer; "held-up, dies" ends the worker
    right after that operation.
    """

    def __init__(
        self,
        inner: Store,
        scheduler: Scheduler,
        worker: Worker,
        checker: Checker,
        happened: Counter[tuple[str, str, str]],
    ) -> None:
        self.deadline: float | None = None
        self._inner, self._scheduler, self._worker = inner, scheduler, worker
        self._checker, self._happened = checker, happened
        self._deferred: list[tuple[str, bytes]] | None = None

    url = property(lambda self: self._inner.url)
    key = property(lambda self: self._inner.key)
    poll_interval = property(lambda self: self._inner.poll_interval)
    shared_by_network = property(lambda self: self._inner.shared_by_network)

    def _step(self, operation: str, name: str, effect: Callable[[], _Result]) -> _Result:
        worker, scheduler = self._worker, self._scheduler
        scheduler.turn(worker)
        fault = worker.faults(worker.operations, f"{operation} {sort_of(name)}")
        if isinstance(fault, int) or fault in ("held-up", "held-up, dies"):
            self._happened[operation, sort_of(name), "pause"] += 1
            scheduler.pause(worker, fault if isinstance(fault, int) else name.rpartition("/")[0])
            scheduler.turn(worker)
            fault = "crash-after" if fault == "held-up, dies" else None
        if fault == "late" and operation not in CHANGING:
            fault = "failed"
        worker.operations += 1
        if fault is not None:
            self._happened[operation, sort_of(name), fault] += 1
        if fault == "crash-before":
            worker.killed = True
            raise Killed
        if fault == "failed":
            raise self._unavailable(operation, name)
        if fault == "late":
            scheduler.later(scheduler.random.randrange(1, 150), lambda: self._late(operation, name, effect))
            raise self._unavailable(operation, name)
        try:
            return self._observed(operation, name, effect)
        finally:
            if fault == "crash-after":
                worker.killed = True
                raise Killed
            if fault == "lost":
                raise self._unavailable(operation, name)

    def _observed(self, operation: str, name: str, effect: Callable[[], _Result]) -> _Result:
        if operation == "delete":
            self._scheduler.release(name.rpartition("/")[0])
        self._checker.before(self._worker, operation, name)
        try:
            return effect()
        finally:
            self._checker.after(self._worker, operation, name)
            self._worker.last = (operation, name)

    def _late(self, operation: str, name: str, effect: Callable[[], object]) -> None:
        last, self._worker.late = self._worker.last, True
        with contextlib.suppress(CheckpointError):
            self._observed(operation, name, effect)
        self._worker.last, self._worker.late = last, False

    def _unavailable(self, operation: str, name: str) -> StoreUnavailable:
        return StoreUnavailable(f"Expected to {operation} {name}. Received: an ordered fault. Try again.")

    def prepare(self) -> None:
        """Not part of the campaign."""

    def check_space(self, size: int) -> None:
        """Not part of the campaign."""

    def file_size(self, total: int) -> int:
        """So small that a worker has several files, and tensors are cut."""
        return 80

    def read(self, name: str, *, limit: int) -> bytes:
        return self._step("read", name, lambda: self._inner.read(name, limit=limit))

    def create(self, name: str, data: bytes) -> FileInfo:
        return self._step("create", name, lambda: self._inner.create(name, data))

    @contextlib.contextmanager
    def writer(self, name: str, moved: Moved = uncounted) -> Iterator[Buffered]:
        buffered = Buffered()
        yield buffered
        if self._deferred is None:
            self._write(name, bytes(buffered.data))
        else:
            self._deferred.append((name, bytes(buffered.data)))

    def _write(self, name: str, data: bytes) -> None:
        def effect() -> None:
            with self._inner.writer(name) as out:
                out.write(data)

        self._step("writer", name, effect)

    @contextlib.contextmanager
    def overlapped(self) -> Iterator[None]:
        """What is written in it becomes visible at its end, in any order."""
        outer, self._deferred = self._deferred, []
        try:
            yield
            files = self._deferred
        finally:
            self._deferred = outer
        self._scheduler.random.shuffle(files)
        for name, data in files:
            self._write(name, data)

    def open(self, name: str, moved: Moved = uncounted) -> BinaryIO:
        return self._step("open", name, lambda: self._inner.open(name))

    def stat(self, name: str) -> FileInfo:
        return self._step("stat", name, lambda: self._inner.stat(name))

    def list(self, prefix: str) -> FileInfos:
        return self._step("list", prefix, lambda: self._inner.list(prefix))

    def children(self, prefix: str) -> Names:
        return self._step("children", prefix, lambda: self._inner.children(prefix))

    def delete(self, name: str) -> None:
        self._step("delete", name, lambda: self._inner.delete(name))

    def delete_tree(self, prefix: str) -> None:
        """No store removes a tree at once: it lists, and then removes what it has seen, as it was then."""
        names = [info.name for info in self.list(prefix)]
        seen = {name: self._content(name) for name in names}
        self._scheduler.random.shuffle(names)
        for name in names:
            with contextlib.suppress(NotFound):
                self._step("delete", name, lambda name=name: self._delete_seen(name, seen[name]))  # type: ignore[misc]

    def _content(self, name: str) -> bytes | None:
        return self._inner.files.get(name) if isinstance(self._inner, MemoryStore) else None

    def _delete_seen(self, name: str, content: bytes | None) -> None:
        if content is None or self._content(name) is content:  # the generation
            self._inner.delete(name)

    def append_log(self, name: str) -> LineSink:
        return self._inner.append_log(name)

    def close(self) -> None:
        """The campaign closes the store itself."""


def sort_of(name: str) -> str:
    """Returns what sort of file a name stands for."""
    last = name.split("/")[-1]
    for sort in ("MANIFEST.json", "part.json", "local.safetensors"):
        if last.endswith(sort):
            return sort
    if last.endswith(".safetensors"):
        return "mirrored.safetensors"
    return name.split("/")[0].split("-")[0] if name else "top"
