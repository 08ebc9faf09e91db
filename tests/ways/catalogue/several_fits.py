"""Several fits in one script, and loops without `fit`."""

from __future__ import annotations

import json
from typing import Any

from tests.ways.catalogue.basics import BATCH, STEPS, compiled, dataset, fit, model, samples
from tests.ways.late import keras, np, tf
from tests.ways.way import ONE, Exact, Refused, Run, Way


def _same_callback(run: Run) -> None:
    """Trains on with the same model, data and callback, and raises `epochs` as Keras' guides do."""
    made, data, validation = model(run), dataset(), dataset()
    callbacks = run.callbacks()
    for begin, end in ((0, 2), (2, 4)):
        history = made.fit(
            data, validation_data=validation, initial_epoch=begin, epochs=end, callbacks=callbacks, verbose=0
        )
        run.keep_model(made, f"until {end} ")
        run.keep(**{f"history until {end}": history.history, f"epochs until {end}": history.epoch})


def _pretrain(run: Run) -> Any:
    made = model(run)
    fit(run, made, epochs=2)
    return made


def _fine_tune(run: Run, made: Any, directory: str | None) -> None:
    """Freezes the first layer, and puts a new head on the rest, drawn from the random state of that moment."""
    made.layers[0].trainable = False

    def make() -> Any:
        return keras.Sequential([*made.layers[:-1], keras.layers.Dense(3, name="new_head")])

    with run.scope():
        tuned = compiled(run, make, optimizer=keras.optimizers.Adam(1e-3))
    history = tuned.fit(
        dataset(),
        validation_data=dataset(),
        epochs=2,
        callbacks=run.callbacks(directory=directory),
        verbose=0,
    )
    run.keep_model(tuned, "tuned ")
    run.keep(tuned_history=history.history)


def _one_directory(run: Run) -> None:
    _fine_tune(run, _pretrain(run), None)


def _two_directories(run: Run) -> None:
    _fine_tune(run, _pretrain(run), f"{run.directory}-tuned")


def _averaged_then_tuned(run: Run) -> None:
    """What the second fit begins with is what the first one has left when it has ended: averages of the weights."""
    with run.scope():
        made = model(run, optimizer=keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9))
    run.fit(made, dataset(), epochs=2)
    with run.scope():
        made.compile("sgd", loss=made.loss, metrics=["accuracy"])
    run.fit(made, dataset(), epochs=2)


def _shared_metrics(run: Run) -> None:
    """One list of metric objects for two models: Keras lets the second begin with what the first has counted."""
    x, y = samples()
    metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    for _ in range(2):
        made = model(run)
        made.compile("sgd", made.loss, metrics=metrics)
        run.fit(made, x, y, validation_data=(x[:8], y[:8]), batch_size=BATCH, epochs=2)
        run.keep(evaluated=made.evaluate(x, y, verbose=0))


def _folds(run: Run) -> None:
    x, y = samples()
    for fold in range(3):
        left_out = np.arange(len(x)) % 3 == fold
        run.fit(
            model(run),
            x[~left_out],
            y[~left_out],
            validation_data=(x[left_out], y[left_out]),
            batch_size=BATCH,
            epochs=1,
        )


def _train_on_batch(run: Run) -> None:
    """The recipe of docs/custom-loops.md."""
    from keras_preempt import PreemptionCheckpointHandler

    made, (x, y), recorder = model(run), samples(), run.recorder()
    made.optimizer.build(made.trainable_variables)
    made.test_on_batch(x[:BATCH], y[:BATCH])  # Makes the metrics.
    made.reset_metrics()
    step = tf.Variable(0)
    variables = [v.value for v in (*made.variables, *made.optimizer.variables, *made.metrics_variables)]

    def train(batch: int) -> None:
        recorder.on_train_batch_begin(batch)
        part = slice(batch * BATCH, (batch + 1) * BATCH)
        logs = made.train_on_batch(x[part], y[part], return_dict=True)
        print("RAN", step.numpy() // STEPS, batch, json.dumps(logs, default=float), flush=True)

    checkpoint = tf.train.Checkpoint(variables=variables, step=step)
    with PreemptionCheckpointHandler(None, checkpoint, run.directory) as handler:
        while step.numpy() < 3 * STEPS:
            if step.numpy() % STEPS == 0:
                made.reset_metrics()
            handler.run(train, step.numpy() % STEPS)
            step.assign_add(1)
    run.keep_model(made)


def _callbacks_by_hand(run: Run) -> None:
    made = model(run)
    callbacks = keras.callbacks.CallbackList(run.callbacks(), model=made)
    callbacks.on_train_begin()


WAYS = (
    Way(
        "same-callback",
        "a second `fit` of a model with the same callback",
        _same_callback,
        strikes=("batch 15", "batch 3"),
    ),
    Way(
        "pretrain-fine-tune",
        "two fits in one script and one directory: pretraining, then fine-tuning with a frozen layer and a new head",
        _one_directory,
        strikes=("batch 9", "batch 1", "batch 5", "test 0"),
    ),
    Way("two-directories", "the same with a directory for each fit", _two_directories, strikes=("batch 15",)),
    Way(
        "averaged-then-tuned",
        "a second `fit` on the averages of weights (`use_ema`) that the first has left",
        _averaged_then_tuned,
        strikes=("batch 15",),
    ),
    Way(
        "shared-metrics",
        "two models compiled with one list of metric objects, fitted one after the other",
        _shared_metrics,
        {ONE: Exact()},
        strikes=("batch 9", "test 2"),
    ),
    Way("folds", "cross-validation: a new model and `fit` for every fold", _folds, strikes=("batch 6",)),
    Way(
        "train-on-batch",
        "a loop around `train_on_batch`, with `PreemptionCheckpointHandler`",
        _train_on_batch,
        {
            ONE: Exact(
                "all variables are in the checkpoint, as in the recipe of custom-loops.md", promised=False
            )
        },
    ),
    Way(
        "callbacks-by-hand",
        "a loop around `train_on_batch` that calls the callback's hooks by hand",
        _callbacks_by_hand,
        {
            ONE: Refused(
                "without `fit` there is no input and no epoch to go back to; use `PreemptionCheckpointHandler`",
                "PreemptionCheckpointHandler",
            )
        },
    ),
)
