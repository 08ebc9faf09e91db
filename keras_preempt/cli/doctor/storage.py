"""Checks whether a directory or bucket can be written, is durable, has room and is fast.

The doctor writes into places of its own there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from keras_preempt.agreement.grace import MARGIN, reserve
from keras_preempt.checkpoint.errors import CheckpointError, StoreUnavailable
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.staging import StagingDirectory
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.doctor import mounts
from keras_preempt.cli.doctor.finding import Findings
from keras_preempt.cli.doctor.mounts import Fate
from keras_preempt.cli.terminal import shown_size
from keras_preempt.notices.cloud import Grace
from keras_preempt.notices.platform import GENERIC_NAME, Platform

_PIECE = 4 << 20  # bytes
_LEAST_PATIENCE = 30.0  # seconds for requests that are in flight when time is up
_LEAST = 0.01  # seconds; shorter times are not measured

_NEEDED_FOR = {
    "create": "no checkpoint could be saved",
    "read": "no checkpoint could be restored",
    "list": "a restart could not find its checkpoint, and would begin at step 0",
    "delete": "superseded checkpoints would pile up, and training refuses to start",
}


def check_place(findings: Findings, store: Store, platform: Platform) -> bool:
    """Checks that a place can be written and is durable; returns whether it can be written."""
    usable = True
    for operation, error in store.check_access():
        what = "directory" if store.is_local else f"permission to {operation}"
        if error is None:
            can = "can be written" if store.is_local else f"this account may {operation} objects"
            findings.ok(what, f"{store.url} {can}." if store.is_local else f"{store.url}: {can}.")
            continue
        usable = False
        # The last sentence is the cure; an ellipsis in it, as of a command, ends no sentence.
        *sentences, last = re.split(r"(?<=[^.]\.) ", str(error))
        found, cure = (" ".join(sentences), last) if len(sentences) > 1 else (str(error), "")
        if operation in _NEEDED_FOR:
            found += f" Without it, {_NEEDED_FOR[operation]}."
        findings.problem(what, found, cure or "Check the permissions there.")
    if usable and store.path is not None:
        _check_durable(findings, store.url, store.path, platform)
    return usable


def _check_durable(findings: Findings, url: str, path: Path, platform: Platform) -> None:
    found = mounts.mount_at(path)
    if found is None:
        findings.not_checked("durable", f"{url}: {mounts.MOUNTINFO} does not say what it is on.")
        return
    mount, fate = found
    where = f"{url} is on {mount.kind}, mounted on {mount.point}"
    names = platform.name.split("+")
    is_taken_back = names != [GENERIC_NAME]
    elsewhere = (
        "Pass a path on a disk or shared file system that outlives the machine, or the URL of a bucket."
    )
    if "kubernetes" in names:
        elsewhere += " In a pod: mount a persistent volume there."
    if fate is Fate.MEMORY:
        findings.problem("durable", f"{where}, which is memory: all of it goes with the machine.", elsewhere)
    elif fate is Fate.CONTAINER:
        layer = (
            f"{where}, the container's own layer: it goes with the container, and a restart gets a new one."
        )
        add = findings.problem if is_taken_back else findings.warning
        add("durable", layer, elsewhere)
    elif not is_taken_back or fate is Fate.STAYS:
        findings.ok("durable", f"{where}. It has to be there when the job is started again.")
    elif "sagemaker" in names:
        findings.not_checked(
            "durable",
            f"{where}. Whether SageMaker copies it to S3 and back cannot be seen from here: it does so with the local "
            "path of the job's CheckpointConfig alone.",
        )
    elif fate is Fate.POD:
        findings.problem("durable", f"{where}, an emptyDir volume: it goes with the pod.", elsewhere)
    elif fate is Fate.MACHINE:
        findings.problem(
            "durable",
            f"{where}, the machine's own disk ({mount.source}): it goes with the machine, and what starts the job "
            "again may do so on another one.",
            elsewhere,
        )
    else:
        findings.not_checked(
            "durable",
            f"{where}, a disk of its own ({mount.source}). Whether that outlives the machine cannot be seen from here: "
            "a persistent disk or volume that the next machine gets does; a local SSD, an instance store or a "
            "temporary disk does not.",
        )


def check_free_space(
    findings: Findings, store: Store, size: int, keep: int, share: int, staging_dir: str | None
) -> bool:
    """Checks that there is room for the checkpoints that are kept and the one being written; returns whether there is.

    On their way to a bucket this worker may have to stage its share of the bytes.
    """
    if store.path is None:
        return _check_staging(findings, share, staging_dir)
    usage = shutil.disk_usage(store.path)
    needed = size * (keep + 1)
    found = f"{keep} checkpoints of {shown_size(size)} and the one that is being written need {shown_size(needed)}"
    if needed > usage.free:
        findings.problem(
            "room",
            f"{found}; {store.url} has {shown_size(usage.free)} free of {shown_size(usage.total)}: a save would fail.",
            f"Free {shown_size(needed - usage.free)} there, keep fewer (max_to_keep; --max-to-keep here), or pass a "
            "directory on a larger file system.",
        )
        return False
    findings.ok("room", f"{found}; {store.url} has {shown_size(usage.free)} free.")
    return True


def _check_staging(findings: Findings, share: int, staging_dir: str | None) -> bool:
    try:
        staging = StagingDirectory(staging_dir)
    except StoreUnavailable as error:
        findings.problem(
            "staging", str(error), "Pass staging_dir (--staging-dir here), a directory on a local disk."
        )
        return False
    try:
        root = staging.path.parent
        free, on = shutil.disk_usage(root).free, mounts.mount_at(root)
        found = f"{shown_size(share)} are staged in {root} on their way to the bucket; {shown_size(free)} free there"
        elsewhere = "Pass staging_dir (--staging-dir here) on a larger local disk."
        if free < share:
            findings.problem("staging", f"{found}: a save would fail.", elsewhere)
            return False
        if on is not None and on[1] is Fate.MEMORY:
            findings.warning(
                "staging",
                f"{found}, and it is memory ({on[0].kind}), which training needs as well.",
                elsewhere,
            )
        else:
            findings.ok("staging", f"{found}.")
        return True
    finally:
        staging.remove()


def place_of(directory: str, name: str) -> str:
    """Returns a place for the doctor's own files that no job takes for its own, given the directory of the callback."""
    return f"{open_store(directory).beside('doctor')}/{name}"


