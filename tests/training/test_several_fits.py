"""Each fit of a script has a place of its own in the directory, told by its number."""

from __future__ import annotations

import copy
import functools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import PreemptionCallback
from keras_preempt.checkpoint.errors import ForeignDirectory, IdentityMismatch
from keras_preempt.training.run.several_fits import ended_fits
from tests import fits
from tests.cluster.noticed_fit import Model

X, Y = np.arange(64, dtype="float32").reshape(16, 4) / 64, np.ones((16, 1), "float32")

BEGUN = ("run.json", "incarnations/00001.json", "models/00001.json", "events/00001.w00000.jsonl")
CHECKPOINT = ("MANIFEST.json", "w00000.part.json", "w00000.local.safetensors", "w00000.mirrored.safetensors")
"""What docs/how-it-works.md says that a fit writes."""

Histories = list[dict[str, list[float]]]


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    fits.forget()
    yield
    fits.forget()


compiled = functools.cache(Model)


def make_model() -> keras.Model:
    """The model of the script, as each process makes it."""
    compiled().begin_anew()
    return compiled().keras


def fit(model: keras.Model, directory: Path, epochs: int = 2, **options: object) -> dict[str, list[float]]:
    callbacks = [PreemptionCallback(directory), *options.pop("callbacks", ())]
    arguments = {"batch_size": 4, "epochs": epochs, "shuffle": False, "verbose": 0, **options}
    return model.fit(X, Y, callbacks=callbacks, **arguments).history


def script(*directories: Path, epochs: tuple[int, ...] = (2, 2), **options: object) -> Histories:
    """A fit of one model in each of the directories, or several in one; as in a new process."""
    fits.forget()
    model, places = make_model(), directories * (len(epochs) // len(directories))
    return [fit(model, place, end, **options) for place, end in zip(places, epochs, strict=True)]


def fail(model: keras.Model, directory: Path) -> None:
    """As if preempted before the first epoch was saved."""
    with pytest.raises(KeyError, match="by the test"):
        fit(model, directory, callbacks=[fits.Doing(on_epoch_end=fits.fail)])


def test_two_fits_train_as_without_the_callback_and_once_finished_train_nothing_and_return_every_history(
    tmp_path: Path,
) -> None:
    alone = make_model()
    expected = [alone.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history for _ in range(2)]
    assert script(tmp_path / "run") == expected
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("MANIFEST.json"))
    assert script(tmp_path / "run") == expected
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("MANIFEST.json")) == before


def test_each_fit_is_told_with_its_place_as_the_script_names_the_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script(Path("run"))
    assert "Watching over 1 worker in run. " in caplog.text
    assert "This is fit 2 of this process in run, with its own place in run/fit-00002. " in caplog.text
    assert Path("run/fit-00002/run.json").is_file()


