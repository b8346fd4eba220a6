"""Drives a headless Chromium through its DevTools protocol over a pipe; needs nothing but Python and the browser."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PATIENCE = 600  # seconds: a time limit is for hangs only


def find():
    """The browser's path, or None."""
    for name in (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"):
        if name and shutil.which(name):
            return shutil.which(name)
    return None


class Page:
    """One tab. Keeps the addresses it asked for and the errors it logged."""

    def __init__(self, width=1280, height=860):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours, self.write_end = os.pipe()
        self.read_end, theirs = os.pipe()
        command = [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
                   f"--user-data-dir={self.profile.name}", f"--window-size={width},{height}", "about:blank"]
        # The browser reads commands from descriptor 3 and writes answers to 4.
        high = [os.dup(fd) for fd in (ours, theirs)]
        shell = ["bash", "-c", f"exec 3<&{high[0]} 4>&{high[1]} {high[0]}<&- {high[1]}>&-; exec \"$@\"", "chromium", *command]
        self.process = subprocess.Popen(shell, pass_fds=high, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (ours, theirs, *high):
            os.close(fd)
        self.buffer, self.next_id, self.session = b"", 1, None
        self.requests, self.errors = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
        except (ConnectionError, TimeoutError):
            self.process.kill()
        self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)
        self.profile.cleanup()

    def _receive(self, deadline):
        while b"\0" not in self.buffer:
            if not select.select([self.read_end], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.read_end, 1 << 20)
            if not data:
                raise ConnectionError("the browser has ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        values = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            details = values["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(values["entry"]["text"])

    def call(self, method, **params):
        message = {"id": self.next_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.next_id += 1
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") != message["id"]:
                self._note(answer)
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            return answer["result"]

    def run(self, script):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def wait(self, script, seconds=PATIENCE):
        """The first true value of an expression."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.03)
        raise SystemExit(f"FAILED: never true in the page: {script}\n"
                         f"errors: {self.errors}\n{self.run('document.body.innerText')}")

    def key(self, name, code=0, text="", modifiers=0):
        common = {"key": name, "code": name, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def screenshot(self, path):
        with open(path, "wb") as out:
            out.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
