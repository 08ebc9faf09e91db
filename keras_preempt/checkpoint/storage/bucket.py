"""A store in a bucket, whatever the service: files are objects, each created once and whole.

The service makes an object visible when all of it is there, and only if there was none before: what a local store
does with links and flushes, the service does itself. A streamed file is staged on local disk first, because its sum
must be known before it is sent, and because a failed upload has to begin again.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from io import BytesIO
from typing import IO, BinaryIO, cast

from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    NotFound,
    StoreUnavailable,
    TooLarge,
    WriteUncertain,
)
from keras_preempt.checkpoint.storage.budget import METADATA_SECONDS, SLOWEST_TRANSFER, Budget
from keras_preempt.checkpoint.storage.fetched_ahead import Fetched, FetchedAhead
from keras_preempt.checkpoint.storage.objects import BucketObjects, ObjectContent, ObjectInfo
from keras_preempt.checkpoint.storage.overlap import Overlap, Overlaps
from keras_preempt.checkpoint.storage.segmented_log import SegmentedLog
from keras_preempt.checkpoint.storage.staging import StagedWriter, StagingDirectory
from keras_preempt.checkpoint.storage.store import (
    FileInfo,
    FileInfos,
    LineSink,
    Moved,
    Names,
    Store,
    Writer,
    check_name,
    uncounted,
    why_unsafe,
)
from keras_preempt.checkpoint.storage.transfers import file_size, get, get_bytes
from keras_preempt.process.threads import Pool

CONNECTIONS = 8
"""Transfers at a time. One stream to a bucket is slower than most networks; more than these few gain little."""

_PROOF_SECONDS = 30.0  # less than other calls may take: a person waits for this one
_PROBE = b"probe"
_MOST_SEEN = 4096  # objects; older ones are forgotten
_ALONE = 1 << 20  # bytes; a smaller file is fetched by the thread that asks for it
_IN_MEMORY = 4 << 20  # bytes; a smaller file is read without a detour over the disk


class BucketStore(Store):
    """Files below a prefix of a bucket, or in a whole bucket.

    `staging_dir` is on local disk; None for the system's temporary directory. There are at most `connections`
    transfers at a time.
    """

    def __init__(
        self,
        bucket: BucketObjects,
        *,
        staging_dir: str | os.PathLike[str] | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        if connections < 1:
            raise ValueError(f"Expected at least 1 connection. Received: {connections}. Allow one or more.")
        self._bucket, self._place = bucket, bucket.place
        self.url, self.key = self._place.url, self._place.key
        self._deadline: float | None = None
        self.connections = connections
        self._staging_dir = staging_dir
        self._lock = threading.Lock()
        self._staging: StagingDirectory | None = None
        self._pool: Pool | None = None
        self._logs: list[SegmentedLog] = []
        # What each file was when it was last looked at, so that the same content is opened next.
        self._seen: OrderedDict[str, ObjectInfo] = OrderedDict()
        self._overlaps = Overlaps[Overlap]()
        self._ahead = FetchedAhead()

    @property
    def deadline(self) -> float | None:
        return self._deadline

    @deadline.setter
    def deadline(self, deadline: float | None) -> None:
        self._deadline = deadline
        self._bucket.keep_to(deadline)  # Calls under way keep it too.

    def file_size(self, total: int) -> int:
        return file_size(total, self.connections)

    def prepare(self) -> None:
        self._stage()
        with contextlib.closing(self.check_access()) as tried:
            for _, error in tried:
                if error is not None:
                    raise error

    def check_access(self) -> Generator[tuple[str, StoreUnavailable | None], None, None]:
        """Tries "create", "read", "list" and "delete" on a hidden object; without "create" only "list" follows.

        "overwrite" says of a service that may not keep conditions whether it refuses to create what exists.
        """
        bucket, place = self._bucket, self._place
        budget = Budget(_PROOF_SECONDS, lambda: self.deadline)
        # One that could not be deleted is used again: otherwise each start would leave one.
        left: list[ObjectInfo] = []
        probe = place.object_of(f"probe/{secrets.token_hex(8)}", temporary=True)
        of_others = probe[: probe.rindex("/") + 1]
        not_listed = _failure(lambda: left.extend(bucket.list(of_others, budget)))
        probe = left[0].name if left else probe
        info: ObjectInfo | None = None
        failed: StoreUnavailable | None = None
        try:
            info = bucket.put(probe, ObjectContent.of(_PROBE), budget, uncounted)
        except AlreadyExists as error:
            # A missing permission to create is reported before this.
            info = left[0] if left else None
            if info is None:
                failed = self._unconditional("a new random name is taken")
                failed.__cause__ = error
        except StoreUnavailable as error:
            failed = error
        deleted = False
        try:
            yield "create", failed
            if info is not None:
                if not bucket.keeps_conditions:
                    yield "overwrite", _failure(lambda: self._check_overwriting(probe, budget))
                yield "read", _failure(lambda: self._read_back(probe, budget))
            yield "list", not_listed
            if (created := info) is not None:
                deleted = True
                yield "delete", _failure(lambda: bucket.delete(created, budget))
        finally:
            if info is not None and not deleted:
                with contextlib.suppress(StoreUnavailable):
                    bucket.delete(info, budget)

    def _check_overwriting(self, probe: str, budget: Budget) -> None:
        """Raises an error if the service creates an object that exists, as old ones do that ignore conditions."""
        try:
            self._bucket.put(probe, ObjectContent.of(_PROBE[::-1]), budget, uncounted)
        except (AlreadyExists, WriteUncertain):
            return  # If the answer is uncertain, the object cannot be read: that is tried next, and says why.
        raise self._unconditional(
            "it has overwritten an object that was to be created only if there was none"
        )

    def _read_back(self, probe: str, budget: Budget) -> None:
        info = self._bucket.stat(probe, budget)
        if info.crc32c is None and not self._bucket.keeps_conditions:
            raise StoreUnavailable(
                f"Expected a server that keeps the metadata of objects at {self._bucket.endpoint}. Received, in "
                f"{self.url}: an object without it. Use {self._bucket.service}."
            )
        get_bytes(self._bucket, info, budget)

    def _unconditional(self, received: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"Expected a server that enforces preconditions at {self._bucket.endpoint}. Received, in {self.url}: "
            f"{received}. Two workers could overwrite each other's files there. Use {self._bucket.service}."
        )

    def check_space(self, size: int) -> None:
        self._stage().needs(size)

    def read(self, name: str, *, limit: int) -> bytes:
        info = self._bucket.stat(self._place.object_of(name), self._budget())
        if info.size > limit:
            raise TooLarge(name, info.size, limit)
        return self._fetch(info)

    def create(self, name: str, data: bytes) -> FileInfo:
        target = self._place.object_of(name)
        self._bucket.put(target, ObjectContent.of(data), self._budget(len(data)), uncounted)
        return FileInfo(name, len(data))

    @contextlib.contextmanager
    def writer(self, name: str, moved: Moved = uncounted) -> Iterator[Writer]:
        target = self._place.object_of(name)
        overlap = self._overlaps.current
        if overlap is not None:
            overlap.wait_for_room()
        file = self._stage().file()
        try:
            writer = StagedWriter(file, name)
            yield writer
        except BaseException:
            file.close()
            raise

        def send() -> None:
            with file:
                content = ObjectContent(file, writer.size, writer.crc32c)
                self._bucket.put(target, content, self._budget(writer.size), moved)

        if overlap is None:
            send()
        else:
            overlap.under_way[self._threads().submit(send)] = file.close

    def overlapped(self) -> AbstractContextManager[None]:
        return self._overlaps.block(Overlap(self.connections))

    def open(self, name: str, moved: Moved = uncounted) -> BinaryIO:
        """Fetches the whole file and checks its sum; a file that `stat` has just seen is read as it was then."""
        target = self._place.object_of(name)
        fetched = self._ahead.take(name)
        with self._lock:
            seen = self._seen.pop(name, None)
        try:
            info = seen or self._bucket.stat(target, self._budget())
            if fetched is not None and fetched[0].version == info.version:
                file, fetched = fetched[1], None
                moved(info.size)
                file.seek(0)
                return cast(BinaryIO, file)
        finally:
            if fetched is not None:
                fetched[1].close()
        if info.size <= _IN_MEMORY:
            data = self._fetch(info)
            moved(len(data))
            return BytesIO(data)
        file = self._get(info, moved)
        file.seek(0)
        return cast(BinaryIO, file)

    def read_ahead(self, name: str) -> None:
        target = self._place.object_of(name)

        def fetch() -> Fetched | None:
            info = self._bucket.stat(target, self._budget())
            return None if info.size <= _ALONE else (info, self._get(info, uncounted))

        self._ahead.fetch(name, fetch)

    def end_read_ahead(self) -> None:
        self._ahead.end()

    def _get(self, info: ObjectInfo, moved: Moved) -> IO[bytes]:
        """Fetches a large object into a staged file."""
        file = self._stage().file()
        try:
            get(self._bucket, info, file, self._threads(), self.connections, self._budget(info.size), moved)
        except BaseException:
            file.close()
            raise
        return file

    def _fetch(self, info: ObjectInfo) -> bytes:
        """Reads a small object, within the number of connections unless it is a very small one."""
        budget = self._budget(info.size)
        if info.size <= _ALONE:
            return get_bytes(self._bucket, info, budget)
        return self._threads().submit(get_bytes, self._bucket, info, budget).result()

    def stat(self, name: str) -> FileInfo:
        info = self._bucket.stat(self._place.object_of(name), self._budget())
        with self._lock:
            self._seen[name] = info
            self._seen.move_to_end(name)
            while len(self._seen) > _MOST_SEEN:
                self._seen.popitem(last=False)
        return FileInfo(name, info.size)

    def list(self, prefix: str) -> FileInfos:
        objects = self._bucket.list(self._place.folder_of(prefix), self._budget())
        found = [FileInfo(self._place.file_of(info.name), info.size) for info in objects]
        # Without objects that no store has written.
        return sorted((info for info in found if not why_unsafe(info.name)), key=lambda info: info.name)

    def children(self, prefix: str) -> Names:
        found = self._bucket.folders(self._place.folder_of(prefix), self._budget())
        return sorted({name for each in found if not why_unsafe(name := each.rstrip("/"))})

    def delete(self, name: str) -> None:
        # Only the object that is there now is removed, not one that replaces it.
        info = self._bucket.stat(self._place.object_of(name), self._budget())
        self._bucket.delete(info, self._budget())

    def delete_tree(self, prefix: str) -> None:
        check_name(prefix)
        found = self._bucket.list(self._place.folder_of(prefix), self._budget())
        with contextlib.suppress(NotFound):
            found.append(self._bucket.stat(self._place.object_of(prefix), self._budget()))
        # The time of each begins when it does: there may be more than can be removed at once.
        futures = [
            self._threads().submit(lambda info: self._bucket.delete(info, self._budget()), info)
            for info in found
        ]
        concurrent.futures.wait(futures)
        for future in futures:
            future.result()

    def append_log(self, name: str) -> LineSink:
        self._place.object_of(name)
        log = SegmentedLog(self, name)
        with self._lock:
            self._logs.append(log)
        return log

    def close(self) -> None:
        self._ahead.end()
        with self._lock:
            logs, self._logs = self._logs, []
            pool, self._pool = self._pool, None
            staging, self._staging = self._staging, None
        with contextlib.ExitStack() as stack:
            stack.callback(self._bucket.close)
            if staging is not None:
                stack.callback(staging.remove)
            if pool is not None:
                stack.callback(pool.shutdown, cancel_futures=True)
            for log in logs:
                stack.callback(log.close)

    def _budget(self, size: int = 0) -> Budget:
        return Budget(METADATA_SECONDS + size / SLOWEST_TRANSFER, lambda: self.deadline)

    def _stage(self) -> StagingDirectory:
        with self._lock:
            if self._staging is None:
                self._staging = StagingDirectory(self._staging_dir)
            return self._staging

    def _threads(self) -> Pool:
        with self._lock:
            if self._pool is None:
                self._pool = Pool(self.connections, "keras_preempt-bucket")
            return self._pool


def _failure(operation: Callable[[], object]) -> StoreUnavailable | None:
    try:
        operation()
    except StoreUnavailable as error:
        return error
    except NotFound:  # Another process, which had used the same object, has removed it.
        pass
    return None