@contextlib.contextmanager
def removed_afterwards(url: str, staging_dir: str | None = None) -> Iterator[Store]:
    """Yields the store of such a place; then removes the place as far as permitted, which another check looks at."""
    store = open_store(url, staging_dir=staging_dir)
    try:
        yield store
    finally:
        store.deadline = None
        if store.path is not None:
            shutil.rmtree(store.path, ignore_errors=True)
            with contextlib.suppress(OSError):  # Other workers' doctors are still there.
                store.path.parent.rmdir()
        else:
            with contextlib.suppress(CheckpointError):
                for name in store.children(""):
                    store.delete_tree(name)
                    with contextlib.suppress(CheckpointError):
                        store.delete(name)
        store.close()


def _measure(store: Store, size: int, limit: float) -> float | None:
    """Writes `size` bytes to a place of the doctor; returns the seconds, or None if they are more than `limit`.

    The bytes are random, so that no file system or network can compress them. Raises StoreUnavailable if the storage
    fails while there is time.
    """
    piece = os.urandom(_PIECE)
    began = time.monotonic()
    written = 0

    def time_is_up() -> bool:
        return time.monotonic() - began > limit

    # Nothing is begun when time is up, and requests in flight are waited for: an abandoned one may still be carried out
    # after its object was removed, and leave it behind.
    store.deadline = began + limit + max(limit, _LEAST_PATIENCE)
    each = store.file_size(size)
    try:
        with store.overlapped():
            number = 0
            while written < size and not time_is_up():
                with store.writer(f"save/{number:06d}") as file:
                    left = min(each, size - written)
                    while left and not time_is_up():
                        part = memoryview(piece)[: min(left, _PIECE)]
                        file.write(part)
                        left -= len(part)
                        written += len(part)
                number += 1
    except StoreUnavailable:
        if not time_is_up():
            raise
    finally:
        store.deadline = None
    seconds = max(time.monotonic() - began, _LEAST)
    return seconds if seconds <= limit and written == size else None


def check_save_fits(findings: Findings, store: Store, size: int, grace: Grace, source: str) -> None:
    """Measures a save of `size` bytes in a place of the doctor; `source` says where that number comes from."""
    try:
        seconds = _measure(store, size, grace.seconds)
    except CheckpointError as error:
        findings.problem(
            "save",
            f"Writing {shown_size(size)} ({source}) failed: {error}",
            "Correct what the storage says.",
        )
        return
    of_grace = f"of the {grace.seconds:g} s of grace"
    cure = (
        "Give the job more grace (terminationGracePeriodSeconds, --signal, GraceTime), a faster place, or more workers "
        "to share the writing. Until then save_every bounds what is lost."
    )
    if seconds is None:
        findings.problem(
            "save",
            f"A save of {shown_size(size)} ({source}) does not fit: it was not over when all {of_grace} were used up.",
            cure,
        )
        return
    speed = f"{shown_size(size / seconds)}/s"
    took = f"A save of {shown_size(size)} ({source}) took {seconds:.1f} s ({speed}) {of_grace}"
    if seconds + MARGIN > grace.seconds:
        findings.problem(
            "save", f"{took}, which leaves less than the {MARGIN:g} s that a step and leaving need.", cure
        )
    elif reserve(seconds, 0.0, 0.0) > grace.seconds:
        findings.warning("save", f"{took}. One that takes twice as long would not fit.", cure)
    else:
        findings.ok("save", f"{took}.")
