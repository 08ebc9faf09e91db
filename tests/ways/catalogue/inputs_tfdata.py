"""Pipelines of tf.data: shuffles, repetition, lengths, parallel reading, Python code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.ways.catalogue.basics import BATCH, STEPS, fit, model, samples, slices
from tests.ways.late import tf
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, Run, Warned, Way, everywhere

GIVES_THE_SAME = "its Python code gives the same data whenever it is called"


def job(make: Callable[[], Any], **fit_with: Any) -> Callable[[Run], None]:
    """Returns a job that fits the small model to what `make` returns, with validation."""
    return lambda run: fit(run, model(run), make(), **fit_with)


def forget_seeds() -> None:
    """Makes TensorFlow as it is in a script that sets no seed."""
    tf.random.set_seed(None)


def _several_shuffles() -> Any:
    return slices().shuffle(20, seed=1).map(lambda x, y: (x * 2, y)).batch(BATCH).shuffle(4, seed=2)


def _own_seed() -> Any:
    return slices().shuffle(64).batch(BATCH)  # From keras.utils.set_random_seed.


def _unseeded() -> Any:
    forget_seeds()
    return slices().shuffle(64).batch(BATCH)


def _endless() -> Any:
    return slices().shuffle(64, seed=5).repeat().batch(BATCH, drop_remainder=True).prefetch(2)


def _partial_batch() -> Any:
    return slices().take(45).shuffle(64, seed=5).batch(BATCH)


def _unknown_length() -> Any:
    return slices().shuffle(64, seed=5).filter(lambda x, y: y > 0).batch(4)


def _known_by_word() -> Any:
    kept = int((samples()[1] > 0).sum())
    return _unknown_length().apply(tf.data.experimental.assert_cardinality(-(-kept // 4)))


def _shard(number: Any) -> Any:
    return slices().shard(4, number)


def _parallel() -> Any:
    shards = tf.data.Dataset.range(4).shuffle(4, seed=3)
    read = shards.interleave(_shard, cycle_length=2, num_parallel_calls=2)
    shuffled = read.shuffle(16, seed=4).map(lambda x, y: (x + 1, y), num_parallel_calls=2).batch(BATCH)
    return shuffled.apply(tf.data.experimental.assert_cardinality(STEPS)).prefetch(2)


def _shuffle_inside() -> Any:
    shards = tf.data.Dataset.range(4)
    read = shards.interleave(lambda n: _shard(n).shuffle(16, seed=9), cycle_length=2).batch(BATCH)
    return read.apply(tf.data.experimental.assert_cardinality(STEPS))


def _unseeded_inside() -> Any:
    forget_seeds()
    shards = tf.data.Dataset.range(4)
    return shards.interleave(lambda n: _shard(n).shuffle(16), cycle_length=2).batch(BATCH)


def _any_order() -> Any:
    shards = tf.data.Dataset.range(4)
    read = shards.interleave(_shard, cycle_length=2, num_parallel_calls=2, deterministic=False)
    return read.batch(BATCH)


def _mixed() -> Any:
    parts = [slices().shuffle(32, seed=seed).repeat() for seed in (1, 2)]
    return tf.data.Dataset.sample_from_datasets(parts, [0.7, 0.3], seed=6).batch(BATCH)


def _python_function() -> Any:
    def double(x: Any, y: Any) -> Any:
        (doubled,) = tf.py_function(lambda values: [values * 2], [x], [tf.float32])
        doubled.set_shape((4,))
        return doubled, y

    return slices().shuffle(64, seed=5).map(double).batch(BATCH)


def _from_generator() -> Any:
    def each() -> Any:
        yield from zip(*samples(), strict=True)

    signature = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((), tf.int32))
    data = tf.data.Dataset.from_generator(each, output_signature=signature)
    return data.shuffle(64, seed=5).batch(BATCH)


def _from_function(run: Run, **fit: Any) -> None:
    strategy = run.tf_strategy

    def per_worker(context: Any) -> Any:
        data = slices().shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(64, seed=5)
        data = data.repeat() if fit else data
        return data.batch(context.get_per_replica_batch_size(BATCH), drop_remainder=True)

    run.fit(model(run), strategy.distribute_datasets_from_function(per_worker), **fit)


_SHUFFLES_UNSEEDED = Warned(
    "a `shuffle` without a seed draws a different order after a restart. Pass `seed=`, or call "
    "`keras.utils.set_random_seed` first",
    "NOT exact.*ha(?:s|ve) no seed",
)
LENGTH = Warned(
    "undisturbed runs differ as well: Keras finds the end by a step that fails, which some replicas count and others "
    "do not. Use `assert_cardinality`, or `steps_per_epoch`",
    "NOT exact.*length of the training data is not known",
)
_TOLD = Exact("its length is set, by `assert_cardinality` or `steps_per_epoch`")

WAYS = (
    Way("several-shuffles", "tf.data, several seeded shuffles", job(_several_shuffles)),
    Way(
        "own-seed",
        "tf.data, `shuffle` without `seed=`, after `keras.utils.set_random_seed`",
        job(_own_seed),
    ),
    Way("unseeded", "tf.data, `shuffle` without any seed", job(_unseeded), everywhere(_SHUFFLES_UNSEEDED)),
    Way("endless", "tf.data, `.repeat()` and `steps_per_epoch`", job(_endless, steps_per_epoch=STEPS)),
    Way("partial-batch", "tf.data, a last batch that is smaller", job(_partial_batch)),
    Way(
        "unknown-length",
        "tf.data of unknown length (`filter`)",
        job(_unknown_length),
        {ONE: Exact(), MIRRORED: LENGTH, WORKERS: LENGTH},
    ),
    Way("known-by-word", "tf.data, `filter` and `assert_cardinality`", job(_known_by_word)),
    Way(
        "parallel",
        "tf.data, `interleave`, parallel `map`, `prefetch`",
        job(_parallel),
        {ONE: Exact(), MIRRORED: _TOLD, WORKERS: _TOLD},
    ),
    Way(
        "shuffle-inside",
        "tf.data, a seeded shuffle inside `interleave`",
        job(_shuffle_inside),
        {ONE: Exact(), MIRRORED: _TOLD, WORKERS: _TOLD},
    ),
    Way(
        "unseeded-inside",
        "tf.data, an unseeded shuffle inside `interleave`",
        job(_unseeded_inside),
        everywhere(_SHUFFLES_UNSEEDED),
    ),
    Way(
        "any-order",
        "tf.data, `deterministic=False`",
        job(_any_order),
        everywhere(Warned("the order differs each time. Leave it out", "NOT exact.*deterministic=False")),
    ),
    Way("mixed", "tf.data, `sample_from_datasets(seed=...)`", job(_mixed, steps_per_epoch=STEPS)),
    Way(
        "python-function",
        "tf.data, `tf.py_function`",
        job(_python_function),
        everywhere(Exact(GIVES_THE_SAME)),
    ),
    Way(
        "from-generator",
        "tf.data, `from_generator`",
        job(_from_generator),
        {ONE: Exact(GIVES_THE_SAME), MIRRORED: LENGTH, WORKERS: LENGTH},
    ),
    Way(
        "from-function",
        "`distribute_datasets_from_function`, `.repeat()` and `steps_per_epoch`",
        lambda run: _from_function(run, steps_per_epoch=STEPS),
        {MIRRORED: Exact(), WORKERS: Exact()},
    ),
    Way(
        "from-function-once",
        "`distribute_datasets_from_function` without them",
        _from_function,
        {MIRRORED: LENGTH, WORKERS: LENGTH},
    ),
)
