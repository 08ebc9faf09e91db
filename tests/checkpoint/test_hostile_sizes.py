"""Sizes that a hostile directory claims or has: no memory is taken for them, and no time."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.assembly import memory_limit
from keras_preempt.checkpoint.errors import CheckpointError, NotEnoughMemory
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import MANIFEST, part_file, tensor_file
from keras_preempt.checkpoint.reader import Reading, load, verify
from tests.checkpoint.fuzz_targets import MEMBERS, Targets, edit_part, list_file, list_part, seal_text
from tests.checkpoint.hostile_start import assert_passed_over, start


@pytest.fixture
def little_memory() -> Iterator[None]:
    """At most 400 MiB of addresses more than this process has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + (400 << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_a_hole_of_a_listed_terabyte_is_refused_before_memory_beyond_the_limit_of_the_process_is_taken(
    targets: Targets, little_memory: None
) -> None:
    """Nothing about it is wrong but its size: the file is there, and as large as listed."""
    assert 300 << 20 < memory_limit() <= 400 << 20
    huge = 1 << 40
    header = json.dumps({"a": {"dtype": "U8", "shape": [huge], "data_offsets": [0, huge]}}).encode()
    path = targets.folder / tensor_file(0, "local")
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    list_file(targets.folder, path.name)
    size = 8 + len(header) + huge
    os.truncate(path, size)

    def list_it(part: dict[str, Any]) -> None:
        next(entry for entry in part["files"] if entry["name"] == path.name)["size"] = size

    edit_part(targets.folder, part_file(0), list_it)
    info = committed(targets.store)[0]
    with pytest.raises(NotEnoughMemory, match=rf"{targets.new.directory}.*can have"):
        load(targets.store, info, 0, MEMBERS)
    with pytest.raises(NotEnoughMemory):
        Reading(targets.store, info).load_all()
    assert "Expected memory for" in assert_passed_over(targets)


@pytest.mark.parametrize("name", [MANIFEST, part_file(0), tensor_file(0, "local")])
def test_a_document_or_header_that_would_grow_in_memory_is_refused_first(
    name: str, targets: Targets, little_memory: None
) -> None:
    brackets = b"[" + b"[]," * (20 << 20) + b"[]]"  # becomes 3 GB of lists
    path = targets.folder / name
    if name == tensor_file(0, "local"):
        header = b'{"__metadata__":' + brackets + b"}"
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        list_file(targets.folder, name)
    else:
        path.write_bytes(seal_text(path.read_text()[:-2] + f',"x":{brackets.decode()}}}'))
    if name == part_file(0):
        list_part(targets.folder, name)
    assert "values" in assert_passed_over(targets)


def test_a_hole_of_a_terabyte_in_the_place_of_any_file_is_refused_by_its_size(targets: Targets) -> None:
    for path in sorted(targets.folder.iterdir()):
        data = path.read_bytes()
        os.truncate(path, 1 << 40)
        with pytest.raises(CheckpointError, match=str(1 << 40)):
            verify(targets.store, committed(targets.store)[0])
        path.write_bytes(data)
    verify(targets.store, committed(targets.store)[0])


def _seconds(targets: Targets) -> float:
    began = time.process_time()
    assert start(targets).name == targets.new.directory
    return time.process_time() - began


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.chaos)])
def test_a_directory_full_of_other_things_costs_a_start_no_more_than_in_proportion(
    count: int, targets: Targets
) -> None:
    path = targets.store.path
    for number in range(0, count, 4):
        (path / f"step-{number + 100:08d}").mkdir()
        (path / f"step-{number + 101:08d}" / "00001-0001").mkdir(parents=True)
        (path / f"note-{number + 2}").touch()
        (path / "incarnations" / f"{number + 3:05d}.json").touch()
    few = _seconds(targets)
    for number in range(count, 4 * count):
        (path / f"step-{number + 100:08d}").mkdir(exist_ok=True)
    assert _seconds(targets) < 16 * few
