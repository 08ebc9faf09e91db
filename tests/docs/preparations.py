"""The surroundings of the blocks of the pages when they are run, by the names in `<!-- with: ... -->`.

Each preparation is a generator of one yield: it gives the names that the block may use, and looks afterwards whether
the block has done what its page says. It is run in a working directory of the block's own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from keras_preempt import PreemptionCallback
from keras_preempt.testing import FakeGcs
from tests.cluster.harness import start_cluster
from tests.docs.built_site import Quiet, listening


class Missing(Exception):
    """A package that a block shows is not installed. It is not needed for anything else."""


Names = dict[str, Any]
"""The names of a block: those that it finds, and afterwards also those that it has made."""

Preparation = Callable[[Names], Iterator[Names]]
Batches = Iterator[tuple[np.ndarray, np.ndarray]]

_PREPARATIONS: dict[str, Preparation] = {}

# Steps of the run that "run in DIRECTORY" makes, with a checkpoint in the middle: the same as on docs/commands.md.
_SAVED_AT, _LAST_STEP = 146, 176


def prepared(name: str, names: Names) -> contextlib.AbstractContextManager[Names]:
    """Returns the preparation of that name.

    Args:
        name: As the comment has it.
        names: The names of the block.

    Raises:
        ValueError: There is none of that name.
    """
    if name.startswith("run in "):
        return contextlib.contextmanager(_run)(name.removeprefix("run in "))
    if name.startswith("job in "):
        return contextlib.contextmanager(_job)(name.removeprefix("job in "))
    if name not in _PREPARATIONS:
        raise ValueError(
            f"Expected one of {sorted(_PREPARATIONS)}, or 'run in' or 'job in DIRECTORY'. Received: {name!r}."
        )
    return contextlib.contextmanager(_PREPARATIONS[name])(names)


def _preparation(name: str) -> Callable[[Preparation], Preparation]:
    def add(function: Preparation) -> Preparation:
        _PREPARATIONS[name] = function
        return function

    return add


def small_model() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    return model


def small_data(samples: int = 64) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).random((samples, 4), dtype=np.float32)
    return x, x.sum(axis=1, keepdims=True)


def _run(directory: str) -> Iterator[Names]:
    """A finished run with two checkpoints."""
    x, y = small_data(16 * _LAST_STEP)
    callback = PreemptionCallback(directory, save_every=_SAVED_AT)
    small_model().fit(x, y, batch_size=16, verbose=0, callbacks=[callback])
    keras.utils.clear_session()  # The block's model gets the names that this one had, as in a process of its own.
    yield {}


def _job(directory: str) -> Iterator[Names]:
    """A job that trains in a process of its own, and looks for requests."""
    with start_cluster(Path(__file__).with_name("job.py"), 1, args=[directory], cwd=Path.cwd()) as running:
        running.wait_for_line(0, "TRAINS")
        yield {}


@_preparation("imports")
def _imports(names: Names) -> Iterator[Names]:
    import keras_preempt

    yield {"keras": keras, "keras_preempt": keras_preempt, "np": np, "tf": tf}


@_preparation("bucket")
def _bucket(names: Names) -> Iterator[Names]:
    """``gs://bucket`` is a bucket of this block's own."""
    with FakeGcs(buckets=("bucket",)) as gcs, mock.patch.dict("os.environ", gcs.environment()):
        yield {"gcs": gcs}


@_preparation("model")
def _model(names: Names) -> Iterator[Names]:
    x, y = small_data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    yield {"model": small_model(), "x": x, "y": y, "dataset": dataset, "test_data": dataset}


