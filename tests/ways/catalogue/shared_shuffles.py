"""Training data whose shuffle is used elsewhere, too: each new iterator of either one changes the order of both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.ways.catalogue.basics import BATCH, model, samples
from tests.ways.late import Late, tf
from tests.ways.way import Run, Warned, Way, everywhere

recorder = Late("tests.ways.recorder")

HELD_OUT = 2 * BATCH

STRIKES = ("batch 9", "test_batch 3", "batch 2", "test 0")
"""In the second epoch, in a validation, in the epoch after it, and where a validation begins."""

LOOKED_AT = ("batch 9", "epoch 1", "test_batch 1", "batch 3")


def _whole(count: int = 64) -> Any:
    return tf.data.Dataset.from_tensor_slices(samples(count))


def _batched(data: Any) -> Any:
    return data.batch(BATCH, drop_remainder=True)


def _once(data: Any) -> Any:
    return data.shuffle(64, seed=5)


def _twice(data: Any) -> Any:
    return data.shuffle(64, seed=5).map(lambda x, y: (x * 2.0, y)).shuffle(16, seed=6)


def _prefetched(data: Any) -> Any:
    return _batched(data.map(lambda x, y: (x * 2.0, y), num_parallel_calls=2)).prefetch(2)


def _cached(data: Any) -> Any:
    return _batched(data).cache()


def _halves(shuffle: Callable[[Any], Any], train: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Holds back the first samples of a shuffled dataset for the validation, as is usually done."""
    shuffled = shuffle(_whole())
    return train(shuffled.skip(HELD_OUT)), _batched(shuffled.take(HELD_OUT))


def _split(
    shuffle: Callable[[Any], Any] = _once, train: Callable[[Any], Any] = _batched, **arguments: Any
) -> Callable[[Run], None]:
    def job(run: Run) -> None:
        data, held_out = _halves(shuffle, train)
        run.fit(model(run), data, validation_data=held_out, epochs=4, **arguments)

    return job


def _same(run: Run) -> None:
    data = _batched(_once(_whole()))
    run.fit(model(run), data, validation_data=data, epochs=4)


def _predict(model: Any, data: Any) -> None:
    model.predict(data, verbose=0, steps=1)


def _loop(model: Any, data: Any) -> None:
    for _ in data.take(1):
        pass


def _loop_in_a_thread(model: Any, data: Any) -> None:
    thread = threading.Thread(target=_loop, args=(model, data))
    thread.start()
    thread.join()


def _onlooker(look: Callable[[Any, Any], None], data: Any, at_batch: int | None) -> Any:
    """A callback that goes through the training data as an epoch begins and ends, or in the middle of it."""

    class Onlooker(recorder.Stateless):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if at_batch is None:
                look(self.model, data)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == at_batch:
                look(self.model, data)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if at_batch is None:
                look(self.model, data)

    return Onlooker()


def _looked_at(
    look: Callable[[Any, Any], None],
    data: Callable[[Any], Any] = _once,
    at_batch: int | None = None,
    **arguments: Any,
) -> Callable[[Run], None]:
    def job(run: Run) -> None:
        shuffled = _batched(data(_whole()))
        held_out = None if "steps_per_epoch" in arguments else _batched(_whole().take(HELD_OUT))
        callbacks = [_onlooker(look, shuffled, at_batch)]
        run.fit(model(run), shuffled, validation_data=held_out, epochs=4, callbacks=callbacks, **arguments)

    return job


def _several_fits(run: Run) -> None:
    """Three fits on one split of one shuffle; the second one has its own model."""
    data, held_out = _halves(_once, _batched)
    first, second = model(run), model(run)
    for made in (first, second, first):
        run.fit(made, data, validation_data=held_out, epochs=2)


WAYS = (
    Way(
        "split-shuffle",
        "tf.data, `take` and `skip` of one shuffled dataset for validation and training",
        _split(),
        strikes=STRIKES,
    ),
    Way("split-two-shuffles", "the same with one shuffle below another", _split(_twice), strikes=STRIKES),
    Way(
        "split-prefetched",
        "the same with a parallel `map` and `prefetch`",
        _split(train=_prefetched),
        strikes=STRIKES,
    ),
    Way("split-cached", "the same with `cache()` in memory after it", _split(train=_cached), strikes=STRIKES),
    Way(
        "split-validation-steps",
        "the same with `validation_steps`",
        _split(validation_steps=1),
        strikes=("batch 9", "test_batch 1", "batch 2", "test 0"),
    ),
    Way(
        "split-steps-per-epoch",
        "the same with `steps_per_epoch` that continue in the next epoch",
        _split(steps_per_epoch=3),
        strikes=("batch 4", "test_batch 1", "batch 2", "test 0"),
    ),
    Way("same-data", "one shuffled dataset for training and validation", _same, strikes=STRIKES),
    Way(
        "predict-on-training-data",
        "a callback that predicts on the shuffled training data in each epoch",
        _looked_at(_predict),
        strikes=LOOKED_AT,
    ),
    Way(
        "loop-over-training-data",
        "a callback that goes through the shuffled training data itself",
        _looked_at(_loop),
        strikes=LOOKED_AT,
    ),
    Way(
        "loop-over-two-shuffles",
        "the same with one shuffle below another",
        _looked_at(_loop, _twice),
        strikes=LOOKED_AT,
    ),
    Way(
        "loop-in-a-thread",
        "the same in another thread, in the middle of an epoch",
        _looked_at(_loop_in_a_thread, at_batch=3),
        strikes=LOOKED_AT,
    ),
    Way(
        "split-repeated",
        "`take` and `skip` of one shuffled dataset, with `.repeat()` after it",
        _split(train=lambda data: _batched(data.repeat()), steps_per_epoch=4),
        everywhere(
            Warned(
                "a repetition reshuffles ahead of training, at a moment left to chance. Split before the shuffle",
                "NOT exact.*share a shuffle that is repeated",
            )
        ),
        strikes=("batch 9", "test_batch 1"),
    ),
    Way(
        "loop-over-repeated",
        "a callback that goes through shuffled training data with `.repeat()`",
        _looked_at(_loop, lambda data: _once(data).repeat(), steps_per_epoch=6),
        everywhere(
            Warned(
                "a repetition reshuffles ahead of training, at a moment left to chance. Leave out `.repeat()`",
                "NOT exact.*something else than this fit makes an iterator",
                at_once=True,
            )
        ),
    ),
    Way(
        "several-fits-one-split",
        "several fits of several models on one such split",
        _several_fits,
        strikes=("batch 3", "batch 8", "test_batch 2", "batch 5"),
    ),
)
