"""A callback that notes the steps of a fit."""

from __future__ import annotations

import keras
from journal import Journal


class Steps(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes each step that begins: it comes after the PreemptionCallback, which lets no extra one begin."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """The boundary is passed."""
        self._journal.step()

    def get_state(self) -> dict[str, object]:
        """Nothing to keep; without this the PreemptionCallback warns that nothing is kept."""
        return {}

    def set_state(self, state: dict[str, object]) -> None:
        """See `get_state`."""
