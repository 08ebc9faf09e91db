"""The identity of a run, in run.json: checked at every start, before anything else is read or written."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CorruptCheckpoint,
    ForeignDirectory,
    IdentityMismatch,
    NotFound,
    one_line,
)
from keras_preempt.checkpoint.layout import EVENTS, RUN
from keras_preempt.checkpoint.setup import differences
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.values import check_distinct
from keras_preempt.process.words import some

_SHOWN = 10  # differences that a message lists
_ABSENT = "nothing"
_NUMBERS_DIFFER = (
    "If the model was made a second time in the same process: Keras goes on numbering names; call "
    "keras.utils.clear_session() before it is made. "
)
_OLDER_RELEASE = (
    "If the program is the same: this release of keras-preempt keeps what the one that started the run did not know "
    "of, such as the optimizers of inner models; finish the run with that release. "
)
_BACKENDS = {"int64": "tensorflow", "int32": "jax"}
"""What Keras counts an optimizer's steps in, by the backend that it runs on, unless the run names its backend."""

NAMED = "backend"
"""The field of a run's configuration that names its backend, where another one counts steps in the same type."""

# A worker may log before the first one has made run.json; a freshly made file system has lost+found.
_HARMLESS = {EVENTS, "lost+found"}


def check_or_create(
    store: Store, identity: Mapping[str, Any], beside: Collection[str] = ()
) -> dict[str, Any]:
    """Claims an empty directory, or makes sure that it belongs to this model and run; returns the stored identity.

    Its `run_id` is the one that the first start gave it. After an error nothing was changed.

    Args:
        store: The directory.
        identity: ``{"format": 1, "run_id": str, "model": [{"name", "shape", "dtype"}, ...], "optimizer": [the
            same], "optimizer_class": str, "setup": Setup.to_json(), "config": {field: value}}``, with
            ``"complete": False`` where the model makes more variables while it trains. `run_id` is not compared, and
            of the setup only what another number of workers does not change: see `setup.differences`.
        beside: Names that may be in a directory that counts as empty.

    Raises:
        ForeignDirectory: It holds files, but no run.json.
        IdentityMismatch: It belongs to another model or configuration; the message names what differs.
        CorruptCheckpoint: Its run.json is not what was written; `UnsupportedFormat` if it has a newer format.
    """
    data = documents.encode_document(identity)
    wanted = documents.decode_document(data, RUN)
    for group in ("model", "optimizer"):
        check_distinct(variable["name"] for variable in wanted[group])
    try:
        return _checked(store, wanted)
    except NotFound:
        pass
    names = [name for name in store.children("") if name not in {*_HARMLESS, RUN, *beside}]
    if names:
        shown = some([one_line(name) for name in names], _SHOWN)
        raise ForeignDirectory(
            f"Expected an empty directory or one of keras_preempt's. Received: {store.url} holding {shown}. "
            "Pass a new directory, such as a subdirectory of this one; nothing was changed."
        )
    try:
        store.create(RUN, data)
    except AlreadyExists:  # another worker was faster
        return _checked(store, wanted)
    return wanted


def _checked(store: Store, wanted: dict[str, Any]) -> dict[str, Any]:
    stored = documents.read_document(store, RUN)
    try:
        differences = _differences(stored, wanted)
        if not isinstance(stored["run_id"], str):
            raise TypeError("run_id is no string")
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(RUN, f"an unexpected structure ({error!r:.200})") from error
    if differences:
        shown = differences[:_SHOWN]
        if len(differences) > _SHOWN:
            shown.append(f"and {len(differences) - _SHOWN} more")
        elsewhere = _of_another_backend(stored, wanted)
        older = not elsewhere and all(f": expected {_ABSENT}, " in each for each in differences)
        raise IdentityMismatch(
            f"Expected the model and configuration that {store.url} was started with. Received: "
            f"{len(differences)} {'difference' if len(differences) == 1 else 'differences'}:\n  "
            + "\n  ".join(shown)
            + "\n"
            + elsewhere
            + "Pass another directory for this run, or go back to the program that started it. "
            + (_NUMBERS_DIFFER if _differ_in_numbers_alone(stored, wanted) else "")
            + (_OLDER_RELEASE if older else "")
            + "Nothing was changed."
        )
    return stored


def _differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    found = []
    if stored["optimizer_class"] != wanted["optimizer_class"]:
        found.append(("optimizer class", stored["optimizer_class"], wanted["optimizer_class"]))
    old_is_complete, new_is_complete = (bool(each.get("complete", True)) for each in (stored, wanted))
    for group in ("model", "optimizer"):
        old, new = (
            {variable["name"]: f"{variable['dtype']}{list(variable['shape'])}" for variable in each[group]}
            for each in (stored, wanted)
        )
        for name in sorted(old.keys() | new.keys()):
            if (name not in old and not old_is_complete) or (name not in new and not new_is_complete):
                continue  # A variable that is made only while the model trains: its checkpoint is held against it.
            if old.get(name) != new.get(name):
                found.append((f"{group} variable {name}", old.get(name, _ABSENT), new.get(name, _ABSENT)))
    for field, old_value, new_value in differences(stored["setup"], wanted["setup"]):
        found.append((f"setup {field}", repr(old_value), repr(new_value)))
    old, new = stored["config"], wanted["config"]
    for field in sorted(old.keys() | new.keys()):
        if (field in old) != (field in new) or old[field] != new[field]:
            expected, received = (repr(each[field]) if field in each else _ABSENT for each in (old, new))
            found.append((f"config {field}", expected, received))
    return [
        f"{one_line(what)}: expected {one_line(str(expected))}, received {one_line(str(received))}"
        for what, expected, received in found
    ]


def _of_another_backend(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Says so if the run was started on another backend of Keras; empty if it was not."""
    counted = [
        {
            variable["name"]: identity["config"].get(NAMED) or _BACKENDS.get(variable["dtype"])
            for variable in identity["optimizer"]
            if variable["name"].endswith("/iteration")
        }
        for identity in (stored, wanted)
    ]
    for name, before in counted[0].items():
        now = counted[1].get(name)
        if before and now and before != now:
            return (
                f"The run was started on another backend of Keras, {before}, and this program runs on {now}. A "
                f"checkpoint of one does not continue on the other: set KERAS_BACKEND={before} to continue it. "
            )
    return ""


def _differ_in_numbers_alone(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the variables would be the same but for the numbers that Keras puts after names."""
    plain = []
    for identity in (stored, wanted):
        variables = [variable for group in ("model", "optimizer") for variable in identity[group]]
        names = [re.sub(r"_[0-9]+(?=/|#|$)", "", variable["name"]) for variable in variables]
        plain.append(sorted(zip(names, (str(variable["shape"]) for variable in variables), strict=True)))
    different = {v["name"] for v in (*stored["model"], *stored["optimizer"])} != {
        v["name"] for v in (*wanted["model"], *wanted["optimizer"])
    }
    return different and plain[0] == plain[1]
