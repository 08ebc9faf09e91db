"""Each fit of a script has a place of its own in the directory, told by its number."""

from __future__ import annotations

import copy
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import PreemptionCallback
from keras_preempt.checkpoint.errors import ForeignDirectory, IdentityMismatch
from keras_preempt.training.several_fits import ended_fits
from tests import fits

X, Y = np.arange(32, dtype="float32").reshape(16, 2), np.ones((16, 1), "float32")


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    fits.forget()
    yield
    fits.forget()


def make_model() -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")], name="model")
    model.compile("sgd", "mse")
    return model


def fit(model: keras.Model, directory: Path, epochs: int = 2, **options: object) -> dict[str, list[float]]:
    callbacks = [PreemptionCallback(directory), *options.pop("callbacks", ())]
    arguments = {"batch_size": 4, "epochs": epochs, "shuffle": False, "verbose": 0, **options}
    return model.fit(X, Y, callbacks=callbacks, **arguments).history


def script(directory: Path, first_epochs: int = 2, second_epochs: int = 2) -> list[dict[str, list[float]]]:
    """Two fits of one model; as in a new process."""
    fits.forget()
    model = make_model()  # Named as in a new process.
    return [fit(model, directory, first_epochs), fit(model, directory, second_epochs)]


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        raise KeyError("by the test")

    def get_state(self) -> dict[str, object]:
        return {}

    def set_state(self, state: object) -> None:
        pass


def test_the_second_fit_trains_on_as_without_the_callback(tmp_path: Path) -> None:
    alone = make_model()
    expected = [alone.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history for _ in range(2)]
    assert script(tmp_path / "run") == expected


def test_a_script_that_has_finished_trains_nothing_and_returns_every_history(tmp_path: Path) -> None:
    expected = script(tmp_path / "run")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("MANIFEST.json"))
    assert script(tmp_path / "run") == expected
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("MANIFEST.json")) == before


class Counts(keras.callbacks.Callback):
    """Counts the steps of all fits."""

    steps = 0

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        Counts.steps += 1

    def get_state(self) -> dict[str, object]:
        return {}

    def set_state(self, state: object) -> None:
        pass


@pytest.mark.parametrize("longer", [0, 1])
def test_a_fit_that_was_made_longer_is_refused_before_it_trains_when_the_next_has_begun(
    tmp_path: Path, longer: int
) -> None:
    def script(epochs: list[int]) -> None:
        fits.forget()
        model = make_model()
        for each in epochs:
            fit(model, tmp_path / "run", each, callbacks=[Counts()])

    script([2, 2, 2])
    Counts.steps = 0
    epochs = [2, 2, 2]
    epochs[longer] = 3
    expected = (
        rf"Expected fit {longer + 1} of this script to end after 2 epochs.*fit-0000{longer + 2}, has begun with what "
        r"it had left\. Received: epochs=3\. Go back to 2 epochs"
    )
    with pytest.raises(IdentityMismatch, match=expected):
        script(epochs)
    assert Counts.steps == 0
    script([2, 2, 2])
    assert Counts.steps == 0
    script([2, 2, 3])
    assert Counts.steps == 4


