"""A job for the commands of the pages: trains in a directory, and looks for requests, until it is ended."""

from __future__ import annotations

import sys

import tensorflow as tf

from keras_preempt import PreemptionCallback
from tests.docs.preparations import small_data, small_model
from tests.fits import Doing, untuned


def main(directory: str) -> None:
    for_ever = untuned(tf.data.Dataset.from_tensor_slices(small_data()).batch(16).repeat())
    callbacks = [
        PreemptionCallback(directory, save_on_request="0.1s"),
        Doing(on_epoch_end=lambda epoch, logs: epoch or print("TRAINS", flush=True)),  # Once.
    ]
    small_model().fit(
        for_ever, steps_per_epoch=4, epochs=10**6, verbose=0, shuffle=False, callbacks=callbacks
    )


if __name__ == "__main__":
    main(sys.argv[1])
