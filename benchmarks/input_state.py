"""How large the state of a tf.data iterator is, and how long TensorFlow takes to write it, by shuffle buffer.

The state holds every element of a shuffle buffer. Prints, for buffers of several shapes, the size that the package
estimates without writing anything, the size that is written, and how long it takes in processor time and in wall time.
"""

from __future__ import annotations

import argparse
import time

import tensorflow as tf
from figures import conditions, table

from keras_preempt.backend.tensorflow.internals import iterator_state, shuffle_buffers

BUFFERS = ((1_000, 8), (20_000, 8), (50_000, 8), (1_000, 64 * 1024), (10_000, 12 * 1024))
"""Elements of a buffer, and bytes of an element."""

COLUMNS = ("shuffle buffer", "guess, MiB", "written, MiB", "processor, s", "clock, s")


def measure(elements: int, size: int) -> list[str]:
    """Returns one row of the table."""
    data = tf.data.Dataset.range(1 << 40)
    if size > 8:
        data = data.map(lambda n: tf.random.stateless_uniform((size // 4,), tf.stack([n, n])))
    data = data.shuffle(elements, seed=1).batch(8)
    iterator = iter(data)
    next(iterator)
    guess = sum(count * (each or 0) for count, each in shuffle_buffers(data))
    clock, processor = time.perf_counter(), time.process_time()
    state = iterator_state(iterator)
    seconds = time.process_time() - processor, time.perf_counter() - clock
    assert state is not None
    sizes = guess, len(state)
    return [
        f"{elements:,} elements of {size:,} bytes",
        *(f"{number / 2**20:.1f}" for number in sizes),
        *(f"{number:.2f}" for number in seconds),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the smallest buffer")
    buffers = BUFFERS[:1] if parser.parse_args().quick else BUFFERS
    print(conditions())
    print(table(COLUMNS, [measure(elements, size) for elements, size in buffers]))


if __name__ == "__main__":
    main()
