"""Exports weights to a safetensors file, without Keras and without TensorFlow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from keras_preempt.checkpoint.run_directory import read_chosen, read_run
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.tensors import stream
from keras_preempt.cli.export_output import told, written_whole
from keras_preempt.state.saved_weights import GROUP, read_weights

__all__ = ["export_safetensors"]


def export_safetensors(store: Store, step: int | None, out: Path) -> list[str]:
    """Writes the weights by the paths of their variables; returns what to say of it.

    Raises:
        CheckpointError: they cannot be read.
        CannotWrite: the file cannot be written.
    """
    info, weights = read_chosen(store, step, lambda info: read_weights(store, info))
    strings = _strings(read_run(store))
    left_out = [name for name in weights.values if name in strings]
    kept = replace(weights, values={name: v for name, v in weights.values.items() if name not in strings})
    with written_whole(out) as unfinished, open(unfinished, "wb") as file:
        for chunk in stream(kept.values):
            file.write(chunk.data)
    return told(out, info.step, store.url, kept, left_out)


def _strings(run: dict[str, object]) -> set[str]:
    model = run.get("model")
    assert isinstance(model, list)
    found = set()
    for variable in model:
        if isinstance(variable, dict) and variable.get("dtype") == "string":
            found.add(str(variable.get("name")).removeprefix(GROUP))
    return found
