#!/usr/bin/env python3
"""Every field of a request of every kind, replaced and left out: the server says what is wrong, or answers, and lives on.

usage: test_mutated_requests.py COPPICE_BINARY     (exit 77 without models/tiny-k2)
A body is mutated at each of its paths in turn, with each of the values below. Answers are 200, 400, 404 or 501, as JSON, with a message where
they refuse.
"""
import collections
import copy
import http.client
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from served import MODEL, Server  # noqa: E402

VALUES = ["null", '""', "[]", "{}", "0", "-1", "1.5", "1e300", "9223372036854775807", "-9223372036854775808", "18446744073709551615", '"x"', "true",
          "[[]]", "[{}]", "[null]", '[""]', '"\\u0000"', '"\\ud83d\\ude00"', '{"type": "text"}', '{"a": null}']
MARK = "@mutated@"

FUNCTION = {"name": "f", "description": "d", "strict": False,
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = "functions.f:0"
BODIES = [
    ("/v1/messages", {
        "max_tokens": 1, "system": [{"type": "text", "text": "s"}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                     {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "b"},
                                                       {"type": "tool_use", "id": CALL, "name": "f", "input": {"a": "x"}}]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": CALL, "content": [{"type": "text", "text": "r"}]}]}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 10}, "stop_sequences": ["zz"], "metadata": {"user_id": "u"}}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
    ("/v1/chat/completions", {
        "max_tokens": 1, "tools": [TOOL], "tool_choice": "auto", "stop": ["zz"], "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2,
        "n": 1, "seed": 1, "chat_template_kwargs": {"thinking": True}, "reasoning": {"enabled": True}, "bad_words": ["x y"],
        "allowed_token_ids": [1, 2, 3], "truncate_prompt_tokens": 50, "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}]},
                     {"role": "assistant", "content": None, "reasoning_content": "r",
                      "tool_calls": [{"id": CALL, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
                     {"role": "tool", "tool_call_id": CALL, "content": "r"}]}),
    ("/v1/chat/completions", {
        "max_tokens": 1, "messages": [{"role": "user", "content": "a"}], "tools": [TOOL],
        "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}}),
    ("/v1/chat/completions", {
        "max_tokens": 1, "messages": [{"role": "user", "content": "a"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {
            "type": "object", "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"$ref": "#/$defs/x"}},
            "$defs": {"x": {"type": "string", "pattern": "a+"}}}}}}),
    ("/v1/chat/completions", {
        "max_tokens": 1, "messages": [{"role": "assistant", "content": "go on"}], "continue_final_message": True, "add_generation_prompt": False,
        "structured_outputs": {"choice": ["a", "b"]}}),
    ("/v1/responses", {
        "max_output_tokens": 1, "instructions": "i", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "auto",
        "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}, "metadata": {"a": "b"},
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                  {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
                  {"type": "function_call", "call_id": CALL, "name": "f", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": CALL, "output": "r"}]}),
    ("/v1/completions", {
        "max_tokens": 1, "prompt": ["a", [1, 2]], "echo": True, "logprobs": 1, "n": 1, "stop": ["z"], "logit_bias": {"7": 1.5},
        "stop_token_ids": [3], "prompt_logprobs": 1, "truncate_prompt_tokens": -1, "suffix": "", "guided_regex": "a*"}),
    ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL], "add_special_tokens": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]


def paths_of(value, path=()):
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from paths_of(value[key], (*path, key))


def mutated(body, path):
    """The body as text, with each of VALUES at the path, then without what is there."""
    if not path:
        yield from VALUES
        return
    changed = copy.deepcopy(body)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = MARK
    text = json.dumps(changed)
    for value in VALUES:
        yield text.replace(f'"{MARK}"', value)
    del holder[path[-1]]
    yield json.dumps(changed)


def ask(address, path, body):
    connection = http.client.HTTPConnection(address, timeout=120)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


def is_fine(status, text):
    if status == 200:
        return text.startswith("data: ") or text.startswith("event: ") or json.loads(text) is not None
    return status in (400, 404, 501) and bool(json.loads(text)["error"]["message"])


def main():
    if not MODEL.exists():
        print("skipped: models/tiny-k2 is absent")
        sys.exit(77)
    counts, faults = collections.Counter(), []
    with Server(sys.argv[1], ["--threads", "1", "--max-model-len", "1024"]) as server:
        address = server.url.split("//")[1]
        for url, body in BODIES:
            # Without grammars what asks for one is a 501.
            status, text = ask(address, url, json.dumps(body))
            assert status in (200, 501), (url, text)
            paths = list(paths_of(body))
            if "COPPICE_SANITIZED" in os.environ:
                paths = paths[::5]
            for path in paths:
                for changed in mutated(body, path):
                    try:
                        status, text = ask(address, url, changed)
                        counts[status] += 1
                        if not is_fine(status, text):
                            faults.append(f"{url} {changed}: {status} {text[:300]}")
                    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
                        faults.append(f"{url} {changed}: {error!r}")
                        if server.process.poll() is not None:
                            sys.exit("\n".join([*faults, "the server is gone"]))
    print(f"{sum(counts.values())} bodies: " + ", ".join(f"{count} times {status}" for status, count in sorted(counts.items())))
    if faults:
        sys.exit("\n".join(faults[:20]))
    # Both kinds are there, however many bodies this run sends.
    assert counts[200] > sum(counts.values()) / 10 and counts[400] > sum(counts.values()) / 2, counts


if __name__ == "__main__":
    main()
