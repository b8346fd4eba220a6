#!/usr/bin/env python3
"""Random JSON schemas as a forced tool's parameters and as response_format: every answer is judged by jsonschema.

usage: test_structured_output.py COPPICE_BINARY [NUM_SCHEMAS]     (exit 77 without jsonschema, models/tiny-k2 or grammars)
Schemas come from a generator with a fixed seed. Speculation is on, temperatures 0 and 1 take turns, and the metrics
must show trees: more than two nodes a round under a grammar, and accepted drafts.
"""
import concurrent.futures
import json
import os
import pathlib
import random
import re
import sys
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent

WORDS = ["city", "name", "count", "unit", "items", "when", "code", "ok", "price", "tags", "mode", "note", "größe", "a b"]


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def make_schema(rng, depth):
    """A schema and nothing random about its validity: every schema has instances."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "bounded"]
    if depth > 0:
        kinds += ["object", "array", "anyOf", "map"] * 2
    kind = rng.choice(kinds)
    if kind in ("string", "integer", "number", "boolean", "null"):
        return {"type": kind}
    if kind == "enum":
        return {"enum": rng.sample(["red", "green", 1, 2.5, None, True, "it's \"so\"", "日本"], rng.randint(1, 5))}
    if kind == "const":
        return {"const": rng.choice(["fixed", 7, {"k": [1, 2]}, [], False])}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice([r"^[a-z]{2,5}$", r"^\d{4}-\d{2}-\d{2}$", r"^(yes|no)$", r"^[A-F0-9]+$"])}
    if kind == "bounded":
        low = rng.randint(-50, 50)
        return rng.choice([{"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 200)},
                           {"type": "string", "minLength": rng.randint(0, 5), "maxLength": rng.randint(5, 20)}])
    if kind == "array":
        low = rng.randint(0, 2)
        return {"type": "array", "items": make_schema(rng, depth - 1), "minItems": low, "maxItems": low + rng.randint(0, 3)}
    if kind == "anyOf":
        return {"anyOf": [make_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind == "map":
        return {"type": "object", "additionalProperties": make_schema(rng, depth - 1), "maxProperties": 3}
    return make_object(rng, depth)


def make_object(rng, depth):
    names = rng.sample(WORDS, rng.randint(1, 4))
    return {"type": "object", "properties": {name: make_schema(rng, depth - 1) for name in names},
            "required": rng.sample(names, rng.randint(0, len(names))), "additionalProperties": rng.random() < 0.2}


def question(rng, schema, number):
    """A chat request, and how to read what must be valid from its answer."""
    body = {"messages": [{"role": "user", "content": rng.choice(["What is the weather in Oslo?", "Fill in the form.", "Hi"])}],
            "max_tokens": 700, "temperature": number % 2, "seed": number, "thinking": number % 5 == 0}
    if number % 4 == 3:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        return body, lambda message: message["content"]
    tools = [{"type": "function", "function": {"name": "fill_in", "parameters": schema}}]
    body |= {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    if number % 4 == 2:
        body["tool_choice"] = {"type": "function", "function": {"name": "fill_in"}}
    return body, lambda message: message["tool_calls"][0]["function"]["arguments"]


def post(url, body):
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"FAILED: {error.code} {error.read().decode()} for {json.dumps(body)}")


def judge(url, number):
    import jsonschema
    rng = random.Random(number)
    schema = make_object(rng, 3)
    body, read = question(rng, schema, number)
    choice = post(url, body)["choices"][0]
    try:
        text = read(choice["message"])
        jsonschema.validate(json.loads(text), schema)
    except Exception as error:  # noqa: BLE001: whatever it is, the answer is not valid
        return f"schema {number}: {type(error).__name__} {str(error).splitlines()[0]}\n  {json.dumps(schema)}\n  {json.dumps(choice)}"
    return None


# Rules about keys: each is refused by its name, or every answer is valid and names no key twice.
KEY_RULES = [
    {"properties": {"foo": {"type": "integer"}}, "patternProperties": {"^f[a-o]+$": {"type": "string"}}, "required": ["foo"]},
    {"properties": {"A": {"type": "integer"}}, "propertyNames": {"pattern": "^[a-b]$"}, "additionalProperties": {"type": "integer"}},
    {"patternProperties": {"^[a-b]$": {"type": "integer"}, "^[b-c]$": {"type": "boolean"}}},
    {"additionalProperties": {"type": "integer"}, "minProperties": 3, "maxProperties": 4},
    {"patternProperties": {"^[a-b]$": {"type": "integer"}}, "minProperties": 3, "maxProperties": 4},
    {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "minProperties": 2},
    {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    {"patternProperties": {"^[a-z]$": {"type": "integer"}}, "additionalProperties": False, "minProperties": 1, "maxProperties": 3},
    {"propertyNames": {"pattern": "^[a-z]{2}$"}, "additionalProperties": {"type": "null"}, "maxProperties": 3},
]


def judge_keys(url, number):
    import jsonschema
    schema = {"type": "object", **KEY_RULES[number % len(KEY_RULES)]}
    declared = schema.get("properties", {})
    names = []
    body = {"prompt": "{", "max_tokens": 80, "temperature": 1.5, "seed": number, "guided_json": schema}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            text = json.load(answer)["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        refused = json.load(error)["error"]
        good = error.code == 400 and refused["param"].rpartition(".")[2] in schema
        return None if good else f"{json.dumps(schema)}: {refused}"
    try:
        jsonschema.validate(json.loads(text, object_pairs_hook=lambda pairs: names.extend(key for key, _ in pairs) or dict(pairs)), schema)
    except Exception as error:  # noqa: BLE001: whatever it is, the answer is not valid
        return f"{json.dumps(schema)}: {str(error).splitlines()[0]} in {text}"
    twice = [name for name in declared if names.count(name) > 1]
    return f"{json.dumps(schema)}: {twice} come twice in {text}" if twice else None


def metric(text, name):
    return float(re.search(rf"^coppice:{name}{{.*}} (\S+)$", text, re.M)[1])


def main():
    python = ROOT / ".venv/bin/python"
    if pathlib.Path(sys.prefix) != ROOT / ".venv" and python.exists():
        os.execv(python, [str(python), __file__, *sys.argv[1:]])
    try:
        import jsonschema  # noqa: F401
    except ImportError:
        skip("jsonschema is not installed (make oracles)")
    if not (ROOT / "models/tiny-k2/config.json").exists():
        skip("models/tiny-k2 is absent")
    sys.path.insert(0, str(ROOT / "scripts"))
    from test_serve_cli import DRAFTER, MODEL, Serve
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 4 if "COPPICE_SANITIZED" in os.environ else 24
    server = Serve(sys.argv[1], str(MODEL), "--spec-model", str(DRAFTER), "--ddtree-budget", "12", max_model_len=4096)
    url = f"http://127.0.0.1:{server.port}"
    try:
        try:
            urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", b'{"prompt":"a","guided_regex":"a","max_tokens":2}'))
        except urllib.error.HTTPError as error:
            if error.code == 501:
                skip("the build has no grammars")
            raise
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            faults = [fault for fault in pool.map(lambda number: judge(url, number), range(count)) if fault]
            key_faults = [fault for fault in pool.map(lambda number: judge_keys(url, number), range(8 * len(KEY_RULES))) if fault]
        text = urllib.request.urlopen(url + "/metrics").read().decode()
    finally:
        server.stop()
    for fault in faults[:5] + key_faults[:5]:
        print(fault)
    rounds, drafts, accepted = (metric(text, f"grammar_{what}_total") for what in ("rounds", "draft_tokens", "accepted_tokens"))
    mask_ms = metric(text, "mask_seconds_total") * 1000 / max(rounds, 1)
    print(f"{count - len(faults)} of {count} answers valid; {rounds:.0f} rounds under a grammar, {drafts / max(rounds, 1):.2f} nodes "
          f"and {accepted / max(rounds, 1):.2f} accepted in each, {mask_ms:.3f} ms of masks")
    if faults or key_faults or drafts <= 2 * rounds or accepted == 0:
        raise SystemExit("FAILED")


if __name__ == "__main__":
    main()
