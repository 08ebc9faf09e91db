"""What a start, a save and an exit after a notice take where many checkpoints are kept, beside a few.

Starts a small fit on a directory with so many checkpoints, lets it save while training goes on, and preempts it.
Prints, in milliseconds:

- first step: from the beginning of `fit` to the end of its first step;
- save: from the boundary to the commit, of a save in the background, the median;
- exit: from the notice until the fit is left.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from figures import conditions, table

from keras_preempt import Event, Preempted, PreemptionCallback, TerminationConfig
from keras_preempt.checkpoint.finding import newest_first
from keras_preempt.checkpoint.layout import MANIFEST, step_directory
from keras_preempt.checkpoint.storage.local import LocalStore

_EVERY = 20  # steps from one save to the next


def model() -> keras.Model:
    """A small one."""
    made = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="only")], name="small")
    made.compile(keras.optimizers.Adam(name="adam"), "mse")
    return made


def train(directory: Path, steps: int, strike: int, events: list[Event]) -> tuple[float, float]:
    """Trains until a SIGTERM at a step; returns the seconds to the end of the first step, and from the notice."""
    times: dict[str, float] = {}

    class Struck(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            times.setdefault("first", time.monotonic())
            if batch == strike:
                times["struck"] = time.monotonic()
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.05)

    x = np.ones((steps * 4, 8), np.float32)
    callback = PreemptionCallback(
        directory,
        save_every=_EVERY,
        max_to_keep=1_000_000,
        on_event=events.append,
        termination=TerminationConfig(exit_fn=lambda: None),
    )
    began = time.monotonic()
    try:
        keras.utils.set_random_seed(1)
        model().fit(x, x, batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=[Struck(), callback])
    except Preempted:
        pass
    return times["first"] - began, time.monotonic() - times["struck"]


def fill(directory: Path, kept: int) -> None:
    """Copies the newest checkpoint to so many earlier steps."""
    newest = next(newest_first(LocalStore(directory)))
    assert newest.manifest is not None
    for step in range(1, kept + 1):
        folder = directory / step_directory(step)
        if folder.exists():
            continue
        shutil.copytree(directory / step_directory(newest.step), folder, copy_function=os.link)
        manifest = folder / newest.attempt / MANIFEST
        manifest.unlink()
        manifest.write_bytes(dataclasses.replace(newest.manifest, step=step).to_json())


def measure(kept: int) -> list[float]:
    """Returns the milliseconds of a first step, a save and an exit."""
    steps = kept + 400
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        train(directory, steps, kept + 50, [])
        fill(directory, kept)
        keras.utils.clear_session()
        events: list[Event] = []
        first, exit_ = train(directory, steps, kept + 300, events)
    saves = [event.fields["seconds"] for event in events if event.kind == "commit"]
    return [1e3 * first, 1e3 * statistics.median(saves), 1e3 * exit_]


def main() -> int:
    """Measures and prints; the exit status is 1 if a start or a save is more than 1 s slower with many."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kept", type=int, nargs=2, default=(2, 4000), metavar=("FEW", "MANY"))
    kept = parser.parse_args().kept
    measure(kept[0])  # What is done once in a process is not counted.
    measured = {count: measure(count) for count in kept}
    print(conditions())
    rows = [[f"{count:,} kept", *(f"{value:.0f}" for value in measured[count])] for count in kept]
    print(table(["milliseconds", "first step", "save", "exit"], rows))
    few, many = (measured[count] for count in kept)
    return int(any(slow > fast + 1e3 for fast, slow in zip(few, many, strict=True)))


if __name__ == "__main__":
    raise SystemExit(main())
