"""Which directories the fits of this process are using: two at once would overwrite each other."""

from __future__ import annotations

from keras_preempt.checkpoint.storage.store import Store

_owners: dict[str, object] = {}


def in_use(store: Store) -> bool:
    """Tells whether a fit that is still running uses the directory."""
    return store.key in _owners


def claim(store: Store, owner: object) -> None:
    """Takes the directory for a fit.

    Raises:
        ValueError: A fit that is still running uses it.
    """
    if _owners.get(store.key, owner) is not owner:
        raise ValueError(
            f"Expected a directory that no other fit of this process is using. Received: "
            f"{store.url!r}, in which one is still running. Give each fit its own directory."
        )
    _owners[store.key] = owner


def release(store: Store, owner: object) -> None:
    """Gives the directory back, if it is this fit's. Can be called twice."""
    if _owners.get(store.key) is owner:
        del _owners[store.key]
