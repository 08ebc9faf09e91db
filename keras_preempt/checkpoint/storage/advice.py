"""What to do about an error of the operating system, in words."""

from __future__ import annotations

import errno

_A_FILE_IN_THE_WAY = "A part of that path is a file: remove it, or pass another directory."
_NO_RIGHT = (
    "Give the user that the job runs as the right to write there (chown, chmod), or pass another directory."
)

_ADVICE = {
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: (
        "That file system is mounted read-only, which no permission changes: mount it for writing (in a pod: without "
        "readOnly; after an error of the disk: repair it first), or pass a directory on another one."
    ),
    errno.ENOSPC: (
        "That file system is full: free some space (files, if `df -i` shows no free inodes), or pass a directory on a "
        "larger one."
    ),
    errno.EDQUOT: "The quota there is used up: free some space, have the quota raised, or pass another directory.",
    errno.ENOENT: "There is no such folder: make it, or pass another directory.",
    errno.ENOTDIR: _A_FILE_IN_THE_WAY,
    errno.EEXIST: _A_FILE_IN_THE_WAY,
    errno.ESTALE: (
        "The server of that network file system does not know the folder any more: mount it again, or pass another "
        "directory."
    ),
    errno.EIO: (
        "The disk, or the server of that file system, has failed: look at the kernel's log (dmesg), or pass a "
        "directory on another one."
    ),
}


def advice(error: OSError) -> str:
    """Returns what helps against an error of reading or writing in a directory."""
    return _ADVICE.get(
        error.errno or 0,
        "Check the permissions, the free space and the health of that file system, or pass another directory.",
    )
