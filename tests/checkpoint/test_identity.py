from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from keras_preempt.checkpoint.documents import encode_document
from keras_preempt.checkpoint.errors import (
    CorruptCheckpoint,
    ForeignDirectory,
    IdentityMismatch,
    UnsupportedFormat,
)
from keras_preempt.checkpoint.identity import check_or_create
from keras_preempt.checkpoint.setup import Setup
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint.builders import snapshot
from tests.checkpoint.round_table import together


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


OTHERS = {"workers": 3, "replicas": 3, "global_batch": 12, "batches": 4}


@pytest.mark.parametrize("setup", [{}, OTHERS])
def test_a_restart_also_with_other_workers_keeps_the_identity_of_the_first_start(
    store: LocalStore, setup: dict[str, int]
) -> None:
    first = check_or_create(store, identity())
    assert first["run_id"] == "first"
    before = snapshot(store.path)
    assert list(before) == ["run.json"]
    store.create("other", b"")
    assert check_or_create(store, changed(run_id="second", setup={**identity()["setup"], **setup})) == first
    assert snapshot(store.path) == {**before, "other": b""}


def test_racing_workers_agree_on_one_identity(store: LocalStore) -> None:
    stored = together([lambda n=n: check_or_create(store, identity(f"worker {n}")) for n in range(6)])
    assert len({entry["run_id"] for entry in stored}) == 1


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
    more = changed(optimizer=[*identity()["optimizer"], inner])
    why = r"(?s)inner/iteration: expected nothing.*finish the run with that"
    with pytest.raises(IdentityMismatch, match=why):
        check_or_create(store, more)
    with pytest.raises(IdentityMismatch) as refused:
        check_or_create(store, {**more, "optimizer_class": "SGD"})
    assert "this release" not in str(refused.value)


@pytest.mark.parametrize(
    ("dtypes", "backends"),
    [(("int64", "int32"), ("tensorflow", "jax")), (("int32", "int64"), ("jax", "tensorflow"))],
)
def test_a_run_of_another_backend_of_keras_is_refused_with_that_word(
    dtypes: tuple[str, str], backends: tuple[str, str], store: LocalStore
) -> None:
    def counted_in(dtype: str) -> dict[str, Any]:
        return changed(optimizer=[{"name": "adam/iteration", "shape": [], "dtype": dtype}])

    check_or_create(store, counted_in(dtypes[0]))
    with pytest.raises(IdentityMismatch) as refused:
        check_or_create(store, counted_in(dtypes[1]))
    assert f"another backend of Keras, {backends[0]}, and this program runs on {backends[1]}" in str(
        refused.value
    )
    assert f"set KERAS_BACKEND={backends[0]} to continue it" in str(refused.value)


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(identity()), **changes}


@pytest.mark.parametrize("other", [("int64", "tensorflow"), ("int32", "jax")], ids=lambda each: each[1])
@pytest.mark.parametrize("torch_first", [True, False])
def test_a_run_that_names_its_backend_is_told_from_one_that_counts_steps_in_the_same_type(
    other: tuple[str, str], torch_first: bool, store: LocalStore
) -> None:
    def of(dtype: str, **config: str) -> dict[str, Any]:
        counted = [{"name": "adam/iteration", "shape": [], "dtype": dtype}]
        return changed(optimizer=counted, config={**identity()["config"], **config})

    runs = [(of("int32", backend="torch"), "torch"), (of(other[0]), other[1])]
    (first, before), (second, now) = runs if torch_first else runs[::-1]
    check_or_create(store, first)
    check_or_create(store, first)
    with pytest.raises(IdentityMismatch) as refused:
        check_or_create(store, second)
    assert f"another backend of Keras, {before}, and this program runs on {now}" in str(refused.value)
    assert f"set KERAS_BACKEND={before} to continue it" in str(refused.value)


KERNEL, BIAS = identity()["model"]
SETUP = identity()["setup"]
WIDER, ROUGHER = {**KERNEL, "shape": [784, 12]}, {**BIAS, "dtype": "bfloat16"}
EXTRA = {"name": "extra", "shape": [], "dtype": "int64"}
ALONE = {**SETUP, "workers": 1, "replicas": 1}


@pytest.mark.parametrize(
    ("changes", "what", "expected", "received"),
    [
        ({"model": [WIDER, BIAS]}, "model variable dense/kernel", "float32[784, 10]", "float32[784, 12]"),
        ({"model": [KERNEL, ROUGHER]}, "model variable dense/bias", "float32[10]", "bfloat16[10]"),
        ({"optimizer": []}, "optimizer variable adam/m/0", "float32[784, 10]", "nothing"),
        ({"model": [KERNEL, BIAS, EXTRA]}, "model variable extra", "nothing", "int64[]"),
        ({"setup": {**SETUP, "global_batch": 4}}, "setup global_batch", 8, 4),
        ({"setup": {**SETUP, "workers": 3, "replicas": 3, "batches": 60}}, "setup batches", 6, 60),
        ({"optimizer_class": "SGD"}, "optimizer class", "Adam", "SGD"),
        ({"setup": ALONE, "optimizer_class": "SGD"}, "optimizer class", "Adam", "SGD"),
        ({"config": {"batch_size": 64, "mixed": None}}, "config batch_size", 32, 64),
        ({"config": {"batch_size": 32}}, "config mixed", None, "nothing"),
        ({"config": {"batch_size": 32, "mixed": None, "seed": 1}}, "config seed", "nothing", 1),
    ],
)
def test_another_model_or_configuration_is_refused_naming_what_differs(
    store: LocalStore, changes: dict[str, Any], what: str, expected: object, received: object
) -> None:
    difference = re.escape(f"{what}: expected {expected}, received {received}")
    check_or_create(store, identity())
    before = snapshot(store.path)
    with pytest.raises(IdentityMismatch, match=rf"1 difference:\n  {difference}\nPass another directory"):
        check_or_create(store, changed(**changes))
    assert snapshot(store.path) == before


def test_a_long_list_of_differences_is_shortened(store: LocalStore) -> None:
    check_or_create(store, identity())
    many = [{"name": f"layer_{number:02d}", "shape": [1], "dtype": "float32"} for number in range(30)]
    with pytest.raises(IdentityMismatch) as caught:
        check_or_create(store, changed(model=many))
    message = str(caught.value)
    assert "32 differences" in message
    assert "and 22 more" in message
    assert message.count("variable") == 10


WHOLE = encode_document({**identity(), "model": []})


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b'{"format":1}', b"\x00\xff", b'{"format":1,"crc32c":0}\n'),
        *(WHOLE[:-1], WHOLE[: len(WHOLE) // 2], WHOLE.replace(b"first", b"forst")),
        encode_document({"format": 1, "model": 3, "setup": 3}),
    ],
)
def test_an_unreadable_identity_is_refused_and_unchanged(store: LocalStore, data: bytes) -> None:
    store.create("run.json", data)
    with pytest.raises(CorruptCheckpoint, match=r"Expected run\.json"):
        check_or_create(store, identity())
    assert snapshot(store.path) == {"run.json": data}


def test_an_identity_of_a_newer_format_says_what_to_install(store: LocalStore) -> None:
    store.create("run.json", b'{"format":2}')
    with pytest.raises(UnsupportedFormat, match="format version 2"):
        check_or_create(store, identity())


def test_variables_of_equal_names_are_refused(store: LocalStore) -> None:
    with pytest.raises(ValueError, match="'dense/kernel' twice"):
        check_or_create(store, changed(model=[KERNEL] * 2))
    assert snapshot(store.path) == {}
