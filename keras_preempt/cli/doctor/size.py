"""Sizes as people write them."""

from __future__ import annotations

import re

import click

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


class _Size(click.ParamType):  # type: ignore[type-arg]
    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns bytes."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(value).strip())
        if found is None or found[2].upper() not in _UNITS or float(found[1]) <= 0:
            self.fail(f"Expected a size such as 2GB, 500MB or 1.5GiB. Received: {value!r}.", param, ctx)
        return round(float(found[1]) * _UNITS[found[2].upper()])


SIZE = _Size()
"""The type of an option that is a number of bytes."""


def shown(size: float) -> str:
    """Returns a size for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
