#!/usr/bin/env python3
"""One text a request, whoever else is served: `coppice serve` on models/tiny-k2 as clients use it.

usage: test_served_texts.py COPPICE_BINARY [--device D] [-tp N] [--model DIR] [--whole] [--repeats N] [--save FILE] [--reference FILE] [--same-as FILE]

Requests of every kind (greedy, seeds, filters, penalties, bias, grammars, log-probabilities, stops, several choices, chat) are asked alone, then as 64 streams
at once among clients that leave, each N times; then of a server without a drafter and, --whole, of others: automatic budgets, n-grams, without captured rounds
(GPU). Text, finish reason and every log-probability must be the same each time. After the load the metrics agree with what the clients counted and nothing is
held; SIGTERM lets streams end; the log holds no error. -tp N serves by N ranks; --model another folder of the same model (repacked). --save keeps the answers;
--reference compares greedy ones with another device's, equal up to near ties; --same-as compares all, equal in every bit.
Exit codes: 0 kept, 1 not, 77 models/tiny-k2 is absent.
"""
import argparse
import asyncio
import json
import math
import pathlib
import random
import re
import signal
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from load_acceptance import Answer, Serve, check, faults  # noqa: E402

AT_ONCE = 64
NEAR_TIE = 0.25  # of two tokens, in log-probability
DRAFTER = str(ROOT / "models/tiny-k2-dflash")
TEXTS = ("def fibonacci(n):\n", "Once upon a time", "The capital of France is", "import os\n\ndef read(path):\n", "class Stack:\n",
         "# How to sort a list\n", "In the beginning", "SELECT name FROM")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}


grammars = True  # does the build hold any?


def requests():
    """name -> (path, body)."""
    asked = {}

    def completion(name, prompt, **fields):
        asked[name] = ("/v1/completions", {"prompt": prompt, "max_tokens": 64, **fields})

    def chat(name, text, **fields):
        asked[name] = ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 64, **fields})

    for i, text in enumerate(TEXTS):
        completion(f"greedy {i}", text, temperature=0, logprobs=5, max_tokens=96)
    for i, text in enumerate(TEXTS[:6]):
        completion(f"seed {i}", text, temperature=0.8, seed=i)
    for name, fields in {"top_k": {"top_k": 20}, "top_p": {"top_p": 0.9}, "min_p": {"min_p": 0.05},
                         "filters": {"top_k": 40, "top_p": 0.95, "min_p": 0.01}}.items():
        completion(name, TEXTS[1], temperature=1, seed=7, logprobs=3, **fields)
    for name, fields in {"repetition": {"repetition_penalty": 1.2}, "presence": {"presence_penalty": 0.7}, "frequency": {"frequency_penalty": 0.5},
                         "bias": {"logit_bias": {"100": -100, "200": 2}}}.items():
        completion(f"{name}, greedy", TEXTS[1], temperature=0, logprobs=2, **fields)
        completion(f"{name}, sampled", TEXTS[1], temperature=0.8, seed=3, **fields)
    completion("choices", TEXTS[3], temperature=0.8, seed=5, n=3)
    completion("stop", TEXTS[4], temperature=0, stop=["\n\n", "return"])
    completion("long prompt", "\n".join(f"x{i} = {i}" for i in range(60)) + "\n", temperature=0, logprobs=1)
    chat("chat", "Write a function that adds two numbers.", temperature=0, logprobs=True, top_logprobs=3)
    chat("chat, seed", "Tell me a story.", temperature=0.7, seed=11)
    if not grammars:
        return asked
    completion("regex", "Call me at ", temperature=0, guided_regex=r"\d{3}-\d{4}")
    completion("choice", "The sky is", temperature=0.8, seed=2, guided_choice=["blue", "green", "red"])
    chat("schema", "Who are you?", temperature=0.8, seed=4, response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}})
    chat("json", "A list of numbers in JSON.", temperature=0, response_format={"type": "json_object"})
    return asked


def collect(events):
    """What the client has in the end: by choice text, reasoning, finish reason and log-probabilities, and the tokens made."""
    choices, usage = {}, {}
    for event in events:
        if "error" in event:
            raise ValueError(json.dumps(event))
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            own = choices.setdefault(str(choice["index"]), {"text": "", "reasoning": "", "finish": None, "logprobs": []})
            said = choice.get("delta") or choice.get("message") or choice
            own["text"] += said.get("text") or said.get("content") or ""
            own["reasoning"] += said.get("reasoning") or ""
            own["finish"] = choice.get("finish_reason") or own["finish"]
            own["logprobs"] += logprobs_of(choice.get("logprobs") or {})
    return {"choices": choices, "tokens": usage["completion_tokens"]}


def logprobs_of(piece):
    """[token, log-probability, alternatives] by token."""
    if "content" in piece:
        return [[t["token"], t["logprob"], {a["token"]: a["logprob"] for a in t["top_logprobs"]}] for t in piece["content"]]
    return [list(item) for item in zip(piece.get("tokens", []), piece.get("token_logprobs", []), piece.get("top_logprobs", []))]


