"""A further kind of storage is one class and one entry in `opening.BUCKETS`: nothing else asks for its scheme."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_preempt import PreemptionCallback
from keras_preempt.checkpoint.storage import opening
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.doctor import storage
from keras_preempt.cli.doctor.finding import Findings
from keras_preempt.cli.drill.directories import run_directories
from keras_preempt.notices.platform import parse_name
from tests import fits
from tests.checkpoint.campaign_store import MemoryStore
from tests.cli import saved_run

RUN = "memory://place/run"


@pytest.fixture(autouse=True)
def stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, MemoryStore]]:
    """Makes ``memory://`` a scheme; gives the stores by their URL."""
    made: dict[str, MemoryStore] = {}

    def open_memory(url: str, staging_dir: object) -> Store:
        if url not in made:
            made[url] = MemoryStore()
            made[url].url = made[url].key = url
        return made[url]

    monkeypatch.setitem(opening.BUCKETS, "memory", open_memory)
    yield made
    fits.forget()


def fit(epochs: int) -> list[np.ndarray]:
    """Trains for so many epochs, or for the rest of them."""
    fits.forget()
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse")
    x = np.random.default_rng(1).random((12, 2), np.float32)
    model.fit(x, x[:, :1], batch_size=4, epochs=epochs, verbose=0, callbacks=[PreemptionCallback(RUN)])
    return [np.array(each) for each in model.get_weights()]


def test_a_fit_is_saved_and_continued_bit_for_bit(stores: dict[str, MemoryStore]) -> None:
    whole = fit(3)
    stores.clear()
    fit(1)
    assert any(name.endswith("MANIFEST.json") for name in stores[RUN].files)
    for found, expected in zip(fit(3), whole, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_every_command_takes_it(
    stores: dict[str, MemoryStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(2)
    out = tmp_path / "out.safetensors"
    for command in (
        ["inspect", RUN, "--verify", "--json"],
        ["report", RUN],
        ["report", RUN, "--watch", "--timeout", "5"],
        ["export", RUN, str(out)],
        ["clean", RUN, "--max-to-keep", "1", "--yes"],
    ):
        status, printed, errors = saved_run.run(capsys, *command)
        assert status == 0, printed + errors
    assert out.stat().st_size
    status, _, errors = saved_run.run(capsys, "save", RUN, "--timeout", "1")
    assert "No job is running" in errors, (status, errors)
    status, _, errors = saved_run.run(capsys, "inspect", "memory://place")
    assert "memory://place, which is empty" in errors


def test_the_doctor_and_the_drill_take_it(stores: dict[str, MemoryStore]) -> None:
    findings = Findings()
    store = opening.open_store(RUN)
    assert storage.check_place(findings, store, parse_name("generic"))
    assert [(each.check, each.level) for each in findings.all] == [("permission to write", "ok")]
    assert storage.place_of(RUN, "meeting") == "memory://place/run.doctor/meeting"
    with storage.removed_afterwards(storage.place_of(RUN, "meeting")) as aside:
        aside.create("folder/a", b"1")
    assert not stores[storage.place_of(RUN, "meeting")].files
    with run_directories("memory://place/new") as directories:
        assert directories.path is None
        assert directories.of("first") == "memory://place/new/first"


def test_a_lost_slash_and_an_unknown_scheme_are_explained() -> None:
    with pytest.raises(
        ValueError, match=r"gs://bucket/prefix or .* or memory://bucket/prefix as a string.*slash"
    ):
        opening.open_store(Path(RUN))
    with pytest.raises(ValueError, match="'other://' is not known"):
        opening.open_store("other://place")