def test_a_first_fit_that_now_ends_elsewhere_is_refused_when_the_second_has_begun(tmp_path: Path) -> None:
    class StopsAtOnce(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            self.model.stop_training = stops

        def get_state(self) -> dict[str, object]:
            return {}

        def set_state(self, state: object) -> None:
            pass

    stops = False
    with pytest.raises(
        KeyError, match="by the test"
    ):  # Preempted, as it were, before its first epoch was saved.
        fit(make_model(), tmp_path / "run", callbacks=[StopsAtOnce(), Fails()])
    fits.forget()
    model = make_model()
    fit(model, tmp_path / "run", callbacks=[StopsAtOnce()])
    fit(model, tmp_path / "run")
    for checkpoint in (tmp_path / "run").glob("step-*"):
        shutil.rmtree(checkpoint)
    fits.forget()
    model, stops = make_model(), True
    fit(model, tmp_path / "run", callbacks=[StopsAtOnce()])
    with pytest.raises(IdentityMismatch, match=r"begun after: .*step 8', received .*step 4'"):
        fit(model, tmp_path / "run")


def test_the_last_fit_may_be_made_longer(tmp_path: Path) -> None:
    script(tmp_path / "run")
    longer = script(tmp_path / "run", second_epochs=3)
    assert longer == script(tmp_path / "other", second_epochs=3)


@pytest.mark.parametrize("inner_first", [False, True])
def test_one_fit_may_have_its_directory_in_that_of_another(tmp_path: Path, inner_first: bool) -> None:
    outer, inner = tmp_path / "run", tmp_path / "run" / "pretrained" / "1"

    def script() -> list[dict[str, list[float]]]:
        fits.forget()
        model = make_model()
        return [fit(model, directory) for directory in ((inner, outer) if inner_first else (outer, inner))]

    expected = script()
    assert script() == expected


def test_a_directory_with_a_run_of_another_process_in_it_is_refused(tmp_path: Path) -> None:
    fit(make_model(), tmp_path / "run" / "pretrained")
    fits.forget()
    with pytest.raises(ForeignDirectory, match="holding pretrained"):
        fit(make_model(), tmp_path / "run")


def test_the_first_fit_may_be_tried_again_after_an_error(tmp_path: Path) -> None:
    model = make_model()
    with pytest.raises(KeyError, match="by the test"):
        fit(model, tmp_path / "run", callbacks=[Fails()])
    assert fit(make_model(), tmp_path / "run") == script(tmp_path / "other")[0]


def test_after_an_error_in_a_later_fit_the_next_one_is_refused(tmp_path: Path) -> None:
    model = make_model()
    fit(model, tmp_path / "run")
    with pytest.raises(KeyError, match="by the test"):
        fit(model, tmp_path / "run", callbacks=[Fails()])
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
        model = make_model()
        model.compile(keras.optimizers.SGD(0.001, use_ema=True, ema_momentum=0.5), "mse")
        fit(model, tmp_path / "run")
        return model.get_weights()

    ended, again = weights(), weights()
    assert [weight.tolist() for weight in again] == [weight.tolist() for weight in ended]


def test_a_callback_is_not_copied(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Received: a copy"):
        copy.deepcopy(PreemptionCallback(tmp_path / "run"))


def test_a_model_that_is_made_anew_in_one_process_is_told_how_to_get_its_names_back(tmp_path: Path) -> None:
    def dropping() -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    keras.utils.clear_session()
    with pytest.raises(KeyError, match="by the test"):
        fit(dropping(), tmp_path / "run", callbacks=[Fails()])
    with pytest.raises(IdentityMismatch, match=r"call keras.utils.clear_session\(\) before"):
        fit(dropping(), tmp_path / "run")
    keras.utils.clear_session()
    assert len(fit(dropping(), tmp_path / "run")["loss"]) == 2


def test_validation_data_that_reshuffles_comes_in_the_same_order_for_a_later_fit(tmp_path: Path) -> None:
    def histories(directory: Path, epochs: int) -> list[dict[str, list[float]]]:
        fits.forget()
        model, samples = make_model(), tf.data.Dataset.from_tensor_slices((X, Y))
        validation = samples.shuffle(16, seed=3).batch(5, drop_remainder=True)
        return [fit(model, directory, end, validation_data=validation) for end in (3, epochs)]

    expected = histories(tmp_path / "undisturbed", 3)
    histories(tmp_path / "run", 2)
    assert histories(tmp_path / "run", 3) == expected


@pytest.mark.parametrize("interactive", [False, True])
def test_a_finished_run_that_is_started_again_says_that_it_trains_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, interactive: bool
) -> None:
    monkeypatch.setattr(ended_fits, "interactive", interactive)
    for epochs, over in ((2, False), (2, True), (3, False)):
        fits.forget()
        caplog.clear()
        with caplog.at_level(logging.INFO, "keras_preempt"):
            fit(make_model(), tmp_path, epochs)
            if not interactive:
                assert not any("Training is over already" in r.message for r in caplog.records)
                ended_fits.tell()  # As at the end of the process.
        assert any("Training is over already: all 2 epochs" in r.message for r in caplog.records) is over
