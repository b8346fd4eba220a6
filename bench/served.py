"""`coppice serve` on models/tiny-k2 as a context: ready inside, killed at the end."""
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL, DRAFTER = ROOT / "models/tiny-k2", ROOT / "models/tiny-k2-dflash"


class Server:
    def __init__(self, binary, flags):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self.process = subprocess.Popen([binary, "serve", str(MODEL), *flags, "--quiet", "--no-enable-prefix-caching",
                                         "--port", self.url.rsplit(":", 1)[1], "--log-level", "error"])

    def __enter__(self):
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).close()
                return self
            except OSError:
                time.sleep(0.05)
        sys.exit("the server ended while loading")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
