"""Jobs composed at random of models, optimizers, inputs and callbacks; each number always gives the same job."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.ways.catalogue.basics import BATCH, STEPS, cross_entropy, samples
from tests.ways.catalogue.callbacks import own_path, points, smoothed
from tests.ways.late import keras, np, tf
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, Run, Way

MODELS = ("dense", "convolution", "recurrent", "subclass", "two outputs")
OPTIMIZERS = ("adam", "momentum", "averaged", "accumulating", "scaled")

INPUTS = ("finite", "repeated", "cached", "interleaved", "numpy", "py dataset", "generator")
INPUTS_ANYWHERE = INPUTS[:-1]
"""Of a Python generator Keras takes batches ahead under a strategy: it is warned of, see the ways."""

CALLBACKS = ("early", "plateau", "schedule", "csv", "checkpoint", "tensorboard", "swap", "own")
PLACES = ("batch", "batch", "batch", "epoch", "test", "test_batch")


@dataclass(frozen=True)
class Draw:
    """What was drawn; its text is all that is needed to see what was run."""

    seed: int
    strategy: str
    model: str
    optimizer: str
    input: str
    callbacks: tuple[str, ...]
    validation: bool
    validation_freq: int
    steps_per_execution: int
    save_every: int | str | None
    place: str
    strikes: tuple[str, ...]


def draw(seed: int) -> Draw:
    """Draws a job, and where its starts are ended."""
    rng = random.Random(seed)
    strategy = rng.choices((ONE, MIRRORED, WORKERS), (6, 2, 2))[0]
    optimizer = rng.choice(OPTIMIZERS)
    callbacks = [
        name for name in CALLBACKS if rng.random() < 0.3 and (name != "swap" or optimizer == "averaged")
    ]
    save_every = rng.choice((None, None, 5, "epoch"))
    validation = rng.random() < 0.7
    places = [place for place in PLACES if validation or not place.startswith("test")]
    strikes = []
    for _ in range(rng.randint(1, 3)):
        place = rng.choice(places)
        strike = f"{place} {rng.randrange(3) if place in ('epoch', 'test') else rng.randrange(12)}"
        if strategy == WORKERS:
            strike += f" {rng.randrange(2)}"
        elif save_every == 5 and rng.random() < 0.4:
            strike += " 0 SIGKILL"
        strikes.append(strike)
    return Draw(
        seed,
        strategy,
        rng.choice(MODELS),
        optimizer,
        rng.choice(INPUTS if strategy == ONE else INPUTS_ANYWHERE),
        tuple(callbacks),
        validation,
        rng.choice((1, 1, 2)),
        rng.choice((1, 1, 2, 3)),
        save_every,
        rng.choice(("first", "middle", "last")),
        tuple(strikes),
    )


def _model(kind: str) -> Any:
    layers = keras.layers
    inputs = keras.Input((4,))
    if kind == "subclass":

        class Own(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.hidden, self.dropout, self.last = layers.Dense(6), layers.Dropout(0.2), layers.Dense(3)

            def call(self, x: Any, training: bool = False) -> Any:
                return self.last(self.dropout(self.hidden(x), training=training))

        return Own()
    if kind == "convolution":
        h = layers.Reshape((2, 2, 1))(inputs)
        h = layers.RandomFlip(seed=3)(h)
        h = layers.BatchNormalization()(layers.Conv2D(3, 2)(h))
        return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(h)))
    if kind == "recurrent":
        h = layers.LSTM(3, dropout=0.1)(layers.Reshape((4, 1))(inputs))
        return keras.Model(inputs, layers.Dense(3)(h))
    h = layers.Dropout(0.3)(layers.BatchNormalization()(layers.Dense(5, activation="relu")(inputs)))
    if kind == "two outputs":
        return keras.Model(inputs, {"a": layers.Dense(3, name="a")(h), "b": layers.Dense(3, name="b")(h)})
    return keras.Model(inputs, layers.Dense(3)(h))


def _optimizer(kind: str) -> Any:
    made = {
        "adam": lambda: keras.optimizers.Adam(0.01),
        "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9, clipnorm=1.0),
        "averaged": lambda: keras.optimizers.AdamW(
            0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=7
        ),
        "accumulating": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
        "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
    }
    return made[kind]()


def _arrays(model: str) -> tuple[Any, Any]:
    x, y = samples()
    return x, {"a": y, "b": y[::-1].copy()} if model == "two outputs" else y


def _data(kind: str, model: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of ``fit`` that are the input."""
    arrays = _arrays(model)
    x, y = arrays
    slices = tf.data.Dataset.from_tensor_slices(arrays)
    if kind == "finite":
        return (slices.shuffle(64, seed=5).batch(BATCH, drop_remainder=True).prefetch(2),), {}
    if kind == "repeated":
        made = slices.shuffle(64, seed=5).repeat().batch(BATCH, drop_remainder=True)
        return (made,), {"steps_per_epoch": STEPS}
    if kind == "cached":
        return (slices.cache().shuffle(16, seed=5).shuffle(8, seed=6).batch(BATCH, drop_remainder=True),), {}
    if kind == "interleaved":
        made = tf.data.Dataset.range(4).interleave(
            lambda n: slices.shard(4, n).shuffle(12, seed=5), cycle_length=2, num_parallel_calls=2
        )
        made = made.map(lambda a, b: (a * 2.0, b), num_parallel_calls=2).batch(BATCH, drop_remainder=True)
        return (made.apply(tf.data.experimental.assert_cardinality(STEPS)),), {}
    if kind == "numpy":
        return (x, y), {"batch_size": BATCH}

    def batch(number: int, order: Any) -> Any:
        rows = order[number * BATCH : (number + 1) * BATCH]
        return x[rows], {key: value[rows] for key, value in y.items()} if isinstance(y, dict) else y[rows]

    if kind == "py dataset":

        class Batches(keras.utils.PyDataset):
            def __len__(self) -> int:
                return STEPS

            def __getitem__(self, index: int) -> Any:
                return batch(index, np.arange(len(x)))

        return (Batches(workers=2),), {"shuffle": False}

    def endless() -> Any:
        rng = np.random.default_rng(3)
        while True:
            order = rng.permutation(len(x))
            for number in range(STEPS):
                yield batch(number, order)

    return (endless(),), {"steps_per_epoch": STEPS}


