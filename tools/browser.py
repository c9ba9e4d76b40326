"""A headless Chromium over WebDriver, with nothing but the standard library: for the page's tests
and its screenshot.

Chromium and chromedriver come from Debian's packages `chromium` and `chromium-driver`.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def found() -> bool:
    """Whether a browser and its driver are installed."""
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Browser:
    """One browser with one window; use it as a context manager."""

    def __init__(self, *, width: int = 1280, height: int = 860) -> None:
        self._size = (width, height)

    def __enter__(self) -> Browser:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(200):
            try:
                if self._call("GET", "/status")["ready"]:
                    break
            except OSError:
                time.sleep(0.05)
        options = {
            "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                f"--user-data-dir={self._folder.name}",
                f"--window-size={self._size[0]},{self._size[1]}",
            ],
            "binary": shutil.which("chromium"),
        }
        made = self._call(
            "POST",
            "/session",
            {
                "capabilities": {
                    "alwaysMatch": {
                        "goog:chromeOptions": options,
                        "goog:loggingPrefs": {"browser": "ALL"},
                    }
                }
            },
        )
        self._session = f"/session/{made['sessionId']}"
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(10)
            self._folder.cleanup()

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self._call("POST", f"{self._session}/url", {"url": url})

    @contextmanager
    def tab(self, url: str) -> Iterator[None]:
        """Another tab on a page, closed at the end; what is called meanwhile is done there."""
        before = self._call("GET", f"{self._session}/window")
        made = self._call("POST", f"{self._session}/window/new", {"type": "tab"})
        self._call("POST", f"{self._session}/window", {"handle": made["handle"]})
        try:
            self.open(url)
            yield
        finally:
            self._call("DELETE", f"{self._session}/window")
            self._call("POST", f"{self._session}/window", {"handle": before})

    def run(self, script: str, *args: Any) -> Any:
        """The value that a script returns."""
        return self._call(
            "POST", f"{self._session}/execute/sync", {"script": script, "args": list(args)}
        )

    def wait(self, script: str, *args: Any, seconds: float = 20.0) -> Any:
        """Wait until a script returns something true; TimeoutError otherwise."""
        end = time.monotonic() + seconds
        while True:
            value = self.run(script, *args)
            if value:
                return value
            if time.monotonic() > end:
                raise TimeoutError(f"browser: {script!r} stayed {value!r} for {seconds} s")
            time.sleep(0.05)

    def element(self, selector: str) -> str:
        """The id of the first element that a CSS selector finds."""
        found = self._call(
            "POST",
            f"{self._session}/element",
            {"using": "css selector", "value": selector},
        )
        return found[ELEMENT]

    def click(self, selector: str) -> None:
        """Click an element."""
        self._call("POST", f"{self._session}/element/{self.element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type into an element; "\\ue007" is Enter."""
        self._call(
            "POST", f"{self._session}/element/{self.element(selector)}/value", {"text": text}
        )

    def hover(self, selector: str) -> None:
        """Move the pointer over an element."""
        origin = {ELEMENT: self.element(selector)}
        moves = [
            {"type": "pointerMove", "duration": 20, "x": x, "y": 0, "origin": origin}
            for x in (1, 0)
        ]
        pointer = {
            "type": "pointer",
            "id": "mouse",
            "parameters": {"pointerType": "mouse"},
            "actions": moves,
        }
        self._call("POST", f"{self._session}/actions", {"actions": [pointer]})

    def resize(self, width: int, height: int) -> None:
        """Give the page's viewport a size, as a phone has it."""
        self._call(
            "POST",
            f"{self._session}/goog/cdp/execute",
            {
                "cmd": "Emulation.setDeviceMetricsOverride",
                "params": {
                    "width": width,
                    "height": height,
                    "deviceScaleFactor": 1,
                    "mobile": width < 700,
                },
            },
        )

    def screenshot(self) -> bytes:
        """The window as a PNG."""
        return base64.b64decode(self._call("GET", f"{self._session}/screenshot"))

    def log(self) -> list[str]:
        """What the page's console said: errors, refused resources."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [each["message"] for each in entries]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, method=method)
        request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            value = json.loads(error.read())["value"]
            raise RuntimeError(f"{value['error']}: {value['message'][:300]}") from None
