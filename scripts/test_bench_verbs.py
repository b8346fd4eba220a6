#!/usr/bin/env python3
"""Runs the verbs that measure and serve from the command line against models/tiny-k2: bench serve, sweep, latency,
throughput, top, run-batch.

usage: test_bench_verbs.py COPPICE_BINARY      (exit 77 when models/tiny-k2 is absent)
"""
import http.server
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

from test_serve_cli import DRAFTER, MODEL, PATIENCE, Serve, check, spoil_head

SPECULATION = ("--spec-model", str(DRAFTER), "--ddtree-budget", "8")


def run(binary, *words, code=0):
    result = subprocess.run([binary, *words], capture_output=True, text=True, timeout=PATIENCE)
    if result.returncode != code:
        raise SystemExit(f"FAILED: {' '.join(words)}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def value(text, label):
    return float(re.search(re.escape(label) + r"\s+(\S+)", text)[1])


def test_serve(binary, server, folder):
    url = f"http://127.0.0.1:{server.port}"
    for backend in ("openai", "openai-chat"):
        text = run(binary, "bench", "serve", "--backend", backend, "--base-url", url, "--num-prompts", "12",
                   "--random-input-len", "40", "--random-output-len", "12", "--max-concurrency", "4", "--ignore-eos",
                   "--goodput", "e2el:100000", "--save-result", "--save-detailed", "--result-dir", folder,
                   "--result-filename", "one.json", "--disable-tqdm")
        check("============ Serving Benchmark Result ============" in text, f"bench serve, {backend}")
        check(value(text, "Successful requests:") == 12 and value(text, "Failed requests:") == 0, "12 answers")
        check(value(text, "Total generated tokens:") == 144, "12 tokens each")
        check(value(text, "Acceptance length:") > 1, "speculation is reported")
        check(0 <= value(text, "Hit rate (%):") <= 100, "hits of the prefix cache are reported")
        result = json.loads((pathlib.Path(folder) / "one.json").read_text())
        check(result["output_lens"] == [12] * 12 and result["p99_ttft_ms"] > 0, "the saved result")
    text = run(binary, "bench", "serve", "--port", str(server.port), "--num-prompts", "6", "--random-input-len", "8",
               "--random-output-len", "4", "--request-rate", "20", "--disable-tqdm")
    check(value(text, "Request rate configured (RPS):") == 20, "--request-rate")
    run(binary, "bench", "serve", "--port", "1", code=7)
    text = run(binary, "bench", "serve", "--port", str(server.port), "--save-result", "--result-dir", "/dev/null/x", code=7)
    check("Starting main" not in text, "a place that cannot be written is found before the load")
    run(binary, "bench", "serve", "--port", str(server.port), "--dataset-name", "none", code=2)


class Refusing(http.server.BaseHTTPRequestHandler):
    """A server whose every answer is 500."""

    def do_GET(self):
        self.answer(200, {"data": [{"id": "none", "root": str(MODEL)}]} if self.path == "/v1/models" else {})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(500, {"error": {"message": "no"}})

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def test_nothing_measured(binary, folder):
    """Where all requests fail there is no table, no file and no exit code 0."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = run(binary, "bench", "serve", "--port", str(server.server_port), "--num-prompts", "3", "--skip-initial-test",
                   "--disable-tqdm", "--save-result", "--result-dir", folder, "--result-filename", "none.json", code=1)
        server.shutdown()
    check("Mean" not in text and not (pathlib.Path(folder) / "none.json").exists(), "nothing is reported of nothing")


def test_sweep(binary, server, folder):
    run(binary, "bench", "sweep", "--port", str(server.port), "--num-prompts", "4", "--random-input-len", "8",
        "--random-output-len", "4", "--max-concurrencies", "1,2", "-o", folder, "--disable-tqdm")
    lines = (pathlib.Path(folder) / "results.csv").read_text().splitlines()
    check(len(lines) == 3 and lines[1].startswith("inf,1,4,0,"), "bench sweep: table")
    check((pathlib.Path(folder) / "pareto.svg").read_text().count("<circle") == 2, "bench sweep: plot")


def test_top(binary, server):
    page = run(binary, "top", f"127.0.0.1:{server.port}", "--count", "1", "--interval", "0.1")
    check("ready" in page and "KV cache" in page and "time to first token" in page, "top")


def test_offline(binary):
    text = run(binary, "bench", "latency", "--model", str(MODEL), "--input-len", "8", "--output-len", "4",
               "--batch-size", "2", "--num-iters", "2", "--num-iters-warmup", "1", "--quiet")
    check("Avg latency: " in text and "99% percentile latency: " in text, "bench latency")
    text = run(binary, "bench", "throughput", "--model", str(MODEL), *SPECULATION, "--input-len", "8", "--output-len",
               "6", "--num-prompts", "5", "--quiet")
    check(re.search(r"^Throughput: \S+ requests/s, \S+ total tokens/s, \S+ output tokens/s$", text, re.M) and
          "Total num output tokens:  30" in text, "bench throughput")


def test_nan(binary):
    """Speed of a model that computes NaN is no speed."""
    with tempfile.TemporaryDirectory() as folder:
        spoil_head(pathlib.Path(folder))
        for words in (("throughput", "--num-prompts", "2"), ("latency", "--num-iters", "1", "--batch-size", "2")):
            text = run(binary, "bench", *words, "--model", folder, "--input-len", "8", "--output-len", "4", "--quiet", code=7)
            check(text == "", f"bench {words[0]} over NaN")


def test_run_batch(binary, server, folder):
    lines = [{"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": {
                 "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}},
             {"custom_id": "text", "method": "POST", "url": "/v1/completions", "body": {
                 "prompt": "def f", "max_tokens": 5, "temperature": 0}},
             {"custom_id": "bad", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": -1}}]
    given, answers = pathlib.Path(folder) / "in.jsonl", pathlib.Path(folder) / "out.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines))
    texts = []
    for more in (("--model", str(MODEL), "--max-model-len", "512", "--quiet"),
                 ("--url", f"http://127.0.0.1:{server.port}")):
        run(binary, "run-batch", "-i", str(given), "-o", str(answers), *more)
        out = [json.loads(line) for line in answers.read_text().splitlines()]
        check([line["custom_id"] for line in out] == ["chat", "text", "bad"], "run-batch: in order")
        check([line["response"]["status_code"] for line in out] == [200, 200, 400], "run-batch: statuses")
        check(out[0]["error"] is None and out[2]["error"] is not None, "run-batch: errors")
        texts.append(out[1]["response"]["body"]["choices"][0]["text"])
    check(texts[0] == texts[1], "run-batch: the same text with and without a server")
    given.write_text("{}\n")
    run(binary, "run-batch", "-i", str(given), "-o", str(answers), "--model", str(MODEL), code=2)


def main():
    if not (MODEL / "config.json").exists():
        print("models/tiny-k2 is absent")
        sys.exit(77)
    binary = sys.argv[1]
    test_offline(binary)
    test_nan(binary)
    server = Serve(binary, str(MODEL), *SPECULATION)
    try:
        with tempfile.TemporaryDirectory() as folder:
            test_serve(binary, server, folder)
            test_sweep(binary, server, folder)
            test_nothing_measured(binary, folder)
            test_top(binary, server)
            test_run_batch(binary, server, folder)
        check(server.stop()[0] == 0, "the server ends well")
    finally:
        server.process.kill()  # a failed check leaves no server behind


if __name__ == "__main__":
    main()
