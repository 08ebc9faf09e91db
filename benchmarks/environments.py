"""Environments of their own for the peers of a benchmark, made from requirements in peers/ and kept."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

PEERS = Path(__file__).parent / "peers"


class CannotInstall(RuntimeError):
    """A peer cannot be installed on this machine; says what its installer said last."""


def python_of(peer: str, folder: Path, share: Path | None = None) -> str:
    """Returns the Python of a peer's environment; makes it where there is none with the requirements of today.

    Args:
        peer: The name of its requirements, such as "lightning".
        folder: Where the environments are.
        share: A folder of packages (site-packages of another environment) that need not be installed once more, such
            as PyTorch with CUDA; those with another version than required are installed all the same.

    Raises:
        CannotInstall: See there.
    """
    wanted = (PEERS / f"{peer}.txt").read_text()
    place, made = folder / peer, folder / peer / "requirements.txt"
    python = str(place / "bin" / "python")
    if made.exists() and made.read_text() == wanted:
        return python
    print(f"{peer}: installing {', '.join(wanted.split())}", file=sys.stderr, flush=True)
    venv.create(place, with_pip=True, clear=True)
    if share is not None:
        (site,) = place.glob("lib/python*/site-packages")
        (site / "shared.pth").write_text(f"{share.resolve()}\n")
    command = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "-r",
        str(PEERS / f"{peer}.txt"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotInstall(f"{peer} cannot be installed here. pip: {' '.join(done.stderr.split())[-400:]}")
    made.write_text(wanted)
    return python


def versions_of(peer: str) -> str:
    """Returns the packages of a peer with their versions."""
    return ", ".join(line.replace("==", " ") for line in (PEERS / f"{peer}.txt").read_text().split())
