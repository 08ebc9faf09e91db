"""Checks whether a directory or bucket can be written, is durable, and has room; and the doctor's own places in it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from keras_preempt.checkpoint.errors import CheckpointError, StoreUnavailable
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.staging import StagingDirectory
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.doctor import mounts
from keras_preempt.cli.doctor.finding import Findings
from keras_preempt.cli.doctor.mounts import Fate
from keras_preempt.cli.terminal import shown_size
from keras_preempt.notices.platform import GENERIC_NAME, Platform

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
        said = str(error)
        before, separator, cure = said.rpartition(". ") if said.count(". ") > 1 else (said, "", "")
        found = f"{before}{separator}".strip()
        if operation in _NEEDED_FOR:
            found += f" Without it, {_NEEDED_FOR[operation]}."
        findings.problem(what, found, cure or "Give this account roles/storage.objectUser on the bucket.")
    if usable and store.path is not None:
        _check_durable(findings, store.url, store.path, platform)
    return usable


def _check_durable(findings: Findings, url: str, path: Path, platform: Platform) -> None:
    found = mounts.look(path)
    if found is None:
        findings.not_checked("durable", f"{url}: {mounts.MOUNTINFO} does not say what it is on.")
        return
    mount, fate = found
    where = f"{url} is on {mount.kind}, mounted on {mount.point}"
    names = platform.name.split("+")
    is_taken_back = names != [GENERIC_NAME]
    elsewhere = (
        "Pass a path on a disk or shared file system that outlives the machine, or gs://bucket/prefix."
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


def check_room(
    findings: Findings, store: Store, size: int, keep: int, share: int, staging_dir: str | None
) -> bool:
    """Checks that there is room for all checkpoints that exist at a time; returns whether there is.

    Args:
        findings: Collects findings.
        store: The directory; prepared.
        size: Bytes of one checkpoint.
        keep: `max_to_keep`. While one more is written, the others still exist.
        share: Bytes that this worker may have to stage on their way to a bucket.
        staging_dir: As the callback gets it.
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
        free, on = shutil.disk_usage(root).free, mounts.look(root)
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
    """Yields the store of such a place, and removes the place when the block ends."""
    store = open_store(url, staging_dir=staging_dir)
    try:
        yield store
    finally:
        _remove(store)
        store.close()


def _remove(store: Store) -> None:
    """Removes such a place, as far as permitted. Another check looks at the permissions."""
    store.deadline = None
    if store.path is not None:
        shutil.rmtree(store.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # Other workers' doctors are still there.
            store.path.parent.rmdir()
        return
    with contextlib.suppress(CheckpointError):
        for name in store.children(""):
            store.delete_tree(name)
            with contextlib.suppress(CheckpointError):
                store.delete(name)
