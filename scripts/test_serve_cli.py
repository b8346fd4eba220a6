#!/usr/bin/env python3
"""Runs `coppice serve` as a user would: the guide's command lines, signals, mistakes.

usage: test_serve_cli.py COPPICE_BINARY      (exit 77 when models/tiny-k2 is absent)
"""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL, DRAFTER = ROOT / "models/tiny-k2", ROOT / "models/tiny-k2-dflash"

PATIENCE = 600  # seconds: a time limit is for hangs only

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost"


def get(port, path, body=None, headers=None):
    """Status and body; 0 while nobody listens."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return 0, ""


class Serve:
    """A running server on a port that the system chose: nobody else can have it. Waits until it is healthy."""

    def __init__(self, binary, *flags, environment=None, max_model_len=1024):
        self.log_file = tempfile.TemporaryFile()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("COPPICE_", "VLLM_"))}
        self.process = subprocess.Popen(
            [binary, "serve", *flags, "--port", "0", *(["--max-model-len", str(max_model_len)] if max_model_len else [])],
            stderr=self.log_file, env={**clean, **(environment or {})})
        self.port, self.seen = 0, set()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            address = re.search(r"Starting Coppice server on http://\S+:(\d+)\n", self.log())
            if address:
                self.port = int(address[1])
                status, _ = get(self.port, "/health")
                self.seen.add(status)
                if status == 200:
                    return
            time.sleep(0.005)
        self.process.kill()
        raise SystemExit("never became healthy:\n" + self.log())

    def log(self):
        """So far; the server's own place in the file stays."""
        return os.pread(self.log_file.fileno(), 1 << 24, 0).decode()

    def stop(self):
        """Exit code and log."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE), self.log()
        finally:
            self.process.kill()


def check(holds, what):
    if not holds:
        raise SystemExit(f"FAILED: {what}")
    print("ok:", what)


def test_guide_lines(binary):
    for _ in range(30):  # where this script gets little time, the model may be there before it asks
        server = Serve(binary, str(MODEL), "-tp", "2", "--mm-encoder-tp-mode", "data", "--trust-remote-code",
                       "--tool-call-parser", "kimi_k2", "--reasoning-parser", "kimi_k2")
        code, log = server.stop()
        if 503 in server.seen:
            break
    check(503 in server.seen, "the port answers 503 while the model loads")
    check(code == 0, "vLLM's command line of the K2.5 guide")
    check("--trust-remote-code has no effect" in log, "one warning for a flag without meaning")
    for line in ("Starting Coppice server on http://127.0.0.1:", "GPU KV cache size:", "Maximum concurrency for",
                 "Available routes are:", "Application startup complete."):
        check(line in log, f"log line: {line}")
    server = Serve(binary, "--model-path", str(MODEL), "--tp", "2", "--trust-remote-code", "--tool-call-parser",
                   "kimi_k2", "--reasoning-parser", "kimi_k2")
    check(server.stop()[0] == 0, "SGLang's command line of the K2.5 guide")


def test_keys_and_environment(binary):
    server = Serve(binary, str(MODEL), "--host", "127.0.0.1", environment={
        "VLLM_API_KEY": "secret", "COPPICE_SERVED_MODEL_NAME": "named", "COPPICE_MAX_NUM_SEQS": "3"})
    check(get(server.port, "/v1/models")[0] == 401, "VLLM_API_KEY guards")
    status, body = get(server.port, "/v1/models", headers={"Authorization": "Bearer secret"})
    check(status == 200 and json.loads(body)["data"][0]["id"] == "named", "COPPICE_SERVED_MODEL_NAME")
    info = json.loads(get(server.port, "/server_info", headers={"x-api-key": "secret"})[1])
    check(info["flags"]["max_num_seqs"] == 3, "COPPICE_MAX_NUM_SEQS")
    code, log = server.stop()
    check(code == 0 and "secret" not in log, "the key is not logged")


def test_other_variables(binary):
    """What Kubernetes sets for a service called coppice, and a variable with a slip in its name."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write("max-num-seqs: 3\n")
        config.flush()
        server = Serve(binary, str(MODEL), "--config", config.name, environment={
            "COPPICE_PORT": "tcp://10.0.0.1:8000", "COPPICE_SERVICE_HOST": "10.0.0.1", "COPPICE_SERVICE_PORT": "8000",
            "COPPICE_PORT_8000_TCP_ADDR": "10.0.0.1", "COPPICE_MAX_NUM_SEQ": "5"})
        seqs = json.loads(get(server.port, "/server_info")[1])["flags"]["max_num_seqs"]
        code, log = server.stop()
        config.seek(0)  # run-batch takes the flags of serve, and needs no port of its own
        config.truncate()
        config.write('{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 1}}\n')
        config.flush()
        batch = subprocess.run([binary, "run-batch", "-i", config.name, "-o", "/dev/null", "--model", str(MODEL), "--quiet"],
                               env={**os.environ, "COPPICE_PORT": "tcp://10.0.0.1:8000"}, capture_output=True, text=True)
    check(code == 0 and seqs == 3 and batch.returncode == 0, "the address of a service is no port")
    check("COPPICE_MAX_NUM_SEQ is not read; did you mean COPPICE_MAX_NUM_SEQS?" in log, "a slip in a variable's name is told")
    check("SERVICE" not in log.split("Starting")[0], "other programs' variables are left alone")


