"""Whatever becomes of the launcher's own output, the job goes on."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios

import pytest

from tests.cli.launched import ENV, Launched

_PRINTS = """
print("begun", flush=True)
for line in range({lines}):
    print("line", line)
saved(0, finished=True)
"""


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ('exec "$@" >&-', "it is closed"),
        ('exec "$@" >/dev/full', "No space left on device"),
        ('exec "$@" >&- 2>&-', None),
        ('exec "$@" >/dev/full 2>/dev/full', None),
    ],
)
def test_a_job_whose_output_cannot_be_written_continues_to_its_end(
    launched: Launched, before: str, why: str | None
) -> None:
    body = _PRINTS.format(lines=2000)
    process = launched.train(body, until="", before=before, stderr=subprocess.PIPE)
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "")
    assert launched.trace("saved-0").exists()
    said = [line for line in error.splitlines() if line]
    assert len(said) == (0 if why is None else 1), error  # Once, where it can be said.
    assert why is None or why in said[0]
    assert launched.left() == []


def test_output_that_nobody_reads_any_more_does_not_end_training(launched: Launched) -> None:
    process = launched.train(_PRINTS.format(lines=20_000), until="", stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert len(process.stderr.readlines()) == 1
    assert launched.trace("saved-0").exists()


def test_a_job_whose_terminal_is_gone_continues(launched: Launched) -> None:
    """A pty whose other side is closed answers every write with EIO. `setsid` keeps its SIGHUP away."""
    body = "print('begun', flush=True); listen(); until_go()\n" + _PRINTS.format(lines=2000)
    ours, theirs = pty.openpty()
    process = launched.train(body, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    os.close(ours)
    (launched.folder / "go").touch()
    assert process.wait(timeout=60) == 0
    assert launched.trace("saved-0").exists()


def test_a_job_whose_reader_has_stopped_reading_is_saved_when_it_is_told_to_stop(launched: Launched) -> None:
    """As under a pager, or with the terminal stopped by Ctrl-S: the pipe is full, and the worker stands in a print."""
    body = (
        "def print_for_ever():\n"
        "    while True: print('x' * 1000)\n"
        "listen(); threading.Thread(target=print_for_ever, daemon=True).start()\n"
        "until_signal(); sys.stdout.write('told\\n'); sys.stdout.flush(); saved(); os._exit(75)"
    )
    process = launched.train(body)
    assert process.stdout is not None
    _until_full(process.stdout.fileno())
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75


def test_characters_that_the_output_cannot_encode_are_replaced(launched: Launched) -> None:
    body = "sys.stdout.buffer.write('\\u2501 \\u00e9\\n'.encode()); saved(0, finished=True)"
    process = launched.train(body, until="", env={"PYTHONIOENCODING": "ascii"})
    assert launched.ended(process, 0).splitlines()[0] == "[w0] \\u2501 \\xe9"


def test_a_descriptor_that_was_closed_is_not_taken_by_another_file() -> None:
    """Else a library that writes to standard output in C would write into that file."""
    program = "import os, sys; from keras_preempt.cli.main import *; open_standard_descriptors(); " + (
        "print(os.readlink('/proc/self/fd/1'), file=sys.stderr)"
    )
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", program]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=ENV, timeout=60)
    assert result.stderr == "/dev/null\n"


def _until_full(descriptor: int) -> None:
    """Waits until nothing more goes into a pipe: its size stays what it is."""
    before = -1
    while True:
        (held,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))
        if held == before and held > 60_000:
            return
        before = held
        select.select([], [], [], 0.2)
