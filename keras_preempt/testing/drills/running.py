"""`drill`: runs the drill of the command line on a script or a function, and returns its verdict.

The command runs in a process of its own, and its JSON is the contract: nothing of it is imported here.
"""

from __future__ import annotations

import json
import os
import signal as signals
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from keras_preempt.process import environment as variables
from keras_preempt.testing.drills import child
from keras_preempt.testing.drills.verdict import DrillVerdict, from_json

_LONGEST_OUTPUT = 64 << 10  # bytes of output that a verdict holds
_BETWEEN = 60.0  # seconds that a start may take beyond its timeout, to end its processes and to compare
_ENDING = 60.0  # seconds that the command has to end its workers and remove its files when it is told to stop
_USAGE = 2


def drill(
    target: str | os.PathLike[str] | Sequence[str] | Callable[..., object],
    *arguments: Any,
    workers: int = 1,
    preempt: int | None = None,
    at: str | Sequence[str] = (),
    signal: str = "SIGTERM",
    kill: bool = False,
    grace: float | None = None,
    save_every: int | str | None = None,
    memory_every: int | str | None = None,
    gcs_faults: str | None = None,
    s3_faults: str | None = None,
    azure_faults: str | None = None,
    isolate: bool = False,
    twice: bool = False,
    seed: int | None = None,
    timeout: float = 3600.0,
    keep: str | os.PathLike[str] | None = None,
    restart_codes: Sequence[int] = (),
    environment: Mapping[str, str | None] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> DrillVerdict:
    """Trains undisturbed, then with real preemptions, and compares the results bit by bit.

    The same as ``keras-preempt drill``, for tests; docs/drill.md says what a script has to do and what the options
    mean. Everything that was started has ended when this returns or raises, also at Ctrl-C, and with this process.
    With pytest, the fixture `preemption_drill` does the same, and keeps the log in the test's `tmp_path`.

    Args:
        target: What trains. A path: a script for this Python. A list: a command, such as ``["bash", "train.sh"]``. A
            function at the top level of a module: the workers import the module and call it.
        *arguments: For the script or command, as text; for the function, what JSON can hold.
        workers: Worker processes. With two or more, the training has to make its model under
            MultiWorkerMirroredStrategy.
        preempt: Preemptions at random steps; None for one, or for none with `at`.
        at: Further moments: "step:N", "validation", "validation:K", "saving", "saving:K", "leaving", "leaving:N".
        signal: The signal that is the notice.
        kill: Whether SIGKILL comes without a notice.
        grace: A grace period in seconds; None for that of the script.
        save_every: Replaces `save_every` of the script.
        memory_every: Replaces `memory_every` of the script; with `kill` and several workers, what the killed one has
            in memory goes with it.
        gcs_faults: A mix of faults, such as "all", for a fake bucket that takes the place of the directory.
        s3_faults: The same for a bucket of S3.
        azure_faults: The same for a container of Azure.
        isolate: Whether each run gets a copy of the working directory.
        twice: Whether to train undisturbed once more if the results differ.
        seed: Chooses steps and workers; None draws one, which the verdict has.
        timeout: Seconds that one start of the job may take. From this and the number of starts follows how long the
            whole drill may take.
        keep: A new or empty directory, or ``gs://bucket/prefix``, for the checkpoints of both runs.
        restart_codes: Exit statuses by which a worker says that it was preempted; empty for those of the command.
        environment: Variables for the drill and its workers beside those of this process; None removes one.
        cwd: The working directory; None for this process's.
        log: A file for all that the drill and its workers print; None for none.

    Returns:
        The verdict, also if there is none because a run failed: `DrillVerdict.why_none` says why then.

    Raises:
        ValueError: An argument is invalid, or the function cannot be imported by the workers.
        TimeoutError: The drill did not end in time.
        RuntimeError: It ended without a verdict to read, or this is a worker of a drill itself.

    Example:
        >>> from keras_preempt.testing import drill
        >>> def test_no_step_is_lost():
        ...     verdict = drill("train.py", "--epochs", 2, preempt=2)
        ...     assert verdict.identical, verdict
    """
    if os.environ.get(variables.DRILL_DIRECTORY):
        raise RuntimeError(
            "Expected drill to be called by a test. Received: a call in a worker that a drill has started. Call it "
            "below `if __name__ == '__main__':`, or in another module than the function that is drilled."
        )
    moments = [at] if isinstance(at, str) else list(at)
    kept = None if keep is None else os.fspath(keep)
    options: dict[str, Any] = {"workers": workers, "preempt": preempt, "at": moments, "signal": signal}
    options |= {
        "kill": kill,
        "grace": grace,
        "save-every": save_every,
        "memory-every": memory_every,
        "gcs-faults": gcs_faults,
        "s3-faults": s3_faults,
        "azure-faults": azure_faults,
    }
    options |= {"isolate": isolate, "twice": twice, "seed": seed, "timeout": timeout, "keep": kept}
    options["restart-code"] = restart_codes
    line = [sys.executable, "-m", child.__name__, "command", str(os.getpid()), "drill", "--json"]
    for name, value in options.items():
        if isinstance(value, bool):
            line += [f"--{name}"] * value
        elif isinstance(value, (list, tuple)):
            line += [word for each in value for word in (f"--{name}", str(each))]
        elif value is not None:
            line += [f"--{name}", str(value)]
    line += ["--", *_command(target, arguments)]
    starts = len(moments) + (preempt or (0 if moments else 1)) + 2 + twice
    file = None if log is None else Path(log).absolute()
    try:
        output: IO[bytes] = tempfile.TemporaryFile() if file is None else file.open("w+b")  # noqa: SIM115
    except OSError as error:
        raise ValueError(
            f"Expected log to be a file that can be written. Received: {str(file)!r} ({error.strerror})."
        ) from None
    with output, tempfile.TemporaryFile() as answer:
        process = subprocess.Popen(
            line,
            env=_environment(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches this process, which ends the drill.
        )
        in_time = _wait(process, starts * (timeout + _BETWEEN))
        output.seek(max(0, output.seek(0, os.SEEK_END) - _LONGEST_OUTPUT))
        end_of_output = output.read().decode(errors="replace")
        answer.seek(0)
        text = answer.read().decode()
    if not in_time:
        raise TimeoutError(
            f"Expected the drill to end within {starts * (timeout + _BETWEEN):.0f} s. Received: one that went on, and "
            f"was ended. The end of its output:\n{end_of_output}"
        )
    if process.returncode == _USAGE:
        raise ValueError(end_of_output.strip().removeprefix("Error: "))
    try:
        verdict = json.loads(text)
    except ValueError:
        raise RuntimeError(
            f"Expected a verdict of keras-preempt drill. Received: exit status {process.returncode} and "
            f"{text[:200]!r}. The end of its output:\n{end_of_output}"
        ) from None
    return from_json(verdict, end_of_output, file, kept)


def _command(target: object, arguments: Sequence[Any]) -> list[str]:
    if callable(target):
        return child.call_command(target, arguments)
    words = [str(argument) for argument in arguments]
    if isinstance(target, (str, os.PathLike)):
        return [sys.executable, os.fspath(target), *words]
    of_words = isinstance(target, Sequence) and all(isinstance(word, (str, os.PathLike)) for word in target)
    if isinstance(target, Sequence) and target and of_words:
        return [*(str(os.fspath(word)) for word in target), *words]
    raise ValueError(
        f"Expected the path of a script, a command as a list of words, or a function. Received: {target!r}."
    )


def _environment(changes: Mapping[str, str | None] | None) -> dict[str, str]:
    """This process's environment with changes, in which the same package is found."""
    found: dict[str, str | None] = {**os.environ, **(changes or {})}
    home = str(Path(__file__).parents[3])
    if home not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [home, found.get("PYTHONPATH")]))
    return {name: value for name, value in found.items() if value is not None}


def _wait(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Waits for the command, and ends it when time is up or an error comes; its workers end with it."""
    try:
        process.wait(limit)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            process.send_signal(signals.SIGTERM)
            try:
                process.wait(_ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
