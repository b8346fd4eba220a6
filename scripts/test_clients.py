#!/usr/bin/env python3
"""Runs other people's clients against `coppice serve`: langchain-openai, openai-agents, the OpenAI SDK's own tests,
schemathesis, lm-eval and aiperf.

usage: test_clients.py COPPICE_BINARY [CLIENT ...]     (make clients; a client that is not installed is skipped by name)
"""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-clients"
QUESTION = "What is the weather in Oslo?"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_AGENTS_DISABLE_TRACING": "1"}


class Skip(Exception):
    pass


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def need(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Skip(f"{module} is not installed (make clients)")


def run(command, timeout=600, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)
    return result.returncode, result.stdout + result.stderr


def langchain(url):
    need("langchain_openai")
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    @tool
    def get_weather(city: str) -> str:
        """Get the weather"""
        return city

    class Place(BaseModel):
        city: str
        inhabitants: int

    model = ChatOpenAI(base_url=url + "/v1", api_key="x", model="tiny", temperature=0, max_tokens=300, max_retries=0)
    check(model.invoke("Hi").content, "an answer")
    check("".join(chunk.content for chunk in model.stream("Hi")) == model.invoke("Hi").content, "a stream equals the answer")
    call = model.bind_tools([get_weather]).invoke(QUESTION).tool_calls[0]
    check(call["name"] == "get_weather" and call["args"] == {"city": "Oslo"}, "a tool call")
    forced = model.bind_tools([get_weather], tool_choice="get_weather", strict=True).invoke("Hi").tool_calls[0]
    check(isinstance(forced["args"]["city"], str), "a forced tool call")
    for method in ("json_schema", "function_calling"):
        place = model.with_structured_output(Place, method=method).invoke("Tell me about Oslo.")
        check(isinstance(place, Place), f"structured output by {method}")
    check(model.invoke("Hi").usage_metadata["output_tokens"] > 0, "usage")


def agents(url):
    need("agents")
    import asyncio

    import openai
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
    called = []

    @function_tool
    def get_weather(city: str) -> str:
        """Get the weather"""
        called.append(city)
        return "12 degrees, rain"

    async def both():
        client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
        for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
            agent = Agent(name="a", model=kind(model="tiny", openai_client=client), tools=[get_weather],
                          model_settings=ModelSettings(temperature=0, max_tokens=300))
            result = await Runner.run(agent, QUESTION)
            check(result.final_output, f"{kind.__name__}: the turn after the tool")
            streamed = Runner.run_streamed(agent, QUESTION)
            async for _ in streamed.stream_events():
                pass
            check(streamed.final_output == result.final_output, f"{kind.__name__}: the stream equals the answer")

    asyncio.run(both())
    check(len(called) >= 4 and set(called) == {"Oslo"}, f"the tool was called: {called}")


# What the SDK's tests of `create` send and this server refuses (docs/serving.md), each with the test file it is in.
# That it is refused by name is checked here; then the tests run without it. A text instead of a body: not refused, but
# left out for this reason.
LEFT_OUT = {
    "echo": ("test_completions.py", "echo=True,",
             "with logprobs the first token's is null, as OpenAI's and vLLM's; the SDK's type has no null there"),
    "suffix": ("test_completions.py", 'suffix="test.",', {"prompt": "a", "suffix": "b"}),
    "previous_response_id": ("test_responses.py", 'previous_response_id="previous_response_id",',
                             {"input": "a", "previous_response_id": "b"}),
    "conversation": ("test_responses.py", 'conversation="string",', {"input": "a", "conversation": "b"}),
    "background": ("test_responses.py", "background=True,", {"input": "a", "background": True}),
    "prompt": ("test_responses.py", '''prompt={
                "id": "id",
                "variables": {"foo": "string"},
                "version": "version",
            },''', {"input": "a", "prompt": {"id": "b"}}),
}


def refusal(url, route, name, body):
    request = urllib.request.Request(f"{url}/v1/{route}", json.dumps({"model": "tiny", **body}).encode())
    try:
        urllib.request.urlopen(request, timeout=60).close()
    except urllib.error.HTTPError as error:
        said = json.loads(error.read())["error"]
        check(error.code in (400, 501) and said["param"] == name, f"{name}: {said}")
        return said["message"]
    raise AssertionError(f"{name} is not refused")


def leave_out(url, tests):
    for name, (file, text, body) in LEFT_OUT.items():
        route = "completions" if file == "test_completions.py" else "responses"
        reason = body if isinstance(body, str) else refusal(url, route, name, body)
        path = pathlib.Path(tests, "tests/api_resources", file)
        source = path.read_text()
        check(text in source, f"{file} sends {name}")
        path.write_text(source.replace(text, ""))
        print(f"    left out of {file}: {reason if name in reason else f'{name}: {reason}'}")


def openai_tests(url):
    """The SDK's resource tests of what is served here, from its source distribution. Its other tests of these files
    (retrieve, list, update, delete, cancel, compact) are of stored answers, and nothing is stored here."""
    need("pytest", "pytest_asyncio", "xdist")
    version = re.search(r"^openai==(\S+)$", (ROOT / "scripts/pypi-packages.txt").read_text(), re.M)[1]
    with tempfile.TemporaryDirectory() as folder:
        code, text = run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "openai", "-d", folder,
                          f"openai=={version}"])
        if code != 0:
            raise Skip("no source distribution: " + text.strip().splitlines()[-1])
        run(["tar", "-xzf", f"{folder}/openai-{version}.tar.gz", "-C", folder])
        tests = f"{folder}/openai-{version}"
        leave_out(url, tests)
        files = ["chat/test_completions.py", "test_completions.py", "test_responses.py", "test_models.py"]
        # Plugins of other packages in this environment are not wanted.
        code, text = run([sys.executable, "-m", "pytest", "-q", "-n", "0", "--no-header", "-p", "no:cacheprovider",
                          "-p", "pytest_asyncio.plugin", "-p", "xdist.plugin",
                          *[f"tests/api_resources/{file}" for file in files],
                          "-k", "create or (TestModels and not delete) or (TestAsyncModels and not delete)"],
                         cwd=tests, env={**os.environ, "TEST_API_BASE_URL": url + "/v1",
                                         "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
        summary = text.strip().splitlines()[-1]
        print("   ", summary)
        check(code == 0, text[-3000:])


def schemathesis(url):
    need("schemathesis")
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    code, text = run([str(program), "run", url + "/openapi.json", "--max-examples", "30", "--checks", "not_a_server_error",
                      "--seed", "1", "--workers", "2", "--no-color", "--request-timeout", "60"], timeout=900)
    print("   ", [line for line in text.splitlines() if line.strip()][-1].strip())
    check(code == 0, text[-3000:])


TASK = """task: echo_task
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}]
"""


def lm_eval(url):
    need("lm_eval")
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "data.jsonl")
        rows = [{"question": f"def add_{i}(a, b):\n    return a", "choices": [" + b", " zebra"], "answer": 0} for i in range(8)]
        data.write_text("\n".join(map(json.dumps, rows)))
        pathlib.Path(folder, "echo_task.yaml").write_text(TASK.replace("DATA", str(data)))
        program = pathlib.Path(sys.executable).parent / "lm_eval"
        code, text = run([str(program), "run", "--model", "local-completions", "--model_args",
                          f"base_url={url}/v1/completions,model=tiny,tokenizer_backend=remote,num_concurrent=2", "--include_path",
                          folder, "--tasks", "echo_task"], env={**os.environ, **OFFLINE, "OPENAI_API_KEY": "x", "HF_HOME": folder})
        print("   ", next((line.strip() for line in text.splitlines() if "|acc" in line), "no result"))
        check(code == 0 and "|acc" in text, text[-3000:])


def byte_tokenizer(home):
    """A tokenizer of bytes in a hub cache of its own, since aiperf takes no folder offline: its name."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    cached = pathlib.Path(home, "hub/models--local--bytes")
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text("0")
    (cached / "snapshots/0").mkdir(parents=True)
    tokenizer.save(str(cached / "snapshots/0/tokenizer.json"))
    (cached / "snapshots/0/tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return "local/bytes"


def aiperf(url):
    program = pathlib.Path(sys.executable).parent / "aiperf"
    if not program.exists():
        raise Skip("aiperf is not installed (make clients)")
    with tempfile.TemporaryDirectory() as folder:
        inputs = pathlib.Path(folder, "inputs.jsonl")
        inputs.write_text("\n".join(json.dumps({"text": f"Say {i}."}) for i in range(12)))
        code, text = run([str(program), "profile", "--model", "tiny", "--url", url, "--endpoint-type", "chat", "--streaming",
                          "--use-server-token-count", "--input-file", str(inputs), "--custom-dataset-type", "single_turn",
                          "--tokenizer", byte_tokenizer(folder), "--concurrency", "4", "--request-count", "12",
                          "--extra-inputs", "max_tokens:16", "--artifact-dir", folder, "--ui", "none"],
                         cwd=folder, env={**os.environ, **OFFLINE, "HF_HOME": folder})
        check(code == 0, text[-3000:])
        result = json.loads(pathlib.Path(folder, "profile_export_aiperf.json").read_text())
        print("    requests", result["request_count"]["avg"], "time to first token", result["time_to_first_token"]["avg"], "ms")
        check(result["request_count"]["avg"] == 12, "every request was answered")


CLIENTS = [langchain, agents, openai_tests, schemathesis, lm_eval, aiperf]


def main():
    if pathlib.Path(sys.prefix) != VENV and (VENV / "bin/python").exists():
        os.execv(VENV / "bin/python", [str(VENV / "bin/python"), __file__, *sys.argv[1:]])
    os.environ.update(OFFLINE)
    sys.path.insert(0, str(ROOT / "scripts"))
    from test_serve_cli import DRAFTER, MODEL, Serve
    wanted = sys.argv[2:] or [client.__name__ for client in CLIENTS]
    failed = []
    server = Serve(sys.argv[1], str(MODEL), "--served-model-name", "tiny", "gpt-6-astra", "gpt-3.5-turbo-instruct",
                   "--spec-model", str(DRAFTER), "--ddtree-budget", "12")
    try:
        for client in CLIENTS:
            if client.__name__ not in wanted:
                continue
            try:
                client(f"http://127.0.0.1:{server.port}")
                print("ok:", client.__name__)
            except Skip as reason:
                print(f"skipped: {client.__name__}: {reason}")
            except Exception as error:  # noqa: BLE001: every client is run
                failed.append(client.__name__)
                print(f"FAILED: {client.__name__}: {type(error).__name__}: {error}")
    finally:
        server.stop()
    sys.exit(f"FAILED: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
