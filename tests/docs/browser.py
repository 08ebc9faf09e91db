"""A headless Chromium, controlled over a pipe by its DevTools protocol: it needs no package and opens no port.

https://chromedevtools.github.io/devtools-protocol/ describes the methods and events; with ``--remote-debugging-pipe``
the messages are JSON, ended by a zero byte, on the browser's file descriptors 3 (commands) and 4 (answers and events).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Puts the two ends of the pipes where Chromium looks for them, then becomes Chromium.
_BECOME = (
    "import fcntl, os, sys; r, w = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]); "
    "os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find() -> str | None:
    """Returns the path of a Chromium, or None if this machine has none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def opened() -> Iterator[Browser]:
    """One page of this machine's Chromium, for the tests that look at something; they skip without one."""
    program = find()
    if program is None:
        pytest.skip("looks at pages in a browser: install chromium")
    with Browser(program) as page:
        yield page


class Browser:
    """One page in a headless Chromium. A context manager.

    Attributes:
        requests: The addresses that the page has asked for since `open` was called last.
    """

    def __init__(self, program: str, timeout: float = 60) -> None:
        """Starts Chromium.

        Args:
            program: Its path.
            timeout: Seconds that an answer may take.
        """
        self.requests: list[str] = []
        self._timeout, self._number, self._buffer = timeout, 0, b""
        self._events: list[dict[str, Any]] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands_read, self._commands = os.pipe()
        self._answers, answers_write = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        options += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        options += [f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BECOME, str(commands_read), str(answers_write), program, *options],
            pass_fds=(commands_read, answers_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_read)
        os.close(answers_write)
        self._session: str | None = None
        while not (pages := self._pages()):
            time.sleep(0.05)  # Chromium opens its window in a moment, and says nothing of it.
        (target,) = pages
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self._call(f"{domain}.enable")
        # Every page is opened by a new reader: no choice of a colour scheme is remembered.
        self._call("Page.addScriptToEvaluateOnNewDocument", source="Storage.prototype.getItem = () => null")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._commands)  # Chromium ends itself when nobody can tell it anything any more.
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        self._profile.cleanup()

    def show(self, width: int, *, dark: bool, height: int = 900) -> None:
        """Gives the page a size in pixels, and the reader a preference of dark or light."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, address: str) -> None:
        """Goes to an address and waits until the page is loaded with all that it asks for."""
        self.requests.clear()
        self._events.clear()
        answer = self._call("Page.navigate", url=address)
        assert "errorText" not in answer, f"{address}: {answer['errorText']}"
        limit = time.monotonic() + self._timeout
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._read(limit)

    def run(self, script: str) -> Any:
        """Returns the value of an expression of JavaScript in the page, as JSON gives it; a promise is awaited."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    @contextlib.contextmanager
    def without_scripts(self) -> Iterator[None]:
        """Pages that are opened meanwhile run no scripts of their own."""
        self._call("Emulation.setScriptExecutionDisabled", value=True)
        yield
        self._call("Emulation.setScriptExecutionDisabled", value=False)

    def wait_for(self, condition: str, timeout: float | None = None) -> None:
        """Waits until an expression of JavaScript is true in the page, for at most so many seconds."""
        timeout = self._timeout if timeout is None else timeout
        limit = time.monotonic() + timeout
        while not self.run(f"new Promise(done => setTimeout(() => done(Boolean({condition})), 20))"):
            assert time.monotonic() < limit, f"not true within {timeout} s: {condition}"

    def screenshot(self, path: Path) -> None:
        """Writes what is seen of the page to a PNG file."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _pages(self) -> list[str]:
        targets = self._call("Target.getTargets")["targetInfos"]
        return [target["targetId"] for target in targets if target["type"] == "page"]

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        limit = time.monotonic() + self._timeout
        while True:
            answer = self._read(limit)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self, limit: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(limit - time.monotonic(), 0))
            piece = os.read(self._answers, 1 << 20) if ready else b""
            assert piece, f"Chromium said nothing within {self._timeout} s, or has ended"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self._events.append(message)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message
