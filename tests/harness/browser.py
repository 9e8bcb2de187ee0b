"""Chromium without a window, for tests of pages: driven over a pipe by its DevTools protocol.

See https://chromedevtools.github.io/devtools-protocol/. Nothing but Chromium is needed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str | None:
    """Path of the program; None where it isn't installed."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class BrowserError(AssertionError):
    """What the page or the browser complains about."""


class Browser:
    """One page.

    Parameters
    ----------
    incoming, outgoing
        File descriptors of the pipe.

    Attributes
    ----------
    errors
        What the page wrote to the console as an error, exceptions that nobody caught, what its
        content policy refused.
    requests
        Addresses of everything that was asked for.
    """

    def __init__(self, incoming: int, outgoing: int, seconds: float = 60) -> None:
        self._in, self._out = incoming, outgoing
        self._rest, self._number = b"", 0
        self._events: list[dict[str, Any]] = []
        self._end = time.monotonic() + seconds
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method and wait for what it returns."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._notice(answer)

    def open(self, address: str) -> None:
        """Load a page, up to its load event."""
        self._events.clear()
        self.call("Page.navigate", url=address)
        while all(event["method"] != "Page.loadEventFired" for event in self._events):
            self._notice(self._read())

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise BrowserError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 10) -> None:
        """Wait until an expression of the page holds."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            if time.monotonic() > end:
                raise BrowserError(f"after {seconds} s not yet: {condition}")
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press a key and let it go, where the focus is."""
        text = {"text": "\r"} if key == "Enter" else {}
        code = {"Enter": 13, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}[key]
        known = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **known, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    def show(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the window a size, and the system light or dark colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """Save the whole page as PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def print(self, path: Path) -> None:
        """Save it as PDF, as it is printed."""
        found = self.call("Page.printToPDF", printBackground=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _notice(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        found = event.get("params", {})
        match event["method"]:
            case "Runtime.exceptionThrown":
                details = found["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", str(details)))
            case "Runtime.consoleAPICalled" if found["type"] in ("error", "assert"):
                self.errors.append(str([each.get("value") for each in found["args"]]))
            case "Log.entryAdded" if found["entry"]["level"] == "error":
                self.errors.append(found["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(found["request"]["url"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = max(0.0, self._end - time.monotonic())
            if not select.select([self._in], [], [], left)[0]:
                raise BrowserError("Chromium gave no answer in time")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise BrowserError("Chromium ended")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found


@contextlib.contextmanager
def browser(seconds: float = 60) -> Iterator[Browser]:
    """Start Chromium, and end it with all its processes."""
    program = chromium()
    if program is None:
        raise FileNotFoundError(f"none of {', '.join(NAMES)} is installed")
    to_it, from_us = os.pipe()
    to_us, from_it = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        words = [
            program,
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={home}/profile",
            "--no-first-run",
            "--no-sandbox",  # in containers there is none, and the page is our own
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "about:blank",
        ]
        actions = [
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            # The pipe is expected as descriptors 3 and 4; higher ones are out of its way first.
            (os.POSIX_SPAWN_DUP2, to_it, 103),
            (os.POSIX_SPAWN_DUP2, from_it, 104),
            (os.POSIX_SPAWN_DUP2, 103, 3),
            (os.POSIX_SPAWN_DUP2, 104, 4),
            (os.POSIX_SPAWN_CLOSE, 103),
            (os.POSIX_SPAWN_CLOSE, 104),
        ]
        environment = {**os.environ, "HOME": home}
        process = os.posix_spawn(program, words, environment, file_actions=actions, setpgroup=0)
        os.close(to_it)
        os.close(from_it)
        try:
            yield Browser(to_us, from_us, seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(to_us)
            os.close(from_us)
