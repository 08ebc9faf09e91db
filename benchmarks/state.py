"""A Keras model whose variables come to a given size, for the benchmarks of saving."""

from __future__ import annotations

import keras

_TABLE_SHARE = 4  # a quarter of the bytes is one embedding table, which a checkpoint has to cut


def model_of(size: int, *, seed: int = 0) -> keras.Model:
    """Returns a model with about `size` bytes of float32 weights: an embedding table and square layers.

    A step of plain gradient descent costs far less than copying the weights of the table.
    """
    keras.utils.set_random_seed(seed)
    width = 4096 if size >= 2 << 30 else 2048 if size >= 256 << 20 else 512
    layers = max(1, (size - size // _TABLE_SHARE) // (4 * width * width))
    inputs = keras.Input((4,), dtype="int32")
    hidden = keras.layers.Embedding(max(1, size // _TABLE_SHARE // (4 * width)), width)(inputs)
    hidden = keras.layers.GlobalAveragePooling1D()(hidden)
    for _ in range(layers):
        hidden = keras.layers.Dense(width)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def bytes_of(model: keras.Model) -> int:
    """How many bytes the variables of a model take."""
    return sum(
        variable.value.dtype.size * int(variable.value.shape.num_elements()) for variable in model.variables
    )
