"""Runs a script of the gallery with our line or with an empty callback in its place: ``... SCRIPT RESULTS ours|plain``.

RESULTS becomes an .npz file with the History and the weights after each fit, and the random numbers that would be drawn
next.
"""

from __future__ import annotations

import functools
import random
import runpy
import sys
from typing import Any


def main(script: str, results: str, line: str) -> None:
    import keras
    import numpy as np

    import keras_preempt

    if line.startswith("plain"):

        class Nothing(keras.callbacks.Callback):
            def __init__(self, *_: Any, **__: Any) -> None:
                super().__init__()

        keras_preempt.PreemptionCallback = Nothing  # type: ignore[misc, assignment]
    kept: dict[str, Any] = {}
    fit = keras.Model.fit

    @functools.wraps(fit)
    def recorded(model: Any, *arguments: Any, **options: Any) -> Any:
        history = fit(model, *arguments, **options)
        number = len([name for name in kept if name.endswith("epochs")])
        kept[f"{number} epochs"] = np.array(history.epoch)
        for name, values in history.history.items():
            kept[f"{number} history {name}"] = np.array(values)
        optimizer = getattr(model, "optimizer", None)
        for index, variable in enumerate([*model.variables, *(optimizer.variables if optimizer else [])]):
            kept[f"{number} variable {index} {variable.path}"] = np.asarray(variable.value)
        return history

    keras.Model.fit = recorded
    runpy.run_path(script, run_name="__main__")
    kept["random"] = np.array([random.random(), np.random.rand(), float(keras.random.uniform(()))])
    np.savez(results, **kept)


if __name__ == "__main__":
    main(*sys.argv[1:])