async def ask(server, request, leave_after=None):
    """The answer as streamed; None if the client left."""
    path, body = request
    answer = Answer(*await asyncio.open_connection("127.0.0.1", server.port))
    await answer.ask("POST", path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    if answer.status != 200:
        raise ValueError(f"HTTP {answer.status}: {await answer.body()}")
    text, pieces = b"", 0
    async for piece in answer.chunks():
        if pieces == leave_after:
            answer.writer.transport.abort()
            return None
        text += piece
        pieces += 1
    lines = [line[6:] for line in text.decode().splitlines() if line.startswith("data: ")]
    if lines[-1] != "[DONE]":
        raise ValueError("no proper end: " + text.decode()[-200:])
    return collect(json.loads(line) for line in lines[:-1])


async def ask_whole(server, request):
    """The answer without a stream."""
    answer = Answer(*await asyncio.open_connection("127.0.0.1", server.port))
    await answer.ask("POST", request[0], request[1])
    return collect([json.loads(await answer.body())])


def check_same(name, expected, got, what):
    if got != expected:
        check(False, f"{what}: '{name}' is the same: {json.dumps(expected)[:300]} ... {json.dumps(got)[:300]}")


async def has_grammars(server):
    answer = Answer(*await asyncio.open_connection("127.0.0.1", server.port))
    await answer.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "guided_regex": "b"})
    await answer.body()
    return answer.status != 501


async def all_alone(server, how=ask):
    return {name: await how(server, request) for name, request in requests().items()}


async def check_alone(server, expected, what, how=ask):
    for name, answer in (await all_alone(server, how)).items():
        check_same(name, expected[name], answer, what)


