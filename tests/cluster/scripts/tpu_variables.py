"""A fit of two replicas whose variables are of the classes that TPUStrategy makes, preempted once and resumed.

Usage: ``tpu_variables.py DIRECTORY POLICY``. Here MirroredStrategy over two CPU devices makes its variables by the code
of TPUStrategy: with POLICY "policy" those with a policy, with "lazy" those that also get their first values in a batch.
Prints the classes of the variables, and whether the resumed run ended as the undisturbed one.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections import Counter

import keras
import numpy as np
import tensorflow as tf
from strategies import make_strategy
from tensorflow.python.distribute import tpu_strategy

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from tests.fits import Doing, untuned

DIRECTORY, POLICY = sys.argv[1:]

strategy = make_strategy("mirrored")
extended, of_tpu = strategy.extended, tpu_strategy.TPUExtended
type(extended)._create_variable = of_tpu._create_variable
type(extended).lazy_variable_tracker = of_tpu.lazy_variable_tracker
extended._tpu_devices = np.array([["CPU:0"], ["CPU:1"]])  # Two replicas of one core each.
extended._logical_device_stack = [0]
extended._using_custom_device = extended._use_spmd_for_xla_partitioning = False
extended._use_var_policy = POLICY != "no policy"
tpu_strategy._EXPERIMENTAL_TPU_BATCH_VARIABLE_INITIALIZATION = POLICY == "lazy"


def train(directory, *callbacks):
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).shuffle(48, seed=1)
    watching = PreemptionCallback(directory, termination=TerminationConfig(exit_fn=lambda: None))
    try:
        history = model.fit(
            untuned(dataset.batch(8)), epochs=3, verbose=0, callbacks=[watching, *callbacks]
        ).history
    except Preempted:
        return None, model
    return history, model


def replicas(model):
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [[part.numpy().tobytes() for part in variable.value.values] for variable in variables]


undisturbed, reference = train(f"{DIRECTORY}/undisturbed")
bits = replicas(reference)
steps = itertools.count()
strike = Doing(
    on_train_batch_begin=lambda *_, **__: next(steps) == 7 and os.kill(os.getpid(), signal.SIGTERM)
)
preempted, _ = train(f"{DIRECTORY}/run", strike)
resumed, model = train(f"{DIRECTORY}/run")
found = Counter(type(v.value).__name__ for v in [*model.variables, *model.metrics_variables])
differing = sum(len(set(parts)) > 1 for parts in bits)
print(
    json.dumps(
        {
            "classes": sorted(found),
            "preempted": preempted is None,
            "history": resumed == undisturbed,
            "bits": replicas(model) == bits,
            "variables that differ between replicas": differing,
        }
    )
)