def _callbacks(run: Run, names: tuple[str, ...]) -> list[Any]:
    make = {
        "early": lambda: keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True),
        "plateau": lambda: keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=5.0),
        "schedule": lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        "csv": lambda: keras.callbacks.CSVLogger(str(own_path(run, "log.csv")), append=True),
        "checkpoint": lambda: keras.callbacks.ModelCheckpoint(
            str(own_path(run, "best.weights.h5")), "loss", save_best_only=True, save_weights_only=True
        ),
        "tensorboard": lambda: keras.callbacks.TensorBoard(str(own_path(run, "board")), update_freq=2),
        "swap": lambda: keras.callbacks.SwapEMAWeights(),
        "own": smoothed,
    }
    return [make[name]() for name in names]


def _job(seed: int, run: Run) -> None:
    drawn = draw(seed)
    killed = any("SIGKILL" in strike for strike in drawn.strikes)
    run.options["save_every"] = drawn.save_every
    with run.scope():
        model = _model(drawn.model)
        model.compile(
            _optimizer(drawn.optimizer), cross_entropy(), steps_per_execution=drawn.steps_per_execution
        )
    data, arguments = _data(drawn.input, drawn.model)
    if drawn.validation:
        validation, _ = _data("finite", drawn.model)
        arguments |= {"validation_data": validation[0], "validation_freq": drawn.validation_freq}
    run.fit(model, *data, callbacks=_callbacks(run, drawn.callbacks), epochs=4, **arguments)
    if "csv" in drawn.callbacks:
        rows = own_path(run, "log.csv").read_text().splitlines()
        # After a kill before the first save the job starts from scratch, with a warning that lost rows come twice.
        run.keep(csv=list(dict.fromkeys(rows)) if killed else rows)
    if (
        "tensorboard" in drawn.callbacks and not killed
    ):  # After a kill the steps that are run again are recorded again.
        run.keep(points=points(own_path(run, "board")))


def way(seed: int) -> Way:
    """Returns the job of that number."""
    drawn = draw(seed)
    return Way(f"seed-{seed}", repr(drawn), partial(_job, seed), {drawn.strategy: Exact()})
