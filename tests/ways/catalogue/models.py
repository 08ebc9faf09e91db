"""Models of every kind that `fit` trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.ways.catalogue.basics import BATCH, dataset, samples
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, KerasFails, Warned, Way

if TYPE_CHECKING:
    from tests.ways.run import Run

EVERYWHERE = {ONE: Exact(), MIRRORED: Exact(), WORKERS: Exact()}


def _loss() -> Any:
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _two_inputs() -> Any:
    import tensorflow as tf

    x, y = samples()
    inputs = {"numbers": x, "halves": x[:, :2]}
    outputs = {"label": y, "sum": x.sum(axis=1, keepdims=True)}
    return tf.data.Dataset.from_tensor_slices((inputs, outputs)).shuffle(64, seed=5).batch(BATCH)


def _several_outputs(run: Run) -> None:
    import keras

    layers = keras.layers
    with run.scope():
        numbers, halves = keras.Input((4,), name="numbers"), keras.Input((2,), name="halves")
        hidden = layers.Dropout(0.3)(
            layers.Dense(6, activation="relu")(layers.Concatenate()([numbers, halves]))
        )
        outputs = {
            "label": layers.Dense(3, name="label")(hidden),
            "sum": layers.Dense(1, name="sum")(hidden),
        }
        model = keras.Model({"numbers": numbers, "halves": halves}, outputs)
        model.compile(
            "adam",
            loss={"label": _loss(), "sum": "mse"},
            loss_weights={"label": 1.0, "sum": 0.25},
            metrics={"label": ["accuracy"], "sum": ["mae"]},
            weighted_metrics={"sum": ["mse"]},
        )
    run.fit(model, _two_inputs(), validation_data=_two_inputs())


def _custom_train_step(run: Run) -> None:
    from tests.ways.model_classes import Noisy

    with run.scope():
        model = Noisy(from_global=run.strategy == ONE)
        model.compile("adam", loss=_loss(), metrics=["accuracy"])
    run.fit(model, dataset(), validation_data=dataset())


def _unbuilt_sequential(run: Run) -> None:
    import keras

    layers = keras.layers
    with run.scope():
        model = keras.Sequential(
            [
                layers.Dense(5, activation="relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dense(3),
            ]
        )
        model.compile("adam", loss=_loss(), metrics=["accuracy"])
    run.fit(model, dataset(), validation_data=dataset())


def _subclassed(run: Run) -> None:
    from tests.ways.model_classes import Subclassed

    with run.scope():
        model = Subclassed()
        model.compile("adam", loss=_loss(), metrics=["accuracy"])
    run.fit(model, dataset(), validation_data=dataset())


def _counting(run: Run) -> None:
    from tests.ways.model_classes import Counting

    with run.scope():
        model = Counting()
        model.compile("adam", loss=_loss(), metrics=["accuracy"])
    run.fit(model, dataset(), validation_data=dataset())


def _own_metric(run: Run) -> None:
    from tests.ways.model_classes import Largest, Subclassed

    with run.scope():
        model = Subclassed()
        model.compile("adam", loss=_loss(), metrics=[Largest()])
    run.fit(model, dataset(), validation_data=dataset())


def _plain_variables(run: Run) -> None:
    from tests.ways.model_classes import WithPlainVariables

    with run.scope():
        model = WithPlainVariables()
        model.compile("adam", loss=_loss(), metrics=["accuracy"])
    run.fit(model, dataset())
    run.keep(steps=int(model.seen.numpy()), drawn=model.generator.state.numpy())


def _drawn_outside(run: Run, kind: str) -> None:
    from tests.ways import model_classes

    with run.scope():
        model = getattr(model_classes, kind)()
        model.compile("adam", loss=_loss(), metrics=["accuracy"])
    run.fit(model, dataset())


def _adversarial(run: Run) -> None:
    from tests.ways.model_classes import Adversarial

    with run.scope():
        model = Adversarial()
        model.compile(built=True)
    run.fit(model, dataset())
    for optimizer in (model.first_optimizer, model.second_optimizer):
        run.keep(**{f"{optimizer.name} {n}": v.numpy() for n, v in enumerate(optimizer.variables)})


def _adversarial_unbuilt(run: Run) -> None:
    from tests.ways.model_classes import Adversarial

    with run.scope():
        model = Adversarial()
        model.compile(built=False)
    run.fit(model, dataset())


def _recurrent(run: Run) -> None:
    import keras

    with run.scope():
        model = keras.Sequential(
            [
                keras.Input((4, 1)),
                keras.layers.GRU(4, dropout=0.2, recurrent_dropout=0.2),
                keras.layers.Dense(3),
            ]
        )
        model.compile("adam", loss=_loss(), metrics=["accuracy"])
    run.fit(model, dataset().map(lambda x, y: (x[..., None], y)))


def _augmenting(run: Run) -> None:
    import keras
    import tensorflow as tf

    layers = keras.layers
    with run.scope():
        model = keras.Sequential(
            [
                keras.Input((2, 2, 1)),
                layers.RandomFlip(seed=3),
                layers.RandomTranslation(0.5, 0.5),
                layers.GaussianNoise(0.1),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )
        model.compile("adam", loss=_loss(), metrics=["accuracy"])
    run.fit(model, dataset().map(lambda x, y: (tf.reshape(x, (-1, 2, 2, 1)), y)))


def _lora(run: Run) -> None:
    model = _dense(run)
    with run.scope():
        model.layers[0].enable_lora(2)
        model.compile("adam", loss=_loss(), metrics=["accuracy"])
    run.fit(model, dataset())


def _quantized_lora(run: Run) -> None:
    model = _dense(run)
    with run.scope():
        model.quantize("int8")
        for layer in (model.layers[0], model.layers[-1]):
            layer.enable_lora(2)
        model.compile("adam", loss=_loss(), metrics=["accuracy"])
    run.fit(model, dataset())


def _float8(run: Run) -> None:
    model = _dense(run)
    with run.scope():
        model.quantize("float8")
        model.compile("adam", loss=_loss(), metrics=["accuracy"])
    run.fit(model, dataset())


def _dense(run: Run) -> Any:
    import keras

    layers = keras.layers
    with run.scope():
        return keras.Sequential(
            [keras.Input((4,)), layers.Dense(8, activation="relu"), layers.Dropout(0.3), layers.Dense(3)]
        )


WAYS = (
    Way(
        "several-outputs",
        "several inputs in a dictionary, several outputs and losses",
        _several_outputs,
        EVERYWHERE,
    ),
    Way(
        "custom-train-step",
        "your own `train_step`, with its own metric and random numbers",
        _custom_train_step,
        EVERYWHERE,
    ),
    Way("unbuilt-sequential", "a Sequential model that `fit` builds", _unbuilt_sequential, EVERYWHERE),
    Way("subclassed", "a subclassed model that `fit` builds", _subclassed, EVERYWHERE),
    Way(
        "counting",
        "a layer that counts its calls, in validations too",
        _counting,
        EVERYWHERE,
        strikes=("batch 9", "test_batch 3"),
    ),
    Way("own-metric", "your own metric whose result is its variable", _own_metric, EVERYWHERE),
    Way(
        "plain-variables",
        "`tf.Variable` and `tf.random.Generator` attributes of a model",
        _plain_variables,
        dict.fromkeys(EVERYWHERE, Exact()),
    ),
    Way(
        "random-op-in-step",
        "a `train_step` with `tf.random.normal`",
        lambda run: _drawn_outside(run, "DrawsFromTensorFlow"),
        dict.fromkeys(
            EVERYWHERE,
            Warned(
                "its sequence restarts in each process. Use `keras.random` with a `SeedGenerator`",
                r"NOT exact.*RandomStandardNormal in train_step.*keras\.random\.SeedGenerator",
            ),
        ),
    ),
    Way(
        "global-generator-in-step",
        "a `train_step` with a seeded `tf.random.Generator` that is not the model's",
        lambda run: _drawn_outside(run, "DrawsFromGlobalGenerator"),
        EVERYWHERE,
    ),
    Way(
        "own-optimizers",
        "a GAN: its own optimizers besides the one of `compile`",
        _adversarial,
        EVERYWHERE,
    ),
    Way(
        "own-optimizers-unbuilt",
        "the same, with optimizers that nothing has built before `fit`",
        _adversarial_unbuilt,
        {
            ONE: Exact(),
            MIRRORED: KerasFails(
                "what an optimizer makes within a replica's step cannot be used in it",
                "must feed a value for placeholder",
            ),
            WORKERS: Exact(),
        },
    ),
    Way("recurrent", "a recurrent layer with dropout", _recurrent, EVERYWHERE),
    Way("augmenting", "random augmentation layers in the model", _augmenting, EVERYWHERE),
    Way("lora", "LoRA (`layer.enable_lora`)", _lora, EVERYWHERE),
    Way(
        "quantized-lora",
        "LoRA on layers quantized to int8",
        _quantized_lora,
        {
            ONE: Exact(),
            MIRRORED: Exact(),
            WORKERS: KerasFails(
                "TensorFlow cannot send int8 from worker to worker", "attr 'T' of int8 is not"
            ),
        },
    ),
    Way("float8", 'training in float8 (`model.quantize("float8")`)', _float8, EVERYWHERE),
)