def _needs(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError:
        raise Missing(f"pip install {package}") from None


@_preparation("W&B")
def _wandb(names: Names) -> Iterator[Names]:
    """W&B in its offline mode: it writes what it would send."""
    _needs("wandb")
    with mock.patch.dict("os.environ", {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": "."}):
        yield {}
    (log,) = Path("wandb").glob("offline-run-*/*.wandb")
    limit = time.monotonic() + 60
    while not re.search(rb'preempt/last event.{,5}"end"', log.read_bytes(), re.DOTALL):
        assert time.monotonic() < limit, "W&B's own process does not write it"
        time.sleep(0.1)  # It writes some time later; a file cannot be waited for, only looked at.
    assert b"preempt/saved step" in log.read_bytes()


@_preparation("MLflow")
def _mlflow(names: Names) -> Iterator[Names]:
    """MLflow with a directory in place of a server."""
    _needs("mlflow")
    variables = {"MLFLOW_TRACKING_URI": Path("mlruns").absolute().as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    with mock.patch.dict("os.environ", variables):
        yield {}
        run = names["client"].get_run(names["run_id"])
    assert run.data.tags["preempt.last_event"] == "end"
    assert run.data.metrics["preempt.save_seconds"] > 0


@_preparation("Orbax")
def _orbax(names: Names) -> Iterator[Names]:
    _needs("orbax.checkpoint")
    yield {}


@_preparation("Prometheus")
def _prometheus(names: Names) -> Iterator[Names]:
    """A free port; the figures are fetched as Prometheus does."""
    _needs("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with mock.patch.dict("os.environ", {"METRICS_PORT": str(port)}):
        yield {}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        figures = answer.read().decode()
    names["server"].shutdown()
    names["thread"].join()
    assert 'keras_preempt_events_total{kind="commit"} 1.0' in figures
    assert re.search(r"^keras_preempt_saved_step 4\.0$", figures, re.MULTILINE), figures


@_preparation("webhook")
def _webhook(names: Names) -> Iterator[Names]:
    """A real server, which keeps what is posted to it."""
    posted: list[dict[str, Any]] = []

    class Hook(Quiet):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

    with listening(Hook) as address, mock.patch.dict("os.environ", {"HOOK_URL": f"http://{address}/hook"}):
        yield {}
    assert [post["text"] for post in posted] == ["finish at step 4: all is well"]
    assert posted[0]["event"]["event"] == "finish"


@_preparation("make_model")
def _make_model(names: Names) -> Iterator[Names]:
    yield {"make_model": lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])}
    assert names["model"].distribute_strategy is names["strategy"]


@_preparation("pod and task and machine")
def _places(names: Names) -> Iterator[Names]:
    """The variables of a JobSet's pod and of a Slurm job's task, and a machine's name."""
    variables = {
        **{"JOBSET_NAME": "digits", "REPLICATED_JOB_NAME": "worker", "REPLICATED_JOB_REPLICAS": "1"},
        **{"JOB_INDEX": "0", "PODS_PER_JOB": "2", "JOB_COMPLETION_INDEX": "0"},
        **{"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n1"},
        **{"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]"},
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }
    name = mock.patch("socket.gethostname", return_value="trainer-0")
    with mock.patch.dict("os.environ", variables), name:
        yield {}
        assert json.loads(os.environ["TF_CONFIG"]) == names["config"]
        assert names["config"]["cluster"]["worker"] == ["trainer-0:2222", "trainer-1:2222"]
        assert os.environ["KERAS_DISTRIBUTION_PROCESS_ID"] == "0"


@_preparation("training loop")
def _loop(names: Names) -> Iterator[Names]:
    """The parts of a loop of one's own that its page leaves to the reader."""
    x, y = small_data()
    model, optimizer = small_model(), keras.optimizers.SGD(0.01)
    trained = []

    def new_iterator(epoch: tf.Variable, step_in_epoch: tf.Variable) -> Batches:
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=int(epoch.numpy()))
        return iter(data.batch(16).skip(int(step_in_epoch.numpy())))

    def train_step(iterator: Batches) -> tf.Tensor:
        inputs, targets = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        trained.append(float(loss))
        return loss

    yield {
        **{"EPOCHS": 3, "STEPS": 4, "epoch": tf.Variable(0), "step_in_epoch": tf.Variable(0)},
        **{"strategy": tf.distribute.get_strategy(), "model": model, "optimizer": optimizer},
        **{"new_iterator": new_iterator, "train_step": train_step},
    }
    assert len(trained) == 12
    assert names["handler"].total_run_calls == 12


@_preparation("batches")
def _batches(names: Names) -> Iterator[Names]:
    x, y = small_data()
    yield {"STEPS": 6, "batch_of": lambda step: (x[step : step + 32], y[step : step + 32])}
    assert int(names["step"].numpy()) == 6
    assert list(Path("shared/run").glob("ckpt-*")) == [], "it saves after a notice, and there was none"


@_preparation("KerasTuner")
def _tuner(names: Names) -> Iterator[Names]:
    def build_model(hp: Any) -> keras.Model:
        hp.Float("rate", 1e-3, 1e-1)
        return small_model()

    yield {"build_model": build_model, "DIRECTORY": "runs"}
    assert len(names["tuner"].oracle.get_best_trials(9)) == 2
    assert len(list(Path("runs").glob("*/run.json"))) == 2


@_preparation("manager")
def _manager(names: Names) -> Iterator[Names]:
    """What either handler is made of; TensorFlow's leaves its handler of signals."""
    earlier = signal.getsignal(signal.SIGTERM)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=tf.Variable(0)), "runs/1", 2)
    yield {"resolver": None, "manager": manager}
    names["handler"].close()
    signal.signal(signal.SIGTERM, earlier)


@_preparation("workers preempted once")
def _remote(names: Names) -> Iterator[Names]:
    """Remote workers that are taken away in the first training; tests/cluster/test_tpu.py has real ones."""
    from keras_preempt import PreemptionWatcher

    tries = []

    def train(strategy: tf.distribute.Strategy) -> None:
        with strategy.scope():
            small_model().fit(*small_data(), epochs=1, verbose=0)
        tries.append(strategy)
        if len(tries) == 1:
            raise tf.errors.AbortedError(None, None, "Task /job:worker/task:0 was preempted.")

    with mock.patch.object(PreemptionWatcher, "preemption_message", "/job:worker/task:0"):
        yield {"connect": tf.distribute.get_strategy, "train": train}
    assert len(tries) == 2