async def under_load(server, expected, repeats):
    """Every request `repeats` times, 64 streams at once, a fifth of them by clients that leave. Returns what was counted."""
    rng = random.Random(1)
    work = [(name, None) for name in expected for _ in range(repeats)]
    work += [(rng.choice(list(expected)), rng.randrange(0, 12)) for _ in range(len(work) // 4)]
    rng.shuffle(work)
    count = {"ended": 0, "choices": 0, "left": 0, "tokens": 0, "most": 0}
    asked, open_streams = requests(), 0

    async def client():
        nonlocal open_streams
        while work:
            name, leave_after = work.pop()
            open_streams += 1
            count["most"] = max(count["most"], open_streams)
            answer = await ask(server, asked[name], leave_after)
            open_streams -= 1
            if answer is None:
                count["left"] += 1
                continue
            count["ended"] += 1
            count["choices"] += len(answer["choices"])
            count["tokens"] += answer["tokens"]
            check_same(name, expected[name], answer, "under load")

    start = time.monotonic()
    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    count["seconds"] = time.monotonic() - start
    return count


async def check_metrics(server, before, count):
    """Nothing is held once the last client has left; counters are those of the clients."""
    for _ in range(500):
        now = await server.metrics()
        if now["coppice:requests_in_flight"] == 0 and now["vllm:num_requests_running"] == 0 and now["vllm:kv_cache_usage_perc"] == 0:
            break
        await asyncio.sleep(0.02)
    grown = {name: now[name] - before.get(name, 0) for name in now}
    for name in ("coppice:requests_in_flight", "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "coppice:not_finite_total"):
        check(now[name] == 0, f"metrics: {name} is 0: {now[name]}")
    ended, made = grown["vllm:request_success_total"], grown["vllm:generation_tokens_total"]
    check(count["choices"] <= ended <= count["choices"] + 3 * count["left"], f"metrics: {ended:.0f} choices ended, the clients saw {count['choices']}")
    check(made >= count["tokens"], f"metrics: {made:.0f} tokens made, the clients got {count['tokens']}")
    bad = [name for name, value in now.items() if not math.isfinite(value) or value < 0]
    check(not bad, f"metrics: every number is finite and not negative {bad}")
    rounds, accepted = grown["coppice:rounds_total"], grown["vllm:spec_decode_num_accepted_tokens_total"]
    print(f"        {count['ended']} streams and {count['left']} that left in {count['seconds']:.1f} s, {count['most']} at once; {made:.0f} tokens in {rounds:.0f} rounds, "
          f"{accepted:.0f} by drafts; {grown['vllm:num_preemptions_total']:.0f} preemptions", flush=True)


async def end_while_streaming(server, expected):
    names = [name for name in expected if name.startswith("greedy")] * 3
    streams = [asyncio.create_task(ask(server, requests()[name])) for name in names]
    while (await server.metrics())["vllm:num_requests_running"] < 1 and not all(s.done() for s in streams):
        await asyncio.sleep(0.001)
    while (await server.metrics())["coppice:requests_in_flight"] < len(names) and not any(s.done() for s in streams):
        await asyncio.sleep(0.001)
    server.process.send_signal(signal.SIGTERM)
    ends = await asyncio.gather(*streams, return_exceptions=True)
    code = await server.process.wait()
    refused = [end for end in ends if isinstance(end, Exception)]
    for name, end in zip(names, ends):
        if not isinstance(end, Exception):
            check_same(name, expected[name], end, "while the server ends")
    check(len(refused) < len(names) and all("503" in str(e) or "Connect" in repr(e) for e in refused),
          f"SIGTERM: {len(names) - len(refused)} streams ended as they should, {len(refused)} came too late {refused[:1]}")
    check(code == 0, f"exit code {code}")


def check_log(server, what):
    lines = [line for line in server.log().splitlines() if re.search(r"\b(error|warning|failed|fatal|abort)\b", line, re.I)]
    check(not lines, f"{what}: no error in the log {lines[:3]}")


def compare_devices(ours, reference):
    """Greedy texts up to near ties of the reference."""
    tokens, partings, widest = 0, [], 0.0
    greedy = [name for name in reference if name.startswith("greedy")]
    for name in greedy:
        expected, got = (answers[name]["choices"]["0"]["logprobs"] for answers in (reference, ours))
        first = next((i for i, (a, b) in enumerate(zip(expected, got)) if a[0] != b[0]), None)
        tokens += len(expected) if first is None else first
        if first is None:
            continue
        gap = expected[first][1] - expected[first][2].get(got[first][0], -math.inf)
        widest = max(widest, gap)
        partings.append(f"'{name}' at token {first}, gap {gap:.3f}")
    texts = sum([c["text"] for c in reference[n]["choices"].values()] == [c["text"] for c in ours[n]["choices"].values()] for n in reference)
    print(f"        against the other device: {len(greedy) - len(partings)} of {len(greedy)} greedy texts equal, {tokens} tokens, widest gap {widest:.3f}; "
          f"{texts} of all {len(reference)} requests have the same text. {'; '.join(partings)}")
    check(widest < NEAR_TIE, f"greedy texts part at near ties alone: {widest:.3f}")


async def check_trees(options, flags):
    start = time.monotonic()
    async with Serve(options.binary, *flags, model=options.model) as server:
        print(f"trees, ready after {time.monotonic() - start:.1f} s", flush=True)
        global grammars
        grammars = await has_grammars(server)
        alone = await all_alone(server)
        await check_alone(server, alone, "asked again")
        await check_alone(server, alone, "without a stream", ask_whole)
        before = await server.metrics()
        count = await under_load(server, alone, options.repeats)
        await check_metrics(server, before, count)
        check(not faults, f"trees: {len(alone)} requests have one text each, {count['ended']} times under load")
        await end_while_streaming(server, alone)
        check_log(server, "trees")
    if "schema" in alone:
        check(json.loads(alone["schema"]["choices"]["0"]["text"]).keys() == {"name", "age"}, "trees: the schema is kept")
    return alone


async def check_way(options, what, flags, alone):
    known = len(faults)
    async with Serve(options.binary, *flags, model=options.model) as server:
        await check_alone(server, alone, what)
        await under_load(server, alone, 1)
        check(len(faults) == known, f"{what}: the same texts alone and under load")
        server.process.send_signal(signal.SIGTERM)
        check(await server.process.wait() == 0, f"{what}: ends with 0")
        check_log(server, what)


async def run(options):
    common = ["--device", options.device, "-tp", str(options.tp), "--max-num-seqs", str(AT_ONCE), "--max-model-len", "2048", "--prefix-cache-exact"]
    drafting = [*common, "--drafter", DRAFTER, "--ddtree-budget"]
    alone = await check_trees(options, [*drafting, "16"])
    ways = {"plain": common}
    if options.whole:
        ways |= {"automatic budgets": [*drafting, "auto"], "n-grams": [*common, "--spec-method", "ngram"]}
        if options.device.startswith("cuda"):
            ways |= {"trees, op by op": [*drafting, "16", "--enforce-eager"], "plain, op by op": [*common, "--enforce-eager"]}
    for what, flags in ways.items():
        await check_way(options, what, flags, alone)
    if options.save:
        pathlib.Path(options.save).write_text(json.dumps(alone))
    if options.reference:
        compare_devices(alone, json.loads(pathlib.Path(options.reference).read_text()))
    if options.same_as:
        other = json.loads(pathlib.Path(options.same_as).read_text())
        known = len(faults)
        for name in other:
            check_same(name, other[name], json.loads(json.dumps(alone[name])), options.same_as)
        check(len(faults) == known, f"all {len(other)} answers are those of {pathlib.Path(options.same_as).name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-tp", type=int, default=1)
    parser.add_argument("--model", default=str(ROOT / "models/tiny-k2"))
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--save")
    parser.add_argument("--reference")
    parser.add_argument("--same-as")
    if not (ROOT / "models/tiny-k2/config.json").exists():
        print("models/tiny-k2 is absent")
        sys.exit(77)
    asyncio.run(run(parser.parse_args()))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
