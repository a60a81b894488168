"""A real browser without a window, driven over Chromium's DevTools protocol through a pipe: no driver, no port."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ANSWER_S = 60.0


def find_browser() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One page at a time. `problems` are the console's errors and warnings, `requests` all URLs that it asked for."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def give_pipes() -> None:
            # It reads commands from 3 and writes answers to 4. First out of the way of both.
            reading, writing = os.dup(to_browser), os.dup(from_browser)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self._process = subprocess.Popen(
            [
                *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
                *(f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"),
            ],
            # The path of its socket must be short.
            env={name: value for name, value in os.environ.items() if name != "TMPDIR"},
            preexec_fn=give_pipes,
            pass_fds=(3, 4, to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._last_id, self._session = b"", 0, ""
        self._loaded = False
        self.problems: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        targets = self._call("Target.getTargets")["targetInfos"]
        target = next(info["targetId"] for info in targets if info["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # It removes its own temporary folder where it ends in peace.
        with contextlib.suppress(OSError, RuntimeError, subprocess.TimeoutExpired):
            self._session = ""
            self._call("Browser.close")
            self._process.wait(timeout=ANSWER_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def open(self, page: Path, width: int, height: int = 850, *, is_phone: bool = False) -> None:
        """Load `page` offline in a window of that size, and wait until it has drawn."""
        self._loaded = False
        self._call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
        )
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        self._call("Page.navigate", url=page.absolute().as_uri())
        while not self._loaded:
            self._receive()
        self.evaluate("new Promise(drawn => setTimeout(drawn, 500))")

    def print_media(self, *, on: bool) -> None:
        """Show the page as it is printed."""
        self._call("Emulation.setEmulatedMedia", media="print" if on else "")
        self.evaluate("dispatchEvent(new Event('beforeprint')); new Promise(drawn => setTimeout(drawn, 500))")

    def evaluate(self, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page, however long."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, path: Path) -> None:
        """On A4."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69}
        answer = self._call("Page.printToPDF", printBackground=True, preferCSSPageSize=True, **size)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            answer = self._receive()
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
        raise TimeoutError(f"the browser does not answer {method}")

    def _receive(self) -> dict[str, Any]:
        """The next message, which may be an event; events are noted."""
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("the browser is gone")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        parameters = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.problems.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.problems.append(str(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.problems.append(str(parameters["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
        return message
