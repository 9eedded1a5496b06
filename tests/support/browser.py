"""A headless Chromium, driven through its DevTools protocol."""

import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from command import wait_for
from websockets.sync.client import connect

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""None: there is no such browser on this machine."""
LIMIT_S = 60.0


class Browser:
    """One page of a browser. `complaints`: what its scripts threw or warned of, and what was refused."""

    def __init__(self, profile: Path) -> None:
        """`profile`: a folder of its own."""
        assert PROGRAM is not None
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
        self._process = subprocess.Popen(
            [PROGRAM, *options, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.DEVNULL
        )
        place = profile / "DevToolsActivePort"
        wait_for(lambda: place.exists() and len(place.read_text().split()) == 2, LIMIT_S)
        with urllib.request.urlopen(f"http://127.0.0.1:{place.read_text().split()[0]}/json/list") as answer:
            (page,) = (one for one in json.load(answer) if one["type"] == "page")
        self._socket = connect(page["webSocketDebuggerUrl"], proxy=None, max_size=None)
        self._calls = 0
        self.complaints: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call("Browser.close")
        self._socket.close()
        self._process.wait(LIMIT_S)

    def open(self, url: str) -> None:
        """Load a page, and wait until its scripts were read."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, a promise's included, as JSON can hold it."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """The value of `script` once it is truthy."""
        deadline = time.monotonic() + LIMIT_S
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never so: {script}"
            time.sleep(0.02)
        return value

    def click(self, selector: str) -> None:
        """Click the first element that fits, once it is there."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def choose(self, label: str, value: str) -> None:
        """Set the input or choice of that name, as its user does."""
        selector = json.dumps(f'[aria-label="{label}"]')
        self.wait(f"document.querySelector({selector}) !== null")
        self.run(
            f"(() => {{ const field = document.querySelector({selector}); field.value = {json.dumps(value)}; "
            "for (const name of ['input', 'change']) field.dispatchEvent(new Event(name)); })()"
        )

    def call(self, method: str, **params: Any) -> Any:
        """The protocol's answer to one of its methods."""
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=LIMIT_S))
            if message.get("id") == self._calls:
                assert "error" not in message, message["error"]
                return message["result"]
            kind, about = message["method"], message["params"]
            if (
                kind == "Runtime.exceptionThrown"
                or (kind == "Runtime.consoleAPICalled" and about["type"] in ("warning", "error"))
                or (kind == "Log.entryAdded" and about["entry"]["level"] in ("warning", "error"))
            ):
                self.complaints.append(about)
