"""Callbacks beside ours: Keras' own and the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.ways.catalogue import basics
from tests.ways.late import Late, keras, np, tf
from tests.ways.way import ONE, Exact, Refused, Run, Warned, Way, everywhere

recorder = Late("tests.ways.recorder")

#: In the second epoch; in its validation, whose epoch is begun again; between two epochs.
PLACES = ("batch 9", "test_batch 3", "epoch 1")


def _fit(run: Run, *callbacks: Any, compiled: dict[str, Any] | None = None, **arguments: Any) -> None:
    made = basics.model(run, **(compiled or {}))
    basics.fit(run, made, callbacks=callbacks, **{"epochs": 4, **arguments})


def own_path(run: Run, name: str) -> Path:
    """Returns a path in a folder of this worker."""
    folder = run.work / f"w{run.worker}"
    folder.mkdir(exist_ok=True)
    return folder / name


def _early_stopping(run: Run) -> None:
    # Nothing improves by so much: it stops after the third epoch, and the best weights are the first epoch's.
    early = keras.callbacks.EarlyStopping(patience=2, min_delta=5.0, restore_best_weights=True)
    _fit(run, early, epochs=6)
    run.keep_attributes(early, ["wait", "stopped_epoch", "best", "best_epoch"])
    run.keep(**{f"best.{n}": weight for n, weight in enumerate(early.best_weights)})


def _reduce_on_plateau(run: Run) -> None:
    plateau = keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5, min_delta=5.0, cooldown=1)
    _fit(run, plateau, epochs=6)
    run.keep_attributes(plateau, ["wait", "best", "cooldown_counter"])


def _schedule(run: Run) -> None:
    # From the rate before, not from the epoch alone: called twice for an epoch, it would count twice.
    _fit(run, keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9))


def _model_checkpoint(run: Run, **options: Any) -> None:
    path = own_path(run, options.pop("name"))
    checkpoint = keras.callbacks.ModelCheckpoint(str(path), save_weights_only=True, **options)
    _fit(run, checkpoint)
    run.keep_attributes(checkpoint, ["best"])
    for file in sorted(path.parent.glob("*.weights.h5")):
        run.keep(**{f"{file.name}/{name}": array for name, array in _h5(file).items()})


def _h5(path: Path) -> dict[str, Any]:
    import h5py

    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                found.update({name: np.array(item)}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return found


def _csv(run: Run, *, append: bool) -> None:
    path = own_path(run, "log.csv")
    _fit(run, keras.callbacks.CSVLogger(str(path), append=append), validation_freq=2)
    run.keep(csv=path.read_text())


def _csv_on_another_machine(run: Run) -> None:
    # Its disk is empty, as that of a new machine.
    path = own_path(run, f"log-{'first' if run.first else 'second'}.csv")
    _fit(run, keras.callbacks.CSVLogger(str(path), append=True))
    run.keep(csv=path.read_text())


def _tensorboard(run: Run, update_freq: Any) -> None:
    folder = own_path(run, "tensorboard")
    board = keras.callbacks.TensorBoard(str(folder), update_freq=update_freq)
    _fit(run, board)
    run.keep_attributes(board, ["_global_train_batch", "_global_test_batch"])
    run.keep(points=points(folder))
    ours = [(tag, step) for _, tag, step, _ in points(folder, of_keras=False)]
    assert len(set(ours)) == len(ours), ours
    assert {tag.rpartition("/")[2] for tag, _ in ours} == (
        {"goodput", "lost_steps", "save_seconds"} if run.worker == 0 and not run.plain else set()
    )


def points(folder: Path, *, of_keras: bool = True) -> list[Any]:
    """Every scalar that TensorBoard shows of Keras, or of this package, duplicates too: [part, tag, step, value]."""
    found = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                if value.tag.startswith("keras_preempt/") == of_keras:
                    continue
                tensor = tf.make_ndarray(value.tensor)
                if tensor.dtype.kind == "f" and tensor.ndim == 0:
                    found.append([path.parent.name, value.tag, event.step, float(tensor)])
    return sorted(found)


def _swap(run: Run, *, on_epoch: bool) -> None:
    with run.scope():
        optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8)
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)
    _fit(run, swap, compiled={"optimizer": optimizer})


def _own_swap(run: Run, *, hidden: bool) -> None:
    class Swaps(keras.callbacks.Callback):
        def on_test_begin(self, logs: Any = None) -> None:
            self.kept = self.model.get_weights()
            self.model.set_weights([weight * np.float32(0.5) for weight in self.kept])

        def on_test_end(self, logs: Any = None) -> None:
            self.model.set_weights(self.kept)

    class Hides(keras.callbacks.Callback):
        changes_weights_in_validation = False  # Which is not so.

        on_test_begin, on_test_end = Swaps.on_test_begin, Swaps.on_test_end

    _fit(run, Hides() if hidden else Swaps())


def _terminate_on_nan(run: Run) -> None:
    class Break(recorder.Stateless):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                self.model.set_weights([weight * np.float32("nan") for weight in self.model.get_weights()])

    _fit(run, Break(), keras.callbacks.TerminateOnNaN())


def _remote_monitor(run: Run) -> None:
    from http.server import BaseHTTPRequestHandler

    from tests.docs.built_site import listening

    path = own_path(run, "posted")

    class Posts(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with path.open("ab") as file:
                file.write(body + b"\n")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with listening(Posts) as address:
        _fit(run, keras.callbacks.RemoteMonitor(f"http://{address}", send_as_json=True))
    run.keep(posted=[json.loads(line) for line in path.read_text().splitlines()])


def _history(run: Run) -> None:
    history = keras.callbacks.History()
    _fit(run, history)
    run.keep(own_history=history.history, own_epochs=history.epoch)


def smoothed() -> Any:
    """Returns a callback of the user's: a running mean of the loss, which sets the learning rate."""

    class Smoothed(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.seen, self.names = np.float32(0.0), 0, {}

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.mean = np.float32(0.9) * self.mean + np.float32(0.1) * np.float32(logs["loss"])
            self.seen += 1
            self.names[str(self.seen)] = np.arange(self.seen % 3)
            self.model.optimizer.learning_rate = 0.01 / (1.0 + float(self.mean))

        def get_state(self) -> dict[str, Any]:
            return {"mean": self.mean, "seen": self.seen, "names": self.names}

        def set_state(self, state: dict[str, Any]) -> None:
            self.mean, self.seen, self.names = state["mean"], state["seen"], state["names"]

    return Smoothed()


def _users(run: Run) -> None:
    own = smoothed()
    _fit(run, own)
    run.keep(mean=float(own.mean), seen=own.seen, names=sorted(own.names))


def _users_without_state(run: Run) -> None:
    class Counts(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.losses, self.sums = 0, [], np.zeros(2)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen += 1
            self.losses.append(logs["loss"])
            self.sums += self.losses[-1]
            self.model.optimizer.learning_rate = 0.01 / self.seen

    own = Counts()
    _fit(run, own)
    run.keep(seen=own.seen, losses=own.losses, sums=own.sums)


def _users_outside(run: Run) -> None:
    losses: list[float] = []
    _fit(run, keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"])))
    run.keep(losses=losses)


def _backup(run: Run) -> None:
    _fit(run, keras.callbacks.BackupAndRestore(str(own_path(run, "backup"))))


WAYS = (
    Way("early-stopping", "EarlyStopping, with restore_best_weights", _early_stopping),
    Way("plateau", "ReduceLROnPlateau", _reduce_on_plateau),
    Way("scheduler", "LearningRateScheduler, also from the rate before", _schedule),
    Way(
        "checkpoint-best",
        "ModelCheckpoint(save_best_only=True)",
        lambda run: _model_checkpoint(
            run, name="best.weights.h5", save_best_only=True, monitor="val_accuracy", mode="max"
        ),
    ),
    Way(
        "checkpoint-steps",
        "ModelCheckpoint(save_freq=steps)",
        lambda run: _model_checkpoint(run, name="{epoch}-{batch}.weights.h5", save_freq=4),
    ),
    Way("csv", "CSVLogger(append=True)", lambda run: _csv(run, append=True)),
    Way("csv-overwrite", "CSVLogger(append=False)", lambda run: _csv(run, append=False)),
    Way("csv-elsewhere", "CSVLogger, started again on a machine without its file", _csv_on_another_machine),
    Way("tensorboard", "TensorBoard", lambda run: _tensorboard(run, "epoch")),
    Way("tensorboard-batches", 'TensorBoard(update_freq="batch")', lambda run: _tensorboard(run, "batch")),
    Way("swap-ema", "SwapEMAWeights", lambda run: _swap(run, on_epoch=False)),
    Way("swap-ema-epoch", "SwapEMAWeights(swap_on_epoch=True)", lambda run: _swap(run, on_epoch=True)),
    Way("terminate-on-nan", "TerminateOnNaN", _terminate_on_nan),
    Way("history", "History", _history),
    Way("remote-monitor", "RemoteMonitor", _remote_monitor, {ONE: Exact()}, needs=("requests",)),
    Way("own", "your own callback with get_state and set_state", _users),
    Way(
        "own-silent",
        "your own callback without them: its attributes are numbers, texts, arrays, lists, dictionaries",
        _users_without_state,
    ),
    Way(
        "own-outside",
        "your own callback that fills a list outside of it",
        _users_outside,
        everywhere(Warned("the list is empty again", r"not kept over a restart: .*variable losses outside")),
    ),
    Way(
        "own-swap",
        "your own callback that changes the weights for the validation",
        lambda run: _own_swap(run, hidden=False),
        strikes=("test_batch 3",),
    ),
    Way(
        "own-swap-denied",
        "your own callback that denies it by changes_weights_in_validation = False, preempted in a validation",
        lambda run: _own_swap(run, hidden=True),
        everywhere(
            Warned("what it changed is saved as the weights", r"changes_weights_in_validation", at_once=True)
        ),
        strikes=("test_batch 3",),
    ),
    Way(
        "backup-and-restore",
        "Keras' BackupAndRestore",
        _backup,
        everywhere(Refused("both would restore, one over the other", r"BackupAndRestore")),
    ),
)
