from __future__ import annotations

import errno
import fcntl
import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.local_writing import BLOCK, BLOCKS, Blocks, BlockWriter
from tests.checkpoint.builders import snapshot

SIZES = (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 4097)
DIRECT = getattr(os, "O_DIRECT", 0)


def content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def write_all(store: LocalStore) -> None:
    with store.overlapped():
        for size in SIZES:
            data = memoryview(content(size))
            with store.writer(f"folder/{size}") as writer:
                for start in range(0, size, 1_000_003):  # never a whole block
                    writer.write(data[start : start + 1_000_003])


def can_be_direct(store: LocalStore) -> bool:
    probe = os.open(store.path / "probe", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.fcntl(probe, fcntl.F_SETFL, DIRECT)
    except OSError:
        return False
    finally:
        os.close(probe)
        os.unlink(store.path / "probe")
    return bool(DIRECT)


def refuse_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot do without the cache."""
    real = fcntl.fcntl

    def fcntl_(descriptor: int, command: int, flags: int = 0) -> int:
        if flags & DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT here")
        return real(descriptor, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", fcntl_)


def refuse_writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """It wants more than whole blocks."""
    real, refused = os.pwrite, []

    def pwrite(descriptor: int, data: Any, start: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT:
            refused.append(start)
            raise OSError(errno.EINVAL, "not so")
        return real(descriptor, data, start)

    monkeypatch.setattr(os, "pwrite", pwrite)
    return refused


def write_less(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite

    def pwrite(descriptor: int, data: Any, start: int) -> int:
        return real(descriptor, data[: max(len(data) // 2, min(len(data), 4096))], start)

    monkeypatch.setattr(os, "pwrite", pwrite)


@pytest.mark.parametrize("file_system", [lambda _: None, refuse_flag, refuse_writes, write_less])
def test_files_of_any_size_are_what_was_written(
    store: LocalStore,
    monkeypatch: pytest.MonkeyPatch,
    file_system: Callable[[pytest.MonkeyPatch], list[int] | None],
) -> None:
    refused = file_system(monkeypatch)
    write_all(store)
    assert snapshot(store.path) == {f"folder/{size}": content(size) for size in SIZES}
    assert refused is None or bool(refused) == can_be_direct(store)


@pytest.mark.parametrize("after", [0, 2, 5])
def test_a_disk_that_fills_up_is_an_error_that_names_the_file_and_leaves_nothing_half_written(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    full = itertools.repeat(OSError(errno.ENOSPC, "No space left on device"))
    outcomes = itertools.chain([mock.DEFAULT] * after, full)
    monkeypatch.setattr(os, "pwrite", mock.Mock(wraps=os.pwrite, side_effect=outcomes))
    with pytest.raises(StoreUnavailable, match=r"'folder/\d+'.*No space left"):
        write_all(store)
    assert snapshot(store.path).items() <= {f"folder/{size}": content(size) for size in SIZES}.items()


def test_no_more_is_written_once_writing_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", mock.Mock(side_effect=OSError(errno.EIO, "broken")))
    with open(tmp_path / "file", "wb", buffering=0) as file, ThreadPoolExecutor(1) as pool:
        writer = BlockWriter(file.fileno(), Blocks(pool))
        writer.write(bytes(BLOCK))
        pool.submit(int).result()  # It has failed before anybody looks.
        with pytest.raises(OSError, match="broken"):
            writer.write(bytes(BLOCK))


def test_a_file_that_is_given_up_leaves_its_blocks_to_the_others(tmp_path: Path) -> None:
    never_free = mock.Mock(submit=lambda *_, **__: Future())  # Threads that have other things to do.
    blocks = Blocks(never_free)
    with open(tmp_path / "file", "wb", buffering=0) as file:
        for _ in range(3):
            given_up = BlockWriter(file.fileno(), blocks)
            given_up.write(bytes((BLOCKS - 1) * BLOCK + 1))
            given_up.discard()
            assert blocks.free.qsize() == BLOCKS
    assert (tmp_path / "file").read_bytes() == b""


def test_large_files_do_not_displace_what_the_system_keeps_in_memory(store: LocalStore) -> None:
    with store.overlapped(), store.writer("a") as writer:
        writer.write(bytes(BLOCK))
        (descriptor,) = (
            int(name)
            for name in os.listdir("/proc/self/fd")
            if os.path.realpath(f"/proc/self/fd/{name}").startswith(f"{store.path}/.tmp-")
        )
        assert bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT) == can_be_direct(store)