def test_precedence(binary):
    """Flags beat the environment, the environment beats the --config file."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write("served-model-name: from-file\nmax-num-seqs: 3\nmax-model-len: 512\n")
        config.flush()

        def seen(*flags, **environment):
            server = Serve(binary, str(MODEL), "--config", config.name, *flags, environment=environment, max_model_len=None)
            model = json.loads(get(server.port, "/v1/models")[1])["data"][0]
            seqs = json.loads(get(server.port, "/server_info")[1])["flags"]["max_num_seqs"]
            server.stop()
            return model["id"], seqs, model["max_model_len"]

        check(seen() == ("from-file", 3, 512), "the file's flags")
        check(seen(COPPICE_SERVED_MODEL_NAME="from-env", COPPICE_MAX_NUM_SEQS="5") == ("from-env", 5, 512),
              "the environment beats the file, and only where it speaks")
        config.write("enable-prefix-caching: false\ntrust-remote-code: true\nenable-log-requests: false\n")
        config.flush()
        caching = {}
        for flags in ((), ("--enable-prefix-caching",)):
            server = Serve(binary, str(MODEL), "--config", config.name, *flags, max_model_len=None)
            caching[flags] = json.loads(get(server.port, "/server_info")[1])["flags"]["enable_prefix_caching"]
            log = server.stop()[1]
        server = Serve(binary, str(MODEL), environment={"COPPICE_CONFIG": config.name}, max_model_len=None)
        check(json.loads(get(server.port, "/v1/models")[1])["data"][0]["id"] == "from-file", "COPPICE_CONFIG")
        server.stop()
        check(list(caching.values()) == [False, True], "a switch that the file puts off, and that a flag puts on again")
        check("--trust-remote-code has no effect" in log, "a warning for the file's flag without meaning")
        check(seen("--served-model-name", "from-flag", "--max-num-seqs", "7", COPPICE_MAX_NUM_SEQS="5",
                   COPPICE_MAX_MODEL_LEN="768") == ("from-flag", 7, 768), "flags beat both")


def spoil_head(folder):
    """A copy of the model with one NaN in lm_head: it loads, and no logits are finite."""
    for file in MODEL.iterdir():
        (folder / file.name).symlink_to(file)
    index = json.loads((MODEL / "model.safetensors.index.json").read_text())["weight_map"]
    name = next(name for name in index if "lm_head" in name)
    data = bytearray((MODEL / index[name]).read_bytes())
    size = int.from_bytes(data[:8], "little")
    begin = 8 + size + json.loads(data[8:8 + size])[name]["data_offsets"][0]
    data[begin:begin + 2] = b"\xc0\x7f"
    (folder / index[name]).unlink()
    (folder / index[name]).write_bytes(data)


def test_failing(binary):
    """Where every request ends on NaN the server says so, and takes it back when one ends well."""
    with tempfile.TemporaryDirectory() as folder:
        spoil_head(pathlib.Path(folder))
        server = Serve(binary, folder)
        codes = [get(server.port, "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] for _ in range(8)]
        check(codes == [500] * 8, "logits of NaN end their request")
        deadline = time.monotonic() + PATIENCE
        while get(server.port, "/health")[0] != 503 and time.monotonic() < deadline:  # counts are published after the answer
            time.sleep(0.01)
        status, body = get(server.port, "/health")
        check(status == 503 and json.loads(body)["status"] == "failing" and "last 8 requests" in body, "health is red then")
        check(get(server.port, "/health/live")[0] == 200, "and the server lives")
        server.stop()


def test_drain(binary):
    server = Serve(binary, str(MODEL), "--spec-model", str(DRAFTER), "--ddtree-budget", "8", "--shutdown-timeout", str(PATIENCE))
    answers = []
    tokens = 60 if "COPPICE_SANITIZED" in os.environ else 300

    def stream():
        answers.append(get(server.port, "/v1/completions", {
            "prompt": "def f", "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}))

    threads = [threading.Thread(target=stream) for _ in range(8)]
    for thread in threads:
        thread.start()
    while json.loads(get(server.port, "/v1/rounds")[1])["totals"]["requests"] < 8:  # some may have ended by then
        time.sleep(0.01)
    code, _ = server.stop()
    for thread in threads:
        thread.join()
    check(code == 0, "SIGTERM ends with exit code 0")
    check(len(answers) == 8 and all(text.endswith("data: [DONE]\n\n") and "length" in text for _, text in answers),
          "every stream was finished after SIGTERM")


def test_mistakes(binary):
    def run(*flags):
        return subprocess.run([binary, "serve", *flags], capture_output=True, text=True, timeout=PATIENCE)

    result = run(str(MODEL), "--max-model-length", "5")
    check(result.returncode == 2 and "did you mean --max-model-len?" in result.stderr, "did you mean")
    check(run("no/such/model").returncode == 4, "a model that is not there")
    result = run(str(MODEL), "--kv-cache-dtype", "fp8")
    check(result.returncode == 5 and "--kv-cache-dtype" in result.stderr, "fp8 cache is refused with the reason")
    check(run("--help").returncode == 0, "--help")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run(str(MODEL), "--port", str(taken.getsockname()[1]))
        check(result.returncode == 7 and "cannot listen" in result.stderr, "a port that is taken")


def main():
    if not (MODEL / "config.json").exists():
        print("models/tiny-k2 is absent")
        sys.exit(77)
    binary = sys.argv[1]
    for test in (test_guide_lines, test_keys_and_environment, test_other_variables, test_precedence, test_failing, test_drain, test_mistakes):
        test(binary)


if __name__ == "__main__":
    main()
