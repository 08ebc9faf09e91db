"""Runs what must hold with a Keras and a TensorFlow to be called verified, at both ends of the range.

For each of oldest.txt and newest.txt beside this file: the canaries, which look at every private name that is relied
upon, and a drill, which preempts two workers once and compares every bit. An end whose versions the running
interpreter has is run by it; for another one, a virtual environment is made beside this repository's own, and kept.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
ENDS = ("oldest", "newest")

CANARIES = (
    "tests/test_keras_canaries.py",
    "tests/test_keras_fit_canaries.py",
    "tests/test_tensorflow_canaries.py",
)
TESTED_WITH = ("pytest", "pytest-timeout")

_PATIENCE = 1200.0  # seconds for the canaries, and for the drill

# Quiet TensorFlow, plain arithmetic; two workers cannot share one GPU.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}


def pins(end: str) -> dict[str, str]:
    """Returns the version of each package at that end, by its name."""
    lines = (HERE / f"{end}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def is_installed(wanted: dict[str, str]) -> bool:
    """Whether the running interpreter has exactly these versions."""
    try:
        return all(metadata.version(package) == version for package, version in wanted.items())
    except metadata.PackageNotFoundError:
        return False


def interpreter(end: str) -> Path:
    """Returns a Python with the versions of that end; makes a virtual environment for it if need be."""
    if is_installed(pins(end)):
        return Path(sys.executable)
    folder = REPOSITORY / f".venv-{end}"
    python, ready = folder / "bin" / "python", folder / "ready"
    asked_for = (HERE / f"{end}.txt").read_text() + (REPOSITORY / "pyproject.toml").read_text()
    if ready.is_file() and ready.read_text() == asked_for:
        return python
    print(f"Installing the {end} versions into {folder.name}; this takes some minutes once.", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    install = ["-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile"]
    constraint = ["-c", str(HERE / f"{end}.txt")]
    subprocess.run(
        [python, *install, "-e", ".[tensorflow,examples]", *TESTED_WITH, *constraint],
        cwd=REPOSITORY,
        check=True,
    )
    ready.write_text(asked_for)
    return python


def canaries(python: Path) -> list[str]:
    """Returns the command that looks at every private name."""
    return [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *CANARIES]


def drill(python: Path, folder: str) -> list[str]:
    """Returns the command that preempts two workers once; `folder` is there for the checkpoints."""
    job = [str(python), "examples/digits.py", folder, "--epochs", "2", "--batch-size", "64"]
    tool = [str(python), "-m", "keras_preempt.cli.main", "drill"]
    return [*tool, "--workers", "2", "--preempt", "1", "--seed", "1", "--", *job]


def verify(end: str) -> bool:
    """Runs everything at one end; says how it went and how long it took."""
    wanted = pins(end)
    title = f"{end}: Keras {wanted['keras']}, TensorFlow {wanted['tensorflow']}"
    began = time.monotonic()
    python = interpreter(end)
    installed = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for what, command in (("canaries", canaries(python)), ("drill", drill(python, f"{folder}/run"))):
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                env={**os.environ, **_ENVIRONMENT},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_PATIENCE,
            )
            last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")
            if done.returncode != 0:
                print(f"{done.stdout}\nFAILED with the {title}: {what}", flush=True)
                return False
            print(f"{title}: {what}: {last}", flush=True)
    tried = time.monotonic()
    print(
        f"{title}: installed in {installed - began:.0f} s, verified in {tried - installed:.0f} s", flush=True
    )
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=ENDS, help="one end; without it, both")
    only = parser.parse_args(arguments).only
    # Both, also if one fails: what else fails is worth knowing.
    results = [verify(end) for end in ([only] if only else ENDS)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
