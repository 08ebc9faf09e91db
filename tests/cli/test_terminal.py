from __future__ import annotations

import io
import subprocess
import sys

import pytest

from keras_preempt.cli.terminal import Terminal, is_silenced

EARLY = "I0000 00:00:1795172972.806394   30297 port.cc:153] oneDNN custom operations are on."
PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"


ERROR = "E0000 00:00:1795172972.806394 1 coordination.cc:1] lost"


@pytest.mark.parametrize("line", [EARLY, PREAMBLE, ERROR, "I0000", "Epoch 1/2", "WARNING: no seed", ""])
def test_exactly_the_lines_that_tensorflow_was_told_not_to_write_are_dropped(line: str) -> None:
    assert is_silenced(line, "3") == (line in (EARLY, PREAMBLE))
    assert not is_silenced(line, "0")


def test_a_silenced_line_does_not_reach_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal.worker_line(0, EARLY)
    terminal.worker_line(1, "Epoch 1/2")
    assert stream.getvalue() == "[w1] Epoch 1/2\n"


def test_a_reader_that_goes_away_ends_neither_lines_nor_tables() -> None:
    program = (
        "from keras_preempt.cli.terminal import Terminal\n"
        "terminal = Terminal()\n"
        "for _ in range(2000):\n"
        "    terminal.line('x' * 100)\n"
        "    terminal.table('t', ['a'], [['b' * 100]])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 0
