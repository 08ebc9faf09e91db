"""The drill's verdict on real scripts: what does not matter is not different, and what does is found."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_preempt.cli.main import main
from keras_preempt.cluster import supervisor
from tests.cluster.forked import QUIET_CPU, ForkedCluster
from tests.cluster.jax_training import ON_JAX

BEGINNING = """
import keras, numpy as np, tensorflow as tf
from keras_preempt import PreemptionCallback
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(160, 4)).astype("float32")
y = x[:, :1] * 2
def compiled():
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model
"""

Drilled = Callable[..., str]


@pytest.fixture
def drilled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Drilled:
    """Drills a script, which ends with that status; returns what was printed."""
    monkeypatch.chdir(tmp_path)
    for name, value in QUIET_CPU.items():
        monkeypatch.setenv(name, value)
    if os.environ.get("KERAS_PREEMPT_FRESH_PROCESSES") != "1":
        monkeypatch.setattr(supervisor, "LocalCluster", ForkedCluster)

    def run(options: str, script: str, status: int = 0) -> str:
        Path("train.py").write_text(BEGINNING + textwrap.dedent(script))
        ended = main(["drill", *options.split(), "--", "python", "train.py"])
        printed = "".join(capsys.readouterr())
        assert ended == status, printed
        return printed

    return run


@pytest.mark.chaos
def test_data_that_is_not_the_same_after_a_restart_is_found(drilled: Drilled) -> None:
    printed = drilled(
        "--at step:3",
        """
        import os
        started_before = int(os.environ["KERAS_PREEMPT_LAUNCHER_INCARNATION"])
        x[100] += started_before / 1000
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        compiled().fit(data.repeat(), steps_per_epoch=10, epochs=2, verbose=0, callbacks=[PreemptionCallback("run")])
        """,
        status=1,
    )
    # Row 100 is in the thirteenth batch.
    assert "After step 12 was equal, from step 13 on (epoch 1, w0) the runs differ: " in printed


@pytest.mark.chaos
def test_training_that_a_restart_changes_is_found_in_the_fit_where_it_happens(drilled: Drilled) -> None:
    printed = drilled(
        "--at step:16",
        """
        class Decay(keras.callbacks.Callback):
            batches = 0
            def on_train_batch_begin(self, batch, logs=None):
                self.batches += 1
                self.model.optimizer.learning_rate.assign(0.01 / self.batches)
        model = compiled()
        model.fit(x, y, batch_size=16, epochs=1, verbose=0, callbacks=[PreemptionCallback("one")])
        model = compiled()
        model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[PreemptionCallback("two"), Decay()])
        """,
        status=1,
    )
    assert "different: fit 2 (two): " in printed
    assert "different: fit 1" not in printed
    assert "(fit 2 of 2, epoch 0, w0) the runs differ" in printed
    assert "callbacks whose state is not kept: Decay" in printed


def test_identical_says_which_state_it_does_not_speak_for_and_that_bytes_of_an_iterator_decide_nothing(
    drilled: Drilled,
) -> None:
    # TensorFlow counts the seeds that a shuffle has drawn (epoch_num_random_samples), and draws two for each iterator;
    # of one that does not reshuffle, nothing depends on that. tests/cli/test_compare.py has bytes that differ.
    printed = drilled(
        "--at step:9 --at step:33",
        """
        seen = []
        class Watch(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                seen.append(epoch)
        model = compiled()
        full = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(160, seed=5, reshuffle_each_iteration=False)
        training = full.skip(32).repeat().batch(8).prefetch(2)
        model.fit(training, epochs=3, steps_per_epoch=6, validation_data=full.take(32).batch(8), verbose=0,
                  callbacks=[PreemptionCallback("one")])
        for epoch in range(2):
            log = keras.callbacks.CSVLogger("log.csv", append=True)
            model.fit(x, y, batch_size=16, epochs=epoch + 2, initial_epoch=epoch + 1, verbose=0,
                      callbacks=[PreemptionCallback("more"), Watch(), log])
        """,
    )
    assert "tensors different" in printed
    assert (
        "of 3 fits; 2 preemptions: w0 at step 9 (fit 1, step 9 of its model), w0 at step 33 (fit 3, "
        in printed
    )
    assert (
        "Not covered by this verdict: callbacks whose state is not kept (Watch (the variable seen outside of it)): "
        "2 preemptions made no" in printed
    )
    assert "does not decide: fit 2 (more): w0: callbacks/CSVLogger/rows" in printed


def test_a_restart_that_fails_in_a_callback_whose_state_was_not_kept_says_so(drilled: Drilled) -> None:
    printed = drilled(
        "--at step:13",
        """
        import io
        class Lines(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 0:
                    self.lines = io.StringIO("one")
            def on_train_end(self, logs=None):
                self.lines.close()
        compiled().fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[PreemptionCallback("run"), Lines()])
        """,
        status=3,
    )
    assert "No verdict: the preempted run failed (exit code 1). Likely cause: " in printed
    assert (
        "a callback whose state was not kept over a restart: Lines (its attribute lines). Give them"
        in printed
    )


def test_processes_of_jax_are_compared_in_every_bit(
    drilled: Drilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ON_JAX.items():
        monkeypatch.setenv(name, value)
    printed = drilled(
        "--workers 2 --at step:14",
        """
        keras.distribution.initialize()
        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
        compiled().fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[PreemptionCallback("run")])
        """,
    )
    assert "VERDICT: identical (" in printed


@pytest.mark.chaos
def test_two_workers_that_log_into_one_file_are_not_different(drilled: Drilled) -> None:
    printed = drilled(
        "--workers 2 --at step:14",
        """
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = compiled()
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
        callbacks = [PreemptionCallback("run"), keras.callbacks.CSVLogger("log.csv")]
        model.fit(data, epochs=4, verbose=0, callbacks=callbacks)
        """,
    )
    assert "VERDICT: identical" in printed


@pytest.mark.chaos
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize("at", ["step:3", "step:9", "step:13", "step:24"])
def test_batches_whose_step_loss_scaling_leaves_out_are_batches_of_their_own(
    at: str, backend: str, drilled: Drilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ON_JAX.items() if backend == "jax" else ():
        monkeypatch.setenv(name, value)
    printed = drilled(
        f"--at {at}",
        """
        def fit(name):
            model = compiled()
            adam = keras.optimizers.Adam()
            optimizer = keras.optimizers.LossScaleOptimizer(adam, initial_scale=2.0**126, dynamic_growth_steps=3)
            model.compile(optimizer, "mse")
            model.fit(x, y * 100, batch_size=16, epochs=2, verbose=0, callbacks=[PreemptionCallback(name)])
            done = int(optimizer.inner_optimizer.iterations)
            assert 0 < done < 16, f"too few or too many steps were left out: {done}"
            return model
        fit("one")
        model = fit("two")
        """,
    )
    assert "VERDICT: identical (" in printed
    assert f"step {at.partition(':')[2]}" in printed
