from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

from keras_preempt.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    ForeignDirectory,
    IdentityMismatch,
    UnsupportedFormat,
)
from keras_preempt.checkpoint.identity import check_or_create
from keras_preempt.checkpoint.other_workers import Setup
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint.builders import snapshot


def identity(run_id: str = "first") -> dict[str, Any]:
    return {
        "format": 1,
        "run_id": run_id,
        "model": [
            {"name": "dense/kernel", "shape": [784, 10], "dtype": "float32"},
            {"name": "dense/bias", "shape": (10,), "dtype": "float32"},
        ],
        "optimizer": [{"name": "adam/m/0", "shape": [784, 10], "dtype": "float32"}],
        "optimizer_class": "Adam",
        "setup": Setup(workers=2, replicas=2, global_batch=8, batches=6, built_from=1).to_json(),
        "config": {"batch_size": 32, "mixed": None},
    }


def test_the_first_start_makes_the_directory_its_own(store: LocalStore) -> None:
    stored = check_or_create(store, identity())
    assert stored["run_id"] == "first"
    assert list(snapshot(store.path)) == ["run.json"]


def test_a_restart_keeps_the_identity_of_the_first_start(store: LocalStore) -> None:
    first = check_or_create(store, identity())
    before = snapshot(store.path)
    store.create("other", b"")
    assert check_or_create(store, identity("second")) == first
    assert snapshot(store.path) == {**before, "other": b""}


def test_racing_workers_agree_on_one_identity(store: LocalStore) -> None:
    stored: list[dict[str, Any]] = []
    start = threading.Barrier(6)

    def check(number: int) -> None:
        start.wait()
        stored.append(check_or_create(store, identity(f"worker {number}")))

    threads = [threading.Thread(target=check, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({entry["run_id"] for entry in stored}) == 1
    assert len(stored) == 6


def test_a_directory_of_something_else_is_refused_and_unchanged(store: LocalStore) -> None:
    for number in range(12):
        store.create(f"photo-{number:02d}.jpg", b"")
    before = snapshot(store.path)
    with pytest.raises(ForeignDirectory, match=r"holding photo-00\.jpg, .*photo-09\.jpg and 2 more\. Pass"):
        check_or_create(store, identity())
    assert snapshot(store.path) == before


def test_logs_and_a_fresh_file_system_do_not_make_a_directory_foreign(store: LocalStore) -> None:
    store.create("events/00001.0.jsonl", b"")
    (store.path / "lost+found").mkdir()
    assert check_or_create(store, identity())["run_id"] == "first"


def test_a_refusal_says_that_this_release_may_keep_more_than_the_one_that_started_the_run(
    store: LocalStore,
) -> None:
    check_or_create(store, identity())
    inner = {"name": "optimizer/inner/iteration", "shape": [], "dtype": "int64"}
    more = {**identity(), "optimizer": [*identity()["optimizer"], inner]}
    with pytest.raises(
        IdentityMismatch, match=r"(?s)inner/iteration: expected nothing.*finish the run with that"
    ):
        check_or_create(store, more)
    with pytest.raises(IdentityMismatch) as refused:
        check_or_create(store, {**more, "optimizer_class": "SGD"})
    assert "this release" not in str(refused.value)


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(identity()), **changes}


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (
            changed(model=[{**identity()["model"][0], "shape": [784, 12]}, identity()["model"][1]]),
            r"model variable dense/kernel: expected float32\[784, 10\], received float32\[784, 12\]",
        ),
        (
            changed(model=[identity()["model"][0], {**identity()["model"][1], "dtype": "bfloat16"}]),
            r"model variable dense/bias: expected float32\[10\], received bfloat16\[10\]",
        ),
        (
            changed(optimizer=[]),
            r"optimizer variable adam/m/0: expected float32\[784, 10\], received nothing",
        ),
        (
            changed(model=[*identity()["model"], {"name": "extra", "shape": [], "dtype": "int64"}]),
            r"model variable extra: expected nothing, received int64\[\]",
        ),
        (
            changed(setup={**identity()["setup"], "global_batch": 4}),
            "setup global_batch: expected 8, received 4",
        ),
        (
            changed(setup={**identity()["setup"], "workers": 3, "replicas": 3, "batches": 60}),
            "setup batches: expected 6, received 60",
        ),
        (changed(optimizer_class="SGD"), "optimizer class: expected Adam, received SGD"),
        (changed(config={"batch_size": 64, "mixed": None}), "config batch_size: expected 32, received 64"),
        (changed(config={"batch_size": 32}), "config mixed: expected None, received nothing"),
        (
            changed(config={"batch_size": 32, "mixed": None, "seed": 1}),
            "config seed: expected nothing, received 1",
        ),
    ],
)
def test_another_model_or_configuration_is_refused_naming_what_differs(
    store: LocalStore, other: dict[str, Any], difference: str
) -> None:
    check_or_create(store, identity())
    before = snapshot(store.path)
    with pytest.raises(IdentityMismatch, match=rf"1 difference:\n  {difference}\nPass another directory"):
        check_or_create(store, other)
    assert snapshot(store.path) == before


