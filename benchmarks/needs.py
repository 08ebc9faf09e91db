"""What a benchmark needs that the package does not."""

from __future__ import annotations

import importlib.util


def require(package: str, module: str) -> None:
    """Ends the program with a sentence that says what to install, if a peer is not there.

    Args:
        package: Its name in the package index.
        module: The module that it brings.

    Raises:
        SystemExit: It is not installed.
    """
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # Of the package that the module is in.
        found = None
    if found is None:
        raise SystemExit(
            f"Expected {package}, with which this compares. Received: none. pip install {package}"
        )
