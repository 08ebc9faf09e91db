from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from keras_preempt.checkpoint.partition import Slice, check_tiling
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.gcs_transfer import LARGEST_FILE, file_size, ranges_of
from keras_preempt.checkpoint.writer import write_part
from keras_preempt.testing import FakeGcs


@pytest.mark.parametrize("connections", [1, 4, 8])
@pytest.mark.parametrize("total", [0, 1, 3 << 20, 20 << 20, 100_000_000, 256 << 20, 10**10, 10**12])
def test_files_keep_all_connections_busy_and_are_neither_tiny_nor_huge(total: int, connections: int) -> None:
    size = file_size(total, connections)
    files = -(-total // size)
    assert 1 <= size <= LARGEST_FILE
    if total >= connections * (2 << 20):
        assert files >= connections
        assert size >= 2 << 20
    if connections < files and size < LARGEST_FILE:
        assert files % connections == 0, "the last ones would have the network to themselves"


def test_a_quarter_of_a_gigabyte_of_one_worker_goes_over_many_connections() -> None:
    assert (256 << 20) / file_size(256 << 20, 8) >= 8


@pytest.mark.parametrize("size", [1, 4 << 20, (40 << 20) + 12345, 64 << 20, 256 << 20])
@pytest.mark.parametrize("connections", [1, 4, 8])
def test_ranges_cover_every_byte_once(size: int, connections: int) -> None:
    found = list(ranges_of(size, connections))
    assert found[0][0] == 0
    assert found[-1][1] == size
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(found))
    assert all(0 < stop - start <= 16 << 20 for start, stop in found)


def test_a_part_becomes_as_many_files_as_there_are_connections(tmp_path: Path) -> None:
    """One large tensor too: it is cut."""
    array = np.random.default_rng(1).random((1 << 20, 4), dtype=np.float32)  # 16 MiB
    slice_ = Slice("kernel", "float32", array.shape, 0, array.size)
    with FakeGcs() as gcs:
        store = GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs.client, connections=4)
        part = write_part(store, "step-00000001/00001-0001", 0, [(slice_, array)], {}, {}, {})
        assert len(part.files) == 4
        assert max(entry.size for entry in part.files) < 1.01 * array.nbytes / 4
        assert len(gcs.objects("bucket")) == 5  # and the list of them
        store.close()


def test_the_files_of_a_part_are_equally_large_whatever_the_tensors_are(tmp_path: Path) -> None:
    """Else the connections would end one after the other."""
    arrays = [np.zeros(size, np.float32) for size in (900_000, 700_000, 5, 1_500_000, 0, 1_000_000)]
    mirrored = [
        (Slice(f"v{number}", "float32", array.shape, 0, array.size), array)
        for number, array in enumerate(arrays)
    ]
    with FakeGcs() as gcs:
        store = GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs.client, connections=4)
        part = write_part(store, "step-00000001/00001-0001", 0, mirrored, {}, {}, {})
        check_tiling(placed.slice for placed in part.mirrored)
        sizes = sorted(entry.size for entry in part.files)
        assert len(sizes) == 4
        assert sizes[0] > 0.99 * sizes[-1]
        store.close()


def test_no_connection_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 1 connection\. Received: 0"):
        GcsStore("gs://bucket/run", connections=0)
