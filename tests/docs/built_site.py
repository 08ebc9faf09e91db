"""The documentation's site, built once for the tests and served on this machine."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.docs.pages import ROOT


def build(folder: Path) -> Path:
    """Builds the site as `make docs` does; returns its folder."""
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    command = [*build, "--site-dir", str(folder / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def listening(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on this machine; gives its host and port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder; gives its address, without a slash at its end."""
    with listening(functools.partial(Quiet, directory=str(folder))) as address:
        yield f"http://{address}"


def pages(site: Path) -> list[str]:
    """The paths of all pages, such as "" and "drill/"."""
    found = [str(page.parent.relative_to(site)) for page in site.rglob("index.html")]
    return sorted("" if path == "." else f"{path}/" for path in found)