def test_files_are_written_when_a_fit_begins_and_when_it_ends_and_each_keeps_one_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: dict[str, set[str]] = {}
    fits.forget()
    model = make_model()

    def look(when: str) -> None:
        return found.setdefault(
            when, {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
        )

    for number in (1, 2, 3):
        looks = fits.Doing(
            on_train_batch_begin=lambda batch, logs, number=number: look(f"first step of {number}"),
            on_epoch_end=lambda epoch, logs, number=number: look(f"epochs of {number}"),
        )
        fit(model, tmp_path, callbacks=[looks])
        look(f"end of {number}")
    before: set[str] = set()
    for number, place in ((1, ""), (2, "fit-00002/"), (3, "fit-00003/")):
        step = f"{place}step-{8 * number:08d}/00001-0000"
        begun = {f"{place}{name}" for name in BEGUN}
        assert found[f"first step of {number}"] - before == begun
        assert found[f"epochs of {number}"] == found[f"first step of {number}"]
        assert found[f"end of {number}"] - found[f"first step of {number}"] == {
            f"{step}/{name}" for name in CHECKPOINT
        }
        before = found[f"end of {number}"]
    (line,) = (each.getMessage() for each in caplog.records if "This is fit 2" in each.getMessage())
    assert re.search(
        r"Each fit that has ended keeps its last checkpoint \(that of fit 1: 624 bytes of variables\)\.", line
    )


@pytest.mark.parametrize("longer", [0, pytest.param(1, marks=pytest.mark.chaos)])
def test_a_fit_that_was_made_longer_is_refused_before_it_trains_when_the_next_has_begun(
    tmp_path: Path, longer: int
) -> None:
    steps: list[int] = []

    def steps_of(*epochs: int) -> int:
        steps.clear()
        counts = fits.Doing(on_train_batch_end=lambda batch, logs: steps.append(batch))
        script(tmp_path / "run", epochs=epochs, callbacks=[counts])
        return len(steps)

    assert steps_of(2, 2, 2) == 24
    epochs = [2, 2, 2]
    epochs[longer] = 3
    expected = (
        rf"Expected fit {longer + 1} of this script to end after 2 epochs.*fit-0000{longer + 2}, has begun with what "
        r"it had left\. Received: epochs=3\. Go back to 2 epochs"
    )
    with pytest.raises(IdentityMismatch, match=expected):
        steps_of(*epochs)
    assert steps == []
    assert steps_of(2, 2, 2) == 0
    assert steps_of(2, 2, 3) == 4


def test_a_first_fit_that_now_ends_elsewhere_is_refused_when_the_second_has_begun(tmp_path: Path) -> None:
    fail(make_model(), tmp_path / "run")
    script(tmp_path / "run")
    for checkpoint in (tmp_path / "run").glob("step-*"):
        shutil.rmtree(checkpoint)
    fits.forget()
    model = make_model()
    stops = fits.Doing(on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", True))
    fit(model, tmp_path / "run", callbacks=[stops])
    with pytest.raises(IdentityMismatch, match=r"begun after: .*step 8', received .*step 4'"):
        fit(model, tmp_path / "run")


@pytest.mark.parametrize("inner_first", [False, True])
def test_one_fit_may_have_its_directory_in_that_of_another(tmp_path: Path, inner_first: bool) -> None:
    outer, inner = tmp_path / "run", tmp_path / "run" / "pretrained" / "1"
    order = (inner, outer) if inner_first else (outer, inner)
    assert script(*order) == script(*order)


def test_a_directory_with_a_run_of_another_process_in_it_is_refused(tmp_path: Path) -> None:
    fit(make_model(), tmp_path / "run" / "pretrained")
    fits.forget()
    with pytest.raises(ForeignDirectory, match="holding pretrained"):
        fit(make_model(), tmp_path / "run")


def test_the_first_fit_may_be_tried_again_after_an_error(tmp_path: Path) -> None:
    fail(make_model(), tmp_path / "run")
    assert fit(make_model(), tmp_path / "run") == script(tmp_path / "other")[0]


def test_after_an_error_in_a_later_fit_the_next_one_is_refused(tmp_path: Path) -> None:
    model = make_model()
    fit(model, tmp_path / "run")
    fail(model, tmp_path / "run")
    with pytest.raises(ValueError, match=r"after number 2 was left by an error.*cannot be told"):
        fit(make_model(), tmp_path / "run")


def test_a_finished_fit_stays_where_it_was_though_the_process_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    callback, model = PreemptionCallback("run"), make_model()
    (tmp_path / "elsewhere").mkdir()
    for _ in range(2):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[callback])
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert (tmp_path / "run" / "fit-00002" / "run.json").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_finished_fit_keeps_the_averages_that_it_ended_with(tmp_path: Path) -> None:
    """Keras puts them into the model before the callbacks are told that training is over."""

    def weights() -> list[np.ndarray]:
        fits.forget()
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="dense")], name="model")
        optimizer = keras.optimizers.SGD(0.001, use_ema=True, ema_momentum=0.5, name="sgd")
        model.compile(optimizer, "mse", jit_compile=False)
        fit(model, tmp_path / "run")
        return model.get_weights()

    ended, again = weights(), weights()
    assert [weight.tolist() for weight in again] == [weight.tolist() for weight in ended]


def test_a_callback_is_not_copied(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Received: a copy"):
        copy.deepcopy(PreemptionCallback(tmp_path / "run"))


def test_a_model_that_is_made_anew_in_one_process_is_told_how_to_get_its_names_back(tmp_path: Path) -> None:
    def dropping() -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        return model

    keras.utils.clear_session()
    fail(dropping(), tmp_path / "run")
    with pytest.raises(IdentityMismatch, match=r"call keras.utils.clear_session\(\) before"):
        fit(dropping(), tmp_path / "run")
    keras.utils.clear_session()
    assert len(fit(dropping(), tmp_path / "run")["loss"]) == 2


def test_the_last_fit_may_be_longer_and_reshuffled_validation_data_keep_their_order(tmp_path: Path) -> None:
    def histories(directory: Path, *epochs: int) -> Histories:
        keras.utils.set_random_seed(
            4
        )  # As at the beginning of each process; the order depends on it as well.
        samples = tf.data.Dataset.from_tensor_slices((X, Y))
        validation = samples.shuffle(16, seed=3).batch(5, drop_remainder=True)
        return script(directory, epochs=epochs, validation_data=validation)

    expected = histories(tmp_path / "undisturbed", 3, 3)
    histories(tmp_path / "run", 3, 2)
    assert histories(tmp_path / "run", 3, 3) == expected


@pytest.mark.parametrize("interactive", [False, True])
def test_a_finished_run_that_is_started_again_says_that_it_trains_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, interactive: bool
) -> None:
    monkeypatch.setattr(ended_fits, "interactive", interactive)
    for epochs, over in ((2, False), (2, True), (3, False)):
        fits.forget()
        caplog.clear()
        fit(make_model(), tmp_path, epochs)
        if not interactive:
            assert not any("Training is over already" in r.message for r in caplog.records)
            ended_fits.tell()  # As at the end of the process.
        assert (
            any("Training is over already: all epochs asked for (2)" in r.message for r in caplog.records)
            is over
        )
