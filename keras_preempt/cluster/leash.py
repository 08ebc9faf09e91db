"""Ties a process to its launcher, then becomes the worker's command.

Run as a script that imports nothing from the package: ``python -I -S leash.py <launcher pid> <command...>``.
The kernel then kills the worker when its launcher is gone, even after a SIGKILL that no handler of the
launcher could see. A wrapper does what ``preexec_fn`` would, without running Python between fork and exec in
a process that has threads. The bond survives exec (prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def _follow_to_death(launcher: int) -> None:
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != launcher:  # It died before the bond was made.
        os._exit(128 + signal.SIGKILL)


def main(argv: list[str]) -> None:
    """Becomes the command ``argv[2:]``, bound to process ``argv[1]``; exits with 127 if it cannot start."""
    launcher, command = int(argv[1]), argv[2:]
    _follow_to_death(launcher)
    # A launcher in a shell's background ignores SIGINT, and exec would hand that on to the worker.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]!r}: {error.strerror}\n".encode())
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv)
