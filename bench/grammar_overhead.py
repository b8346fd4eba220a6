#!/usr/bin/env python3
"""What structured output costs: rounds under a JSON schema against rounds of free text, same trees, same streams.

usage: grammar_overhead.py COPPICE_BINARY [--device auto] [--streams 1,8] [--tokens 300] [--ddtree-budget 8] [--limit PERCENT]

Starts `coppice serve` on models/tiny-k2 and asks for texts that a schema keeps going to their last token, then for free
ones of the same length. A line per number of streams: milliseconds of a round with and without the grammar, the masks'
time in it, tokens a round. Exit codes: 0, 1 above --limit percent more for a round, 77 where the model or the grammars
are absent.
"""
import argparse
import concurrent.futures
import json
import re
import sys
import urllib.error
import urllib.request

from served import DRAFTER, MODEL, Server

SCHEMA = {"type": "array", "minItems": 200, "items": {
    "type": "object", "additionalProperties": False, "required": ["name", "size", "tags", "kind"],
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}, "kind": {"enum": ["red", "green", "blue"]},
                   "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1}}}}


def parse_arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--ddtree-budget", default="8")
    parser.add_argument("--limit", type=float)
    options = parser.parse_args()
    options.streams = [int(count) for count in options.streams.split(",")]
    return options


class GrammarServer(Server):
    def __init__(self, options):
        super().__init__(options.binary, ["--spec-model", str(DRAFTER), "--ddtree-budget", options.ddtree_budget,
                                          "--device", options.device, "--max-num-seqs", str(max(options.streams)),
                                          "--max-model-len", "2048"])

    def metrics(self):
        text = urllib.request.urlopen(self.url + "/metrics").read().decode()
        names = ("rounds_total", "mask_seconds_total", "decode_seconds_total")
        found = {name: re.search(rf"^coppice:{name}{{.*}} (\S+)$", text, re.M) for name in names}
        tokens = re.search(r"^vllm:generation_tokens_total{.*} (\S+)$", text, re.M)
        return {name: float(match[1]) if match else 0.0 for name, match in found.items()} | {"tokens": float(tokens[1])}

    def complete(self, number, fields):
        body = {"prompt": f"List {number}: ", "temperature": 0, **fields}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer = json.load(answer)
            return answer["usage"]["completion_tokens"], answer["choices"][0]["text"]

    def run(self, streams, fields):
        """Milliseconds of a round, of its masks, tokens of a stream in it."""
        before = self.metrics()
        with concurrent.futures.ThreadPoolExecutor(streams) as pool:
            tokens = sum(pool.map(lambda number: self.complete(number, fields)[0], range(streams)))
        spent = {name: value - before[name] for name, value in self.metrics().items()}
        rounds = spent["rounds_total"]
        return spent["decode_seconds_total"] * 1000 / rounds, spent["mask_seconds_total"] * 1000 / rounds, tokens / streams / rounds


def main():
    options = parse_arguments()
    if not (MODEL / "config.json").exists():
        print("models/tiny-k2 is absent")
        sys.exit(77)
    plain = {"max_tokens": options.tokens, "ignore_eos": True}
    bound = {"max_tokens": options.tokens, "guided_json": SCHEMA}
    worst = 0.0
    with GrammarServer(options) as server:
        try:
            server.complete(0, bound)
            same = all(server.complete(number, bound)[1] == server.complete(number, {**bound, "ddtree_budget": 0})[1]
                       for number in range(4))
            print("texts with trees and without:", "equal" if same else "DIFFERENT")
            if not same:
                sys.exit(1)
        except urllib.error.HTTPError as error:
            print(error.read().decode())
            sys.exit(77)
        for streams in options.streams:
            server.run(streams, plain), server.run(streams, bound)
            free_ms, _, free_tokens = server.run(streams, plain)
            bound_ms, mask_ms, bound_tokens = server.run(streams, bound)
            more = 100 * (bound_ms / free_ms - 1)
            worst = max(worst, more)
            print(f"{streams:3d} streams, budget {options.ddtree_budget}: free {free_ms:.3f} ms a round ({free_tokens:.2f} tokens), "
                  f"schema {bound_ms:.3f} ms ({bound_tokens:.2f} tokens), masks {mask_ms:.3f} ms of it: {more:+.1f} %", flush=True)
    sys.exit(1 if options.limit is not None and worst > options.limit else 0)


if __name__ == "__main__":
    main()
