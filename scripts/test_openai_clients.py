#!/usr/bin/env python3
"""Drives `coppice serve` with the official openai and anthropic SDKs.

usage: test_openai_clients.py COPPICE_BINARY    (exit 77 without the SDKs or models/tiny-k2)
Run it with the Python of .venv (make oracles); as a test it starts itself there.
"""
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def check(holds, what):
    if not holds:
        raise SystemExit(f"FAILED: {what}")
    print("ok:", what)


def chat(client):
    question = dict(model="tiny", messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
                    tools=[TOOL], temperature=0)
    whole = client.chat.completions.create(**question)
    call = whole.choices[0].message.tool_calls[0]
    check(whole.choices[0].finish_reason == "tool_calls" and call.id == "functions.get_weather:0", "a tool call")
    check(json.loads(call.function.arguments) == {"city": "Oslo"}, "its arguments")
    with client.chat.completions.stream(**question) as stream:
        final = [event for event in stream][-1] and stream.get_final_completion()
    check(final.choices[0].message.tool_calls[0].function.arguments == call.function.arguments,
          "the SDK's accumulator gives the same call")
    history = question["messages"] + [whole.choices[0].message.model_dump(exclude_none=True), {
        "role": "tool", "tool_call_id": call.id, "content": "12 degrees, rain"}]
    second = client.chat.completions.create(**{**question, "messages": history})
    check(second.choices[0].finish_reason == "stop" and second.choices[0].message.content, "the second turn")
    reply = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hi"}], n=2, seed=3, max_completion_tokens=8,
        logprobs=True, top_logprobs=2, stop=["zzz"], logit_bias={"5": 1}, user="u", parallel_tool_calls=True)
    check(len(reply.choices) == 2 and len(reply.choices[0].logprobs.content) == 8, "n, logprobs, limits")
    check(reply.usage.completion_tokens == 16, "usage over the choices")
    chunks = list(client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hi"}], stream=True, max_tokens=5, n=2, seed=3,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True}))
    check(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 10, "the usage chunk")


def completions(client):
    text = client.completions.create(model="tiny", prompt="def fibonacci(n):", max_tokens=16, temperature=0,
                                     logprobs=2, echo=False)
    check(len(text.choices[0].logprobs.tokens) == 16, "completion logprobs")
    streamed = "".join(part.choices[0].text for part in client.completions.create(
        model="tiny", prompt="def fibonacci(n):", max_tokens=16, temperature=0, stream=True))
    check(streamed == text.choices[0].text, "a streamed completion")


def errors(client, openai):
    for fields, error in (({"model": "other"}, openai.NotFoundError), ({"temperature": -1}, openai.BadRequestError)):
        try:
            client.completions.create(**{"model": "tiny", "prompt": "a", **fields})
            check(False, f"{fields} is refused")
        except error as refusal:
            check(refusal.body["message"] != "", f"{fields}: {error.__name__}")
    check(client.models.retrieve("tiny").id == "tiny" and len(list(client.models.list())) == 1, "models")


def responses(client):
    answer = client.responses.create(model="tiny", input="What is 2 + 2?", temperature=0)
    check(answer.status == "completed" and answer.output_text, "a response")
    with client.responses.stream(model="tiny", input="What is 2 + 2?", temperature=0) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_response()
    check(final.output_text == answer.output_text, "the streamed response")
    check(events[0] == "response.created" and events[-1] == "response.completed", "its events")
    tool = {"type": "function", **TOOL["function"]}
    call = client.responses.create(model="tiny", input="What is the weather in Oslo?", tools=[tool], temperature=0)
    item = [item for item in call.output if item.type == "function_call"][0]
    check(json.loads(item.arguments) == {"city": "Oslo"}, "a function call item")


def messages(anthropic, port):
    client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="x", max_retries=0)
    tool = {"name": "get_weather", "description": "Get the weather",
            "input_schema": TOOL["function"]["parameters"]}
    question = dict(model="tiny", max_tokens=200, tools=[tool], extra_body={"temperature": 0},
                    messages=[{"role": "user", "content": "What is the weather in Oslo?"}])
    whole = client.messages.create(**question)
    use = [block for block in whole.content if block.type == "tool_use"][0]
    check(whole.stop_reason == "tool_use" and use.input == {"city": "Oslo"}, "Anthropic tool use")
    with client.messages.stream(**question) as stream:
        final = stream.get_final_message()
    check([b.type for b in final.content] == [b.type for b in whole.content] and
          final.content[-1].input == use.input, "the streamed message")
    history = question["messages"] + [{"role": "assistant", "content": whole.content}, {
        "role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "12 degrees"}]}]
    second = client.messages.create(**{**question, "messages": history})
    check(second.stop_reason == "end_turn", "the turn after a tool result")
    count = client.messages.count_tokens(model="tiny", messages=question["messages"])
    check(count.input_tokens > 0, "count_tokens")
    try:
        client.messages.create(model="tiny", max_tokens=0, messages=[])
        check(False, "no messages are refused")
    except anthropic.BadRequestError as refusal:
        check(refusal.body["error"]["type"] == "invalid_request_error", "Anthropic's error shape")


def main():
    python = ROOT / ".venv/bin/python"
    if pathlib.Path(sys.prefix) != ROOT / ".venv" and python.exists():
        os.execv(python, [str(python), __file__, *sys.argv[1:]])
    try:
        import anthropic
        import openai
    except ImportError as missing:
        skip(f"{missing.name} is not installed (make oracles)")
    if not (ROOT / "models/tiny-k2/config.json").exists():
        skip("models/tiny-k2 is absent")
    sys.path.insert(0, str(ROOT / "scripts"))
    from test_serve_cli import DRAFTER, MODEL, Serve
    server = Serve(sys.argv[1], str(MODEL), "--served-model-name", "tiny", "--spec-model", str(DRAFTER),
                   "--ddtree-budget", "12")
    try:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x", max_retries=0)
        chat(client)
        completions(client)
        errors(client, openai)
        responses(client)
        messages(anthropic, server.port)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
