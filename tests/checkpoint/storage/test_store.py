from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.checkpoint.errors import UnsafeName
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store, check_name

HOSTILE = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../up",
    "a/../../up",
    "a/..",
    ".",
    "./a",
    "a/./b",
    "a//b",
    "a/",
    "a\\b",
    "..\\up",
    "a\0b",
    "\ud800",
    "x" * 256,
    "a/" * 600 + "a",
    ".tmp-1",
    "a/.tmp-2",
    ".tmp-folder/a",
    None,
    7,
    b"a",
]


def operations_on(store: Store, name: Any) -> list[Callable[[], object]]:
    """Every operation that takes a name."""
    operations: list[Callable[[], object]] = [
        lambda: store.read(name, limit=1),
        lambda: store.create(name, b""),
        lambda: store.writer(name).__enter__(),
        lambda: store.open(name),
        lambda: store.read_ahead(name),
        lambda: store.stat(name),
        lambda: store.delete(name),
        lambda: store.delete_tree(name),
        lambda: store.append_log(name),
    ]
    if name:  # '' and None stand for everything there
        operations += [lambda: store.list(name), lambda: store.children(name)]
    return operations


components = st.text(string.ascii_letters + string.digits + "-_ .:é", min_size=1, max_size=9)


@given(st.lists(components, min_size=1, max_size=4))
def test_an_accepted_name_lies_below_its_directory(components: list[str]) -> None:
    name = "/".join(components)
    try:
        assert check_name(name) == name
    except UnsafeName:
        assert any(part in (".", "..") or part.startswith(".tmp-") for part in components)
    else:
        root = Path("/root/directory")
        assert root in (root / name).resolve().parents


@pytest.mark.parametrize("url", ["", "   ", None, 3, b"bytes", ["a"], "a\0b"])
def test_a_directory_that_is_none_is_refused(url: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)Expected a .*directory.*Received: .*Pass"):
        open_store(url)


@pytest.mark.parametrize("url", ["oss://bucket", "hdfs://a/b", "file:///tmp/x"])
def test_an_unknown_scheme_is_refused(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"Expected a local or shared path, or gs://.*s3://.*az://.*Received: .*not known"
    ):
        open_store(url)


def test_opening_a_store_touches_no_storage(tmp_path: Path) -> None:
    for url in (str(tmp_path / "a"), tmp_path / "a"):
        assert open_store(url).url == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
