"""Models with the structure of Keras' examples: own train steps over models inside, several optimizers, odd batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tests.ways.catalogue.basics import BATCH, STEPS, dataset, samples
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, KerasFails, Verdict, Way

if TYPE_CHECKING:
    from tests.ways.run import Run

ALONE = {ONE: Exact()}
_NO_CALL = KerasFails(
    "it builds every model by a call() under a strategy", "does not have a `call|automatically build"
)


def _kept(run: Run, model: Any, optimizers: Any = ()) -> None:
    if not model.run_eagerly:  # There, each step is Python's.
        run.keep(traces=model.traces[0])
    for optimizer in optimizers:
        run.keep(**{f"{optimizer.name} {n}": v.numpy() for n, v in enumerate(optimizer.variables)})


def _unlabelled() -> Any:
    return dataset().map(lambda x, y: x)


def _vae(**options: Any) -> Callable[[Run], None]:
    def job(run: Run) -> None:
        from tests.ways.structure_classes import Autoencoder

        data, arguments = options.get("data", _unlabelled)(), options.get("fit", {})
        with run.scope():
            model = Autoencoder()
            model.compile(
                "adam", **{name: value for name, value in options.items() if name not in ("data", "fit")}
            )
        run.fit(model, data, **arguments)
        _kept(run, model)

    return job


def _arrays() -> Any:
    return samples()[0]


def _generator() -> Iterator[Any]:
    x, _ = samples()
    while True:
        for number in range(STEPS):
            yield (x[number * BATCH : (number + 1) * BATCH],)


def _of_unknown_length() -> Any:
    return _unlabelled().filter(lambda x: True)


def _py_dataset() -> Any:
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> Any:
            return samples()[0][index * BATCH : (index + 1) * BATCH]

    return Batches()


def _gan(penalty: bool, eager: bool = False) -> Callable[[Run], None]:
    def job(run: Run) -> None:
        import keras

        from tests.ways.structure_classes import Rivals

        with run.scope():
            model = Rivals(penalty=penalty)
            parts = {name: keras.optimizers.Adam(0.01, name=f"{name}_adam") for name in ("judge", "maker")}
            model.compile(parts)
            model.run_eagerly = eager
        run.fit(model, _unlabelled())
        _kept(run, model, parts.values())

    return job


def _diffusion(run: Run) -> None:
    from tests.ways.structure_classes import Diffusion

    with run.scope():
        model = Diffusion()
        model.normalizer.adapt(samples()[0])
        model.compile("adam")
    run.fit(model, _unlabelled(), validation_data=_unlabelled())
    _kept(run, model)


def _contrastive(run: Run) -> None:
    import keras
    import tensorflow as tf

    from tests.ways.structure_classes import Contrastive

    with run.scope():
        model = Contrastive()
        optimizers = [keras.optimizers.Adam(name=name) for name in ("contrast", "probe")]
        model.compile(*optimizers)
    run.fit(model, tf.data.Dataset.zip((_unlabelled(), dataset())))
    _kept(run, model, optimizers)


def _triplets(run: Run) -> None:
    import tensorflow as tf

    from tests.ways.structure_classes import Triplets

    with run.scope():
        model = Triplets()
        model.compile("adam")
    run.fit(model, tf.data.Dataset.zip((_unlabelled(), _unlabelled(), _unlabelled())))
    _kept(run, model)


def _metric_learning(run: Run) -> None:
    import keras
    import tensorflow as tf

    from tests.ways.structure_classes import Metric

    with run.scope():
        inputs = keras.Input((4,))
        model = Metric(inputs, keras.layers.Dense(3)(inputs))
        model.compile("adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    pairs = tf.data.Dataset.zip((_unlabelled(), _unlabelled())).map(lambda a, b: tf.stack([a, b + 0.1]))
    run.fit(model, pairs)
    _kept(run, model)


def _nested_logs(by_metric: bool) -> Callable[[Run], None]:
    def job(run: Run) -> None:
        import keras

        from tests.ways.structure_classes import NestedLogs

        with run.scope():
            model = NestedLogs(by_metric=by_metric)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("adam", loss=loss, metrics=["accuracy"])
        run.fit(model, dataset(), validation_data=dataset())
        _kept(run, model)

    return job


def _eager(run: Run) -> None:
    import keras

    from tests.ways.model_classes import Subclassed

    with run.scope():
        model = Subclassed()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss=loss, metrics=["accuracy"], run_eagerly=True)
    run.fit(model, dataset(), validation_data=dataset())


def _optimizer_elsewhere(run: Run) -> None:
    import keras
    import tensorflow as tf

    from tests.ways.structure_classes import Autoencoder

    optimizer, noise = keras.optimizers.Adam(0.01), tf.random.Generator.from_seed(5)

    class Borrowing(Autoencoder):
        def apply(self, unused: Any, tape: Any, loss: Any, variables: Any) -> None:
            super().apply(optimizer, tape, loss, variables)
            self.decoder.weights[-1].assign_add(0.01 * noise.normal((4,)))

    with run.scope():
        model = Borrowing()
        model.compile()
    run.fit(model, _unlabelled())
    _kept(run, model, [optimizer])
    run.keep(drawn=noise.state.numpy())


def _value_set_by_a_callback(run: Run) -> None:
    import keras

    from tests.ways.structure_classes import Autoencoder

    class Annealed(Autoencoder):
        weight = 0.0

        def train_step(self, data: Any) -> Any:
            return {**super().train_step(data * (1.0 + self.weight)), "weight": self.weight}

    class Set(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.model.weight = 0.5

        def get_state(self) -> Any:
            return {}

        def set_state(self, state: Any) -> None:
            pass

    with run.scope():
        model = Annealed()
        model.weight = 0.25
        model.compile("adam")
    run.fit(model, _unlabelled(), callbacks=[Set()])


def _under_strategies(verdict: Verdict) -> dict[str, Verdict]:
    return {ONE: Exact(), MIRRORED: verdict, WORKERS: verdict}


WAYS = (
    Way(
        "vae",
        "a VAE: no `call()`, its own `train_step` over an encoder and a decoder",
        _vae(),
        _under_strategies(_NO_CALL),
    ),
    Way(
        "vae-executions",
        "the same with `steps_per_execution`",
        _vae(steps_per_execution=2),
        ALONE,
        strikes=("batch 5",),
    ),
    Way("vae-jit", "the same with `jit_compile=True`", _vae(jit_compile=True), ALONE),
    Way("vae-arrays", "the same on arrays", _vae(data=_arrays, fit={"batch_size": BATCH}), ALONE),
    Way("vae-py-dataset", "the same on a `PyDataset`", _vae(data=_py_dataset), ALONE),
    Way(
        "vae-generator",
        "the same on a generator",
        _vae(data=_generator, fit={"steps_per_epoch": STEPS}),
        ALONE,
    ),
    Way("vae-unknown-length", "the same on data of unknown length", _vae(data=_of_unknown_length), ALONE),
    Way(
        "gan",
        "a GAN: networks built late, two optimizers in its own `compile`",
        _gan(penalty=False),
        _under_strategies(_NO_CALL),
    ),
    Way("gan-penalty", "a WGAN-GP: one of them trains more often", _gan(penalty=True), ALONE),
    Way(
        "diffusion",
        "a diffusion model with a moving average of its network",
        _diffusion,
        ALONE,
        strikes=("batch 9", "test_batch 3"),
    ),
    Way("contrastive", "SimCLR: batches of two datasets, two optimizers", _contrastive, ALONE),
    Way("triplets", "triplets: a batch of three parts without a target", _triplets, ALONE),
    Way(
        "metric-learning",
        "metric learning: batches of pairs, the loss of `compile` without targets",
        _metric_learning,
        ALONE,
    ),
    Way(
        "nested-logs",
        "logs of a `train_step` in a dictionary within a dictionary",
        _nested_logs(by_metric=False),
        {ONE: Exact(), MIRRORED: Exact(), WORKERS: Exact()},
        strikes=("batch 9", "test_batch 3"),
    ),
    Way(
        "logs-by-metric",
        "logs by `{m.name: m.result() for m in self.metrics}`",
        _nested_logs(by_metric=True),
        {ONE: Exact(), MIRRORED: Exact(), WORKERS: Exact()},
        strikes=("batch 9", "test_batch 3"),
    ),
    Way(
        "eager",
        "`run_eagerly=True`, a model that `fit` builds",
        _eager,
        {ONE: Exact(), MIRRORED: Exact()},
        strikes=("batch 0", "batch 9", "test_batch 3", "epoch 1"),
    ),
    Way(
        "eager-gan",
        "`run_eagerly=True`, a GAN of which nothing is built before `fit`",
        _gan(penalty=False, eager=True),
        ALONE,
        strikes=("batch 3", "batch 9"),
    ),
    Way(
        "optimizer-elsewhere",
        "an optimizer and a `tf.random.Generator` that the model does not hold, as in global variables",
        _optimizer_elsewhere,
        ALONE,
    ),
    Way(
        "value-set-by-callback",
        "a Python value of the model that a callback sets before the first step",
        _value_set_by_a_callback,
        ALONE,
    ),
)
