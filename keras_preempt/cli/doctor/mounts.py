"""Which file system a path is on, and whether that outlives the machine, as far as /proc/self/mountinfo says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

MOUNTINFO = "/proc/self/mountinfo"

_IN_MEMORY = {"tmpfs", "ramfs", "rootfs", "devtmpfs"}
_OF_A_CONTAINER = {"overlay", "aufs", "fuse.fuse-overlayfs"}
# The root of a container in a virtual machine or sandbox (Kata Containers, gVisor); elsewhere a folder of its host.
_SHARED_BY_A_HOST = {"9p", "virtiofs"}
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs"),
    *("lustre", "gpfs", "beegfs", "ceph", "glusterfs", "pvfs2", "panfs", "wekafs", "ocfs2", "gfs2"),
    *_SHARED_BY_A_HOST,
}
# What a container runtime mounts from the disk of the node, so that it tells which disk that is.
_FROM_THE_NODE = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
_SCRATCH_OF_A_POD = "kubernetes.io~empty-dir"


class Fate(Enum):
    """What becomes of a file system when its machine goes away."""

    MEMORY = auto()
    CONTAINER = auto()
    POD = auto()
    MACHINE = auto()
    STAYS = auto()
    UNKNOWN = auto()


@dataclass(frozen=True)
class Mount:
    """A line of /proc/PID/mountinfo, see proc_pid_mountinfo(5)."""

    number: int
    parent: int  # The number of the mount that it is mounted on.
    root: str  # The folder of the file system that is seen at the mount point.
    point: str
    kind: str  # The type of the file system, such as "ext4".
    source: str  # The device, server or name that is mounted.


def parse_mountinfo(text: str) -> list[Mount]:
    """Returns the mounts that a text in the format of /proc/PID/mountinfo lists; lines of another form are left out."""
    found = []
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields, (kind, source, *_) = head.split(" "), [*tail.split(" "), "", ""]
        if len(fields) >= 6 and fields[0].isdecimal() and fields[1].isdecimal() and kind:
            # Spaces, tabs, newlines and backslashes are written as octal numbers.
            root, point, source = (
                re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), each)
                for each in (fields[3], fields[4], source)
            )
            found.append(Mount(int(fields[0]), int(fields[1]), root, point, kind, source))
    return found


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Returns the mount that an absolute path without symbolic links is on; None if the list does not say.

    One mount can hide another, so the path is followed from the root, as the kernel does.
    """
    numbers = {mount.number for mount in mounts}
    here = next(
        (m for m in mounts if m.point == "/" and (m.parent not in numbers or m.parent == m.number)), None
    )
    left = list(mounts)
    while here is not None:
        left.remove(here)
        on_the_way = [
            m for m in left if m.parent == here.number and f"{path}/".startswith(f"{m.point.rstrip('/')}/")
        ]
        if not on_the_way:
            break
        here = min(on_the_way, key=lambda mount: len(mount.point))
    return here


def fate_of(mount: Mount, mounts: Sequence[Mount]) -> Fate:
    """Returns what becomes of the files on a mount when the machine goes away.

    A disk of its own that is mounted somewhere may be one that is attached to the next machine, or one that comes and
    goes with this one: that is `Fate.UNKNOWN`.
    """
    if mount.kind in _IN_MEMORY:
        return Fate.MEMORY
    if mount.kind in _OF_A_CONTAINER or (mount.kind in _SHARED_BY_A_HOST and mount.point == "/"):
        return Fate.CONTAINER
    if mount.kind in _NETWORK or re.match(r"fuse\b", mount.kind):
        return Fate.STAYS
    if f"/{_SCRATCH_OF_A_POD}/" in mount.root:
        return Fate.POD
    tell_the_disk = (mount_of(path, mounts) for path in ("/", *_FROM_THE_NODE))
    own = {_disk(each) for each in tell_the_disk if each is not None and each.source.startswith("/dev/")}
    return Fate.MACHINE if mount.point == "/" or _disk(mount) in own else Fate.UNKNOWN


def mount_at(path: Path) -> tuple[Mount, Fate] | None:
    """Returns the mount that an absolute path without symbolic links is on here, and its fate; None if unknown."""
    try:
        mounts = parse_mountinfo(Path(MOUNTINFO).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    mount = mount_of(str(path), mounts)
    return None if mount is None else (mount, fate_of(mount, mounts))


def _disk(mount: Mount) -> str:
    """Returns the disk that a partition is part of: /dev/sda for /dev/sda1, /dev/nvme0n1 for /dev/nvme0n1p2."""
    partition = re.fullmatch(
        r"(/dev/(?:[hsv]d[a-z]+|xvd[a-z]+))\d*|(/dev/(?:nvme\d+n\d+|mmcblk\d+))(?:p\d+)?", mount.source
    )
    return next(filter(None, partition.groups())) if partition else mount.source
