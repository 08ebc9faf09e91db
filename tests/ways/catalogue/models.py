"""Models of every kind that `fit` trains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.ways.catalogue.basics import BATCH, compiled, cross_entropy, dataset, fit, samples
from tests.ways.late import Late, keras, tf
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, KerasFails, Run, Warned, Way, everywhere

classes = Late("tests.ways.model_classes")


def _two_inputs() -> Any:
    x, y = samples()
    inputs = {"numbers": x, "halves": x[:, :2]}
    outputs = {"label": y, "sum": x.sum(axis=1, keepdims=True)}
    return tf.data.Dataset.from_tensor_slices((inputs, outputs)).shuffle(64, seed=5).batch(BATCH)


def _branches() -> Any:
    layers = keras.layers
    numbers, halves = keras.Input((4,), name="numbers"), keras.Input((2,), name="halves")
    hidden = layers.Dropout(0.3)(layers.Dense(6, activation="relu")(layers.Concatenate()([numbers, halves])))
    outputs = {"label": layers.Dense(3, name="label")(hidden), "sum": layers.Dense(1, name="sum")(hidden)}
    return keras.Model({"numbers": numbers, "halves": halves}, outputs)


def _several_outputs(run: Run) -> None:
    made = compiled(
        run,
        _branches,
        loss={"label": cross_entropy(), "sum": "mse"},
        loss_weights={"label": 1.0, "sum": 0.25},
        metrics={"label": ["accuracy"], "sum": ["mae"]},
        weighted_metrics={"sum": ["mse"]},
    )
    run.fit(made, _two_inputs(), validation_data=_two_inputs())


def _unbuilt() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Dense(5, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )


def _validated(make: Callable[[Run], Any]) -> Callable[[Run], None]:
    return lambda run: fit(run, compiled(run, lambda: make(run)))


def _own_metric(run: Run) -> None:
    with run.scope():
        metrics = [classes.Largest()]
    fit(run, compiled(run, lambda: classes.Subclassed(), metrics=metrics))


def _plain_variables(run: Run) -> None:
    model = compiled(run, lambda: classes.WithPlainVariables())
    run.fit(model, dataset())
    run.keep(steps=int(model.seen.numpy()), drawn=model.generator.state.numpy())


def _drawn_outside(kind: str) -> Callable[[Run], None]:
    return lambda run: run.fit(compiled(run, lambda: getattr(classes, kind)()), dataset())


def _adversarial(run: Run, *, built: bool) -> None:
    with run.scope():
        model = classes.Adversarial()
        model.compile(built=built)
    run.fit(model, dataset())
    run.keep_optimizers(model.first_optimizer, model.second_optimizer)


def _sequential(*layers: Any) -> Any:
    return keras.Sequential([*layers, keras.layers.Dense(3)])


def _recurrent(run: Run) -> None:
    def make() -> Any:
        return _sequential(keras.Input((4, 1)), keras.layers.GRU(4, dropout=0.2, recurrent_dropout=0.2))

    run.fit(compiled(run, make), dataset().map(lambda x, y: (x[..., None], y)))


def _augmenting(run: Run) -> None:
    def make() -> Any:
        layers = keras.layers
        return _sequential(
            keras.Input((2, 2, 1)),
            layers.RandomFlip(seed=3),
            layers.RandomTranslation(0.5, 0.5),
            layers.GaussianNoise(0.1),
            layers.Flatten(),
        )

    run.fit(compiled(run, make), dataset().map(lambda x, y: (tf.reshape(x, (-1, 2, 2, 1)), y)))


def _adapted(*adapted: int, quantized: str = "") -> Callable[[Run], None]:
    """Quantizes a model, and gives layers of it, by their places, an adapter."""

    def make() -> Any:
        layers = keras.layers
        made = _sequential(keras.Input((4,)), layers.Dense(8, activation="relu"), layers.Dropout(0.3))
        if quantized:
            made.quantize(quantized)
        for place in adapted:
            made.layers[place].enable_lora(2)
        return made

    return lambda run: run.fit(compiled(run, make), dataset())


WAYS = (
    Way("several-outputs", "several inputs in a dictionary, several outputs and losses", _several_outputs),
    Way(
        "custom-train-step",
        "your own `train_step`, with its own metric and random numbers",
        _validated(lambda run: classes.Noisy(from_global=run.strategy == ONE)),
    ),
    Way("unbuilt-sequential", "a Sequential model that `fit` builds", _validated(lambda run: _unbuilt())),
    Way("subclassed", "a subclassed model that `fit` builds", _validated(lambda run: classes.Subclassed())),
    Way(
        "counting",
        "a layer that counts its calls, in validations too",
        _validated(lambda run: classes.Counting()),
        strikes=("batch 9", "test_batch 3"),
    ),
    Way("own-metric", "your own metric whose result is its variable", _own_metric),
    Way("plain-variables", "`tf.Variable` and `tf.random.Generator` attributes of a model", _plain_variables),
    Way(
        "random-op-in-step",
        "a `train_step` with `tf.random.normal`",
        _drawn_outside("DrawsFromTensorFlow"),
        everywhere(
            Warned(
                "its sequence restarts in each process. Use `keras.random` with a `SeedGenerator`",
                r"NOT exact.*RandomStandardNormal in train_step.*keras\.random\.SeedGenerator",
            )
        ),
    ),
    Way(
        "global-generator-in-step",
        "a `train_step` with a seeded `tf.random.Generator` that is not the model's",
        _drawn_outside("DrawsFromGlobalGenerator"),
    ),
    Way(
        "own-optimizers",
        "a GAN: its own optimizers besides the one of `compile`",
        partial(_adversarial, built=True),
    ),
    Way(
        "own-optimizers-unbuilt",
        "a GAN with optimizers that nothing has built before `fit`",
        partial(_adversarial, built=False),
        {
            ONE: Exact(),
            MIRRORED: KerasFails(
                "variables that an optimizer creates within a replica's step cannot be used in it",
                "must feed a value for placeholder",
            ),
            WORKERS: Exact(),
        },
    ),
    Way("recurrent", "a recurrent layer with dropout", _recurrent),
    Way("augmenting", "random augmentation layers in the model", _augmenting),
    Way("lora", "LoRA (`layer.enable_lora`)", _adapted(0)),
    Way(
        "quantized-lora",
        "LoRA on layers quantized to int8",
        _adapted(0, -1, quantized="int8"),
        {
            ONE: Exact(),
            MIRRORED: Exact(),
            WORKERS: KerasFails(
                "TensorFlow cannot send int8 from worker to worker", "attr 'T' of int8 is not"
            ),
        },
    ),
    Way("float8", 'training in float8 (`model.quantize("float8")`)', _adapted(quantized="float8")),
)