def test_another_number_of_workers_is_the_same_run_and_leaves_its_identity_as_it_was(
    store: LocalStore,
) -> None:
    first = check_or_create(store, identity())
    before = snapshot(store.path)
    others = {**identity()["setup"], "workers": 3, "replicas": 3, "global_batch": 12, "batches": 4}
    assert check_or_create(store, changed(run_id="second", setup=others)) == first
    assert snapshot(store.path) == before


def test_another_number_of_workers_does_not_excuse_another_model(store: LocalStore) -> None:
    check_or_create(store, identity())
    others = {**identity()["setup"], "workers": 1, "replicas": 1}
    with pytest.raises(
        IdentityMismatch, match=r"1 difference:\n  optimizer class: expected Adam, received SGD"
    ):
        check_or_create(store, changed(setup=others, optimizer_class="SGD"))


def test_a_long_list_of_differences_is_shortened(store: LocalStore) -> None:
    check_or_create(store, identity())
    many = [{"name": f"layer_{number:02d}", "shape": [1], "dtype": "float32"} for number in range(30)]
    with pytest.raises(IdentityMismatch) as caught:
        check_or_create(store, changed(model=many))
    message = str(caught.value)
    assert "32 differences" in message
    assert "and 22 more" in message
    assert message.count("variable") == 10


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"format":1}', b"\x00\xff", b'{"format":1,"crc32c":0}\n'],
)
def test_an_unreadable_identity_is_refused_and_unchanged(store: LocalStore, data: bytes) -> None:
    store.create("run.json", data)
    with pytest.raises(CorruptCheckpoint, match=r"Expected run\.json"):
        check_or_create(store, identity())
    assert snapshot(store.path) == {"run.json": data}


def test_a_truncated_or_edited_identity_is_refused_and_unchanged(store: LocalStore) -> None:
    check_or_create(store, identity())
    path = store.path / "run.json"
    data = path.read_bytes()
    for damaged in (data[:-1], data[: len(data) // 2], data.replace(b"first", b"forst")):
        path.write_bytes(damaged)
        with pytest.raises(CorruptCheckpoint):
            check_or_create(store, identity())
        assert snapshot(store.path) == {"run.json": damaged}


def test_an_identity_of_a_newer_format_says_what_to_install(store: LocalStore) -> None:
    store.create("run.json", b'{"format":2}')
    with pytest.raises(UnsupportedFormat, match="format version 2"):
        check_or_create(store, identity())


def test_a_sealed_file_of_another_kind_is_no_identity(store: LocalStore) -> None:
    from keras_preempt.checkpoint.documents import encode

    store.create("run.json", encode({"format": 1, "model": 3, "setup": 3}))
    with pytest.raises(CheckpointError):
        check_or_create(store, identity())


def test_variables_of_equal_names_are_refused(store: LocalStore) -> None:
    with pytest.raises(ValueError, match="'dense/kernel' twice"):
        check_or_create(store, changed(model=[identity()["model"][0]] * 2))
    assert snapshot(store.path) == {}
