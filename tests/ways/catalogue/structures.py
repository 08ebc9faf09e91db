"""Models with the structure of Keras' examples: own train steps over models inside, several optimizers, odd batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.ways.catalogue.basics import BATCH, STEPS, compiled, cross_entropy, dataset, fit, samples
from tests.ways.late import Late, keras, tf
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, KerasFails, Run, Verdict, Way

classes, recorder = Late("tests.ways.structure_classes"), Late("tests.ways.recorder")

ALONE = {ONE: Exact()}
_NO_CALL = KerasFails(
    "it builds every model by a call() under a strategy", "does not have a `call|automatically build"
)


def _unlabelled() -> Any:
    return dataset().map(lambda x, y: x)


def _trained(
    run: Run, make: Callable[[], Any], data: Any, *arguments: Any, fit: Any = None, **options: Any
) -> Any:
    """Compiles a model with what its own `compile` takes, fits it, and keeps how often its step was traced."""
    with run.scope():
        model = make()
        model.compile(*arguments, **options)
    run.fit(model, data, **(fit or {}))
    if not model.run_eagerly:  # There, each step is Python's.
        run.keep(traces=model.traces[0])
    return model


def _vae(data: Callable[[], Any] = _unlabelled, **options: Any) -> Callable[[Run], None]:
    return lambda run: _trained(run, lambda: classes.Autoencoder(), data(), "adam", **options)


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
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> Any:
            return samples()[0][index * BATCH : (index + 1) * BATCH]

    return Batches()


def _gan(*, penalty: bool = False, **options: Any) -> Callable[[Run], None]:
    def job(run: Run) -> None:
        with run.scope():
            parts = {name: keras.optimizers.Adam(0.01, name=f"{name}_adam") for name in ("judge", "maker")}
        _trained(run, lambda: classes.Rivals(penalty=penalty), _unlabelled(), parts, **options)
        run.keep_optimizers(*parts.values())

    return job


def _diffusion(run: Run) -> None:
    def make() -> Any:
        model = classes.Diffusion()
        model.normalizer.adapt(samples()[0])
        return model

    _trained(run, make, _unlabelled(), "adam", fit={"validation_data": _unlabelled()})


def _contrastive(run: Run) -> None:
    with run.scope():
        optimizers = [keras.optimizers.Adam(name=name) for name in ("contrast", "probe")]
    pairs = tf.data.Dataset.zip((_unlabelled(), dataset()))
    _trained(run, lambda: classes.Contrastive(), pairs, *optimizers)
    run.keep_optimizers(*optimizers)


def _triplets(run: Run) -> None:
    parts = tf.data.Dataset.zip((_unlabelled(), _unlabelled(), _unlabelled()))
    _trained(run, lambda: classes.Triplets(), parts, "adam")


def _metric_learning(run: Run) -> None:
    def make() -> Any:
        inputs = keras.Input((4,))
        return classes.Metric(inputs, keras.layers.Dense(3)(inputs))

    pairs = tf.data.Dataset.zip((_unlabelled(), _unlabelled())).map(lambda a, b: tf.stack([a, b + 0.1]))
    _trained(run, make, pairs, "adam", loss=cross_entropy())


def _nested_logs(by_metric: bool) -> Callable[[Run], None]:
    def job(run: Run) -> None:
        made = compiled(run, lambda: classes.NestedLogs(by_metric=by_metric))
        fit(run, made)
        run.keep(traces=made.traces[0])

    return job


def _eager(run: Run) -> None:
    from tests.ways.model_classes import Subclassed

    fit(run, compiled(run, Subclassed, run_eagerly=True))


def _optimizer_elsewhere(run: Run) -> None:
    optimizer, noise = keras.optimizers.Adam(0.01), tf.random.Generator.from_seed(5)

    class Borrowing(classes.Autoencoder):
        def apply(self, unused: Any, tape: Any, loss: Any, variables: Any) -> None:
            super().apply(optimizer, tape, loss, variables)
            self.decoder.weights[-1].assign_add(0.01 * noise.normal((4,)))

    _trained(run, Borrowing, _unlabelled())
    run.keep_optimizers(optimizer)
    run.keep(drawn=noise.state.numpy())


def _value_set_by_a_callback(run: Run) -> None:
    class Annealed(classes.Autoencoder):
        weight = 0.0

        def train_step(self, data: Any) -> Any:
            return {**super().train_step(data * (1.0 + self.weight)), "weight": self.weight}

    class Set(recorder.Stateless):
        def on_train_begin(self, logs: Any = None) -> None:
            self.model.weight = 0.5

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
    Way("vae-arrays", "the same on arrays", _vae(_arrays, fit={"batch_size": BATCH}), ALONE),
    Way("vae-py-dataset", "the same on a `PyDataset`", _vae(_py_dataset), ALONE),
    Way("vae-generator", "the same on a generator", _vae(_generator, fit={"steps_per_epoch": STEPS}), ALONE),
    Way("vae-unknown-length", "the same on data of unknown length", _vae(_of_unknown_length), ALONE),
    Way(
        "gan",
        "a GAN: networks built late, two optimizers in its own `compile`",
        _gan(),
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
        strikes=("batch 9", "test_batch 3"),
    ),
    Way(
        "logs-by-metric",
        "logs by `{m.name: m.result() for m in self.metrics}`",
        _nested_logs(by_metric=True),
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
        _gan(run_eagerly=True),
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
