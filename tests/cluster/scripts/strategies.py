"""The strategies of the worker scripts; to be made before anything else starts TensorFlow."""

from __future__ import annotations

import tensorflow as tf


def two_devices() -> list[str]:
    """Makes two devices of the processor."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return ["CPU:0", "CPU:1"]


def make_strategy(name: str) -> tf.distribute.Strategy:
    if name == "mwms":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "one":
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(two_devices()[: 1 if name == "one_mirrored" else 2])
