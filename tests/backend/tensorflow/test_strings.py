from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from keras_preempt.backend.tensorflow.variables import decode_strings, encode_strings
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.tensors import write_tensors
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state.model import ModelState

texts = st.lists(st.binary(max_size=9), max_size=12)


@given(texts, st.integers(0, 2))
def test_strings_of_any_bytes_come_back(found: list[bytes], dimensions: int) -> None:
    strings = np.empty(len(found), object)
    strings[:] = found
    shaped = strings.reshape((1,) * dimensions + strings.shape)
    back = decode_strings(encode_strings(shaped), shaped.shape)
    assert back.shape == shaped.shape
    assert back.reshape(-1).tolist() == found


@given(texts, st.data())
def test_what_does_not_fit_is_refused(found: list[bytes], data: Any) -> None:
    encoded = encode_strings(np.array([*found, b"end"], object))
    shape = (len(found) + 1,)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    for wrong in (encoded[:cut], np.append(encoded, np.uint8(0)), np.full_like(encoded, 0xFF)):
        with pytest.raises(ValueError, match=r"Expected \d+ strings.*Received"):
            decode_strings(wrong, shape)


class Names(keras.layers.Layer):
    """Holds strings, as a layer with a vocabulary of its own can."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def build(self, shape: Any) -> None:
        self.names = self.add_weight(
            shape=(2, 2),
            dtype=self.kind,
            initializer=lambda shape, dtype=None: tf.zeros(shape, dtype),
            trainable=False,
            name="names",
        )

    def call(self, x: Any) -> Any:
        return x


def model(kind: str = "string") -> keras.Model:
    keras.utils.clear_session()
    made = keras.Sequential([keras.Input((3,)), Names(kind), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    made.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    return made


def test_string_state_of_a_layer_is_captured_and_restored(tmp_path: Path) -> None:
    first, other = model(), model()
    names = [["\N{GREEK SMALL LETTER ALPHA}", ""], ["a\0b", "x" * 300]]
    first.layers[0].names.assign(tf.constant(names))
    state = ModelState(first, tf.distribute.get_strategy())
    captured = state.capture_local(copy=True)
    (name,) = (name for name in captured if name.endswith("names@0"))
    assert name not in state.capture().whole
    assert captured[name].tobytes() == state.capture_local()[name].tobytes()
    write_tensors(LocalStore(tmp_path), "folder", "file", captured)
    read_back = load_file(tmp_path / "folder/file")
    ModelState(other, tf.distribute.get_strategy()).restore(WorkerValues({}, read_back))
    assert [
        [text.decode() for text in row] for row in np.asarray(other.layers[0].names.value.read_value())
    ] == names


def test_a_type_that_a_checkpoint_cannot_hold_is_an_error_at_the_start() -> None:
    with pytest.raises(ValueError, match=r"Received: '.*names' of type complex128.*float64"):
        ModelState(model("complex128"), tf.distribute.get_strategy())
