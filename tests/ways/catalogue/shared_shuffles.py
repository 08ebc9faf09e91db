"""Training data whose shuffle is used elsewhere, too: each new iterator of either one changes the order of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.ways.catalogue.basics import BATCH, model, samples
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, Warned, Way

if TYPE_CHECKING:
    from tests.ways.run import Run

EVERYWHERE = {ONE: Exact(), MIRRORED: Exact(), WORKERS: Exact()}

HELD_OUT = 2 * BATCH

STRIKES = ("batch 9", "test_batch 3", "batch 2", "test 0")
"""In the second epoch, in a validation, in the epoch after it, and where a validation begins."""


def _whole(count: int = 64) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(samples(count))


def _batched(data: Any) -> Any:
    return data.batch(BATCH, drop_remainder=True)


def _split(
    shuffle: Callable[[Any], Any], train: Callable[[Any], Any] = _batched, **arguments: Any
) -> Callable[[Run], None]:
    """Holds back the first samples of a shuffled dataset for the validation, as is usually done."""

    def job(run: Run) -> None:
        shuffled = shuffle(_whole())
        data, held_out = train(shuffled.skip(HELD_OUT)), _batched(shuffled.take(HELD_OUT))
        run.fit(model(run), data, validation_data=held_out, epochs=4, **arguments)

    job.__module__ = __name__
    return job


def _once(data: Any) -> Any:
    return data.shuffle(64, seed=5)


def _twice(data: Any) -> Any:
    return data.shuffle(64, seed=5).map(lambda x, y: (x * 2.0, y)).shuffle(16, seed=6)


def _prefetched(data: Any) -> Any:
    return _batched(data.map(lambda x, y: (x * 2.0, y), num_parallel_calls=2)).prefetch(2)


def _cached(data: Any) -> Any:
    return _batched(data).cache()


def _same(run: Run) -> None:
    data = _batched(_once(_whole()))
    run.fit(model(run), data, validation_data=data, epochs=4)


def _onlooker(look: Callable[[Any, Any], None], data: Any) -> Any:
    """A callback that goes through the training data at the beginning and at the end of each epoch."""
    import keras

    class Onlooker(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            look(self.model, data)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            look(self.model, data)

        def get_state(self) -> dict[str, Any]:
            return {}

        def set_state(self, state: dict[str, Any]) -> None:
            pass

    return Onlooker()


def _predict(model: Any, data: Any) -> None:
    model.predict(data, verbose=0, steps=1)


def _loop(model: Any, data: Any) -> None:
    for _ in data.take(1):
        pass


def _looked_at(look: Callable[[Any, Any], None], data: Callable[[Any], Any] = _once) -> Callable[[Run], None]:
    def job(run: Run) -> None:
        shuffled = _batched(data(_whole()))
        held_out = _batched(_whole().take(HELD_OUT))
        run.fit(
            model(run), shuffled, validation_data=held_out, epochs=4, callbacks=[_onlooker(look, shuffled)]
        )

    job.__module__ = __name__
    return job


def _looked_at_repeated(run: Run) -> None:
    repeated = _batched(_once(_whole()).repeat())
    run.fit(model(run), repeated, steps_per_epoch=6, epochs=4, callbacks=[_onlooker(_loop, repeated)])


def _split_repeated(run: Run) -> None:
    shuffled = _once(_whole())
    data, held_out = _batched(shuffled.skip(HELD_OUT).repeat()), _batched(shuffled.take(HELD_OUT))
    run.fit(model(run), data, validation_data=held_out, steps_per_epoch=4, epochs=4)


def _in_another_thread(run: Run) -> None:
    """A callback that has a thread go through the data in the middle of an epoch."""
    import threading

    import keras

    data = _batched(_once(_whole()))

    class InThread(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                thread = threading.Thread(target=_loop, args=(None, data))
                thread.start()
                thread.join()

        def get_state(self) -> dict[str, Any]:
            return {}

        def set_state(self, state: dict[str, Any]) -> None:
            pass

    held_out = _batched(_whole().take(HELD_OUT))
    run.fit(model(run), data, validation_data=held_out, epochs=4, callbacks=[InThread()])


def _several_fits(run: Run) -> None:
    """Three fits on one split of one shuffle; the second one has its own model."""
    shuffled = _once(_whole())
    data, held_out = _batched(shuffled.skip(HELD_OUT)), _batched(shuffled.take(HELD_OUT))
    first, second = model(run), model(run)
    for made in (first, second, first):
        run.fit(made, data, validation_data=held_out, epochs=2)


WAYS = (
    Way(
        "split-shuffle",
        "tf.data, `take` and `skip` of one shuffled dataset for validation and training",
        _split(_once),
        EVERYWHERE,
        strikes=STRIKES,
    ),
    Way(
        "split-two-shuffles",
        "the same with one shuffle below another",
        _split(_twice),
        EVERYWHERE,
        strikes=STRIKES,
    ),
    Way(
        "split-prefetched",
        "the same with a parallel `map` and `prefetch`",
        _split(_once, _prefetched),
        EVERYWHERE,
        strikes=STRIKES,
    ),
    Way(
        "split-cached",
        "the same with `cache()` in memory after it",
        _split(_once, _cached),
        EVERYWHERE,
        strikes=STRIKES,
    ),
    Way(
        "split-validation-steps",
        "the same with `validation_steps`",
        _split(_once, validation_steps=1),
        EVERYWHERE,
        strikes=("batch 9", "test_batch 1", "batch 2", "test 0"),
    ),
    Way(
        "split-steps-per-epoch",
        "the same with `steps_per_epoch` that continue in the next epoch",
        _split(_once, steps_per_epoch=3),
        EVERYWHERE,
        strikes=("batch 4", "test_batch 1", "batch 2", "test 0"),
    ),
    Way("same-data", "one shuffled dataset for training and validation", _same, EVERYWHERE, strikes=STRIKES),
    Way(
        "predict-on-training-data",
        "a callback that predicts on the shuffled training data in each epoch",
        _looked_at(_predict),
        EVERYWHERE,
        strikes=("batch 9", "epoch 1", "test_batch 1", "batch 3"),
    ),
    Way(
        "loop-over-training-data",
        "a callback that goes through the shuffled training data itself",
        _looked_at(_loop),
        EVERYWHERE,
        strikes=("batch 9", "epoch 1", "test_batch 1", "batch 3"),
    ),
    Way(
        "loop-over-two-shuffles",
        "the same with one shuffle below another",
        _looked_at(_loop, _twice),
        EVERYWHERE,
        strikes=("batch 9", "epoch 1", "test_batch 1", "batch 3"),
    ),
    Way(
        "loop-in-a-thread",
        "the same in another thread, in the middle of an epoch",
        _in_another_thread,
        EVERYWHERE,
        strikes=("batch 9", "epoch 1", "test_batch 1", "batch 3"),
    ),
    Way(
        "split-repeated",
        "`take` and `skip` of one shuffled dataset, with `.repeat()` after it",
        _split_repeated,
        dict.fromkeys(
            EVERYWHERE,
            Warned(
                "a repetition reshuffles ahead of training, at a moment left to chance. Split before the shuffle",
                "NOT exact.*share a shuffle that is repeated",
            ),
        ),
        strikes=("batch 9", "test_batch 1"),
    ),
    Way(
        "loop-over-repeated",
        "a callback that goes through shuffled training data with `.repeat()`",
        _looked_at_repeated,
        dict.fromkeys(
            EVERYWHERE,
            Warned(
                "a repetition reshuffles ahead of training, at a moment left to chance. Leave out `.repeat()`",
                "NOT exact.*something else than this fit makes an iterator",
                at_once=True,
            ),
        ),
    ),
    Way(
        "several-fits-one-split",
        "several fits of several models on one such split",
        _several_fits,
        EVERYWHERE,
        strikes=("batch 3", "batch 8", "test_batch 2", "batch 5"),
    ),
)
