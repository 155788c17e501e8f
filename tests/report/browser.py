"""A real Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

HANG = 20  # seconds; what is slow is no failure
HOW = "no Chromium: apt-get install chromium, or set CHROMIUM to the path of one"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--mute-audio",
    "--disable-dev-shm-usage",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--remote-debugging-port=0",
)


def chromium() -> str | None:
    """Where a Chromium is, if there is one."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, (shutil.which(name) for name in names if name)), None)


class Page:
    """One page of the browser. What it logs, throws and asks of the network is noted from its start."""

    def __init__(self, address: str) -> None:
        import websocket

        self.socket = websocket.create_connection(address, suppress_origin=True, timeout=HANG)
        self.number = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.shown = ""  # the document that is open, by the number that the browser gave to its loading
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.number:
                assert "error" not in message, message["error"]
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, given = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(given["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(given["args"])[:500])
        elif method == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.errors.append(given["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"][:200])
        elif method == "Page.frameNavigated" and "parentId" not in given["frame"]:
            self.shown = given["frame"]["loaderId"]
            self.errors.clear()  # of the page before

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, path: Path) -> None:
        """Open a file and wait until it is drawn."""
        self.go_to(path.resolve().as_uri())
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def go_to(self, address: str) -> None:
        """Go to an address and wait until its document has taken the place of the one before."""
        loading = self.call("Page.navigate", url=address)["loaderId"]
        while self.shown != loading:
            self._note(json.loads(self.socket.recv()))

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + HANG
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"waited in vain for {condition}"
            time.sleep(0.05)

    def wait_for_error(self, text: str) -> None:
        """Wait until the page has logged an error with these words."""
        while not any(text in error for error in self.errors):
            self._note(json.loads(self.socket.recv()))

    def look(self, *, dark: bool = False, width: int = 1280, height: int = 900, touch: bool = False) -> None:
        """Set what the reader's device and settings are."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def press(self, key: str, **more: Any) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **more)

    def tab(self) -> None:
        self.press("Tab", code="Tab", windowsVirtualKeyCode=9)

    def picture(self, *, whole: bool = False) -> bytes:
        """What is shown, as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        path.write_bytes(self.picture(whole=whole))

    def printed(self) -> bytes:
        """The page as a PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])


@contextmanager
def browser() -> Iterator[Page]:
    """A browser of our own, with an empty profile, gone when the context ends."""
    program = chromium()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Page(_address(Path(profile), process))
        finally:
            process.terminate()
            try:
                process.wait(HANG)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """Where the protocol of the browser's first page is spoken, once there is one."""
    direct = build_opener(ProxyHandler({}))
    port = profile / "DevToolsActivePort"
    while process.poll() is None:
        if port.exists() and port.read_text().count("\n"):  # the port, and more in the next line
            with direct.open(f"http://127.0.0.1:{port.read_text().split()[0]}/json", timeout=HANG) as answer:
                pages = [page for page in json.loads(answer.read()) if page["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
        time.sleep(0.05)
    raise AssertionError("Chromium ended at its start")
