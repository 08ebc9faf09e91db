from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.transfers import LARGEST_FILE, file_size, ranges_of
from keras_preempt.checkpoint.values import check_cover
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from keras_preempt.testing import FakeGcs
from tests.checkpoint.builders import shares_of
from tests.checkpoint.storage.buckets import new_store


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


@pytest.mark.parametrize("size", [1, 4 << 20, (40 << 20) + 12345, 64 << 20, 256 << 20])
@pytest.mark.parametrize("connections", [1, 4, 8])
def test_ranges_cover_every_byte_once(size: int, connections: int) -> None:
    found = list(ranges_of(size, connections))
    assert found[0][0] == 0
    assert found[-1][1] == size
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(found))
    assert all(0 < stop - start <= 16 << 20 for start, stop in found)


@pytest.mark.parametrize("sizes", [(4 << 20,), (900_000, 700_000, 5, 1_500_000, 0, 1_000_000)])
def test_a_part_becomes_as_many_files_for_each_connection_and_all_equally_large(
    gcs: FakeGcs, tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    """Else the connections would end one after the other. One large tensor is cut, too."""
    share = shares_of({f"v{n}": np.zeros(size, np.float32) for n, size in enumerate(sizes)})[0]
    store = new_store(gcs, tmp_path, connections=4)
    part = write_part(store, "step-00000001/00001-0001", 0, WorkerShare(share, {}, {}, {}))
    check_cover(placed.box for placed in part.boxes)
    files = sorted(entry.size for entry in part.files)
    assert len(files) in (4, 8)
    assert files[0] > 0.99 * files[-1]
    assert len(gcs.objects("bucket")) == len(files) + 1  # and the list of them
    store.close()


def test_no_connection_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 1 connection\. Received: 0"):
        GcsStore("gs://bucket/run", connections=0)
