"""The set-up that a run trains on, and what of it may change when the run continues on other workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from keras_preempt.checkpoint.documents import of_file
from keras_preempt.checkpoint.errors import one_line
from keras_preempt.process.words import counted

SETUP = "setup"
"""The field of a worker's state that holds the `Setup` it was saved on."""


@dataclass(frozen=True)
class Setup:
    """What one start of a run trains on. Each worker keeps it in the state that it saves.

    Attributes:
        workers: Processes that train.
        replicas: Copies of the model that train, over all workers.
        global_batch: Samples in one step, over all replicas; None where that cannot be seen.
        batches: Steps in one epoch; None where that cannot be seen.
        built_from: Iterators over the training data that Keras has made before it calls a callback: under a
            strategy it draws a batch to build the model.
        layout: How the variables are divided among the devices, in words; empty if they are not.
    """

    workers: int
    replicas: int
    global_batch: int | None
    batches: int | None
    built_from: int
    layout: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON data; without an empty layout, as before there was such a field."""
        return {name: value for name, value in asdict(self).items() if name != "layout" or value}

    @classmethod
    def from_json(cls, value: object, file: str) -> Setup:
        """Returns what `to_json` was called on; raises `CorruptCheckpoint`, naming `file`, for anything else."""
        fields = of_file(value, file)
        setup = cls(
            workers=fields.integer("workers", minimum=1),
            replicas=fields.integer("replicas", minimum=1),
            global_batch=None if fields.null("global_batch") else fields.integer("global_batch", minimum=1),
            batches=None if fields.null("batches") else fields.integer("batches", minimum=1),
            built_from=fields.integer("built_from", maximum=1),
            layout=fields.text("layout", longest=None) if fields.has("layout") else "",
        )
        fields.end()
        return setup

    def __str__(self) -> str:
        workers = counted(self.workers, "worker")
        if self.layout:
            return f"{workers} ({one_line(self.layout)})"
        return workers if self.replicas == self.workers else f"{workers} with {self.replicas} replicas"


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[tuple[str, object, object]]:
    """Returns what of a setup differs in a way that no other number of workers explains: name, stored, wanted value.

    On as many workers and replicas all of it has to be the same. On others the batch may have been scaled with
    them, and then the steps of an epoch with the batch: but not the number of samples that an epoch goes through.
    """
    resized = (stored["workers"], stored["replicas"]) != (wanted["workers"], wanted["replicas"])
    names = [name for name in ("global_batch", "batches") if stored[name] != wanted[name]]
    if resized and ("batches" not in names or _same_samples(stored, wanted)):
        return []
    return [(name, stored[name], wanted[name]) for name in names]


def _same_samples(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether an epoch can be the same samples in other batches, the last of which may be part or dropped."""
    batches, batch = (stored["batches"], wanted["batches"]), (stored["global_batch"], wanted["global_batch"])
    if None in batches or None in batch:
        return True  # What cannot be seen is not held against anybody.
    least, most = (
        [(steps + more) * size for steps, size in zip(batches, batch, strict=True)] for more in (-1, 1)
    )
    return bool(max(least) < min(most))
