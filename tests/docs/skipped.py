"""How a block is marked that was not run, since the package that it shows is not installed."""

from __future__ import annotations

SKIPPED = "not installed: "
