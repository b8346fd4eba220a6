#!/usr/bin/env python3
"""What a server under load must keep, measured on loopback against a `coppice serve` of its own.

usage: load_acceptance.py COPPICE_BINARY [--small] [streams] [cuts] [overload] [drain] [cpu]

streams   2,000 answers streamed at once: none fails; memory that they cost
cuts      1,000 clients that leave at random moments: their cache blocks are free again within two rounds + 100 ms
overload  ten times what fits: the rest is refused with 429 or 503 and Retry-After within 50 ms, nothing accepted is lost
drain     SIGTERM while answers stream: all of them are finished
cpu       microseconds of the server's CPU, engine aside, for each token

--small: a tenth or less of the counts, under 20 s. Exit codes: 0 kept, 1 not, 77 models/tiny-k2 is absent.
Times are judged with --strict only: they depend on what else the machine does.
"""
import asyncio
import json
import os
import pathlib
import random
import re
import signal
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/tiny-k2"
PATIENCE = 600  # seconds: a time limit is for hangs only
faults = []


def check(holds, what):
    print(("ok:     " if holds else "FAILED: ") + what, flush=True)
    if not holds:
        faults.append(what)


class Serve:
    """A server process on a port that the system chose; leaves nothing behind."""

    def __init__(self, binary, *flags, model=MODEL):
        self.binary, self.flags, self.model, self.port = binary, flags, model, 0
        self.log_file = tempfile.TemporaryFile()

    async def __aenter__(self):
        # Variables of the tests are none of the server's: it would warn of them.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COPPICE_TEST_")}
        self.process = await asyncio.create_subprocess_exec(
            self.binary, "serve", str(self.model), "--port", "0", "--quiet", "--disable-log-stats",
            "--stuck-after", "60", "--shutdown-timeout", str(PATIENCE), *self.flags, stderr=self.log_file, env=environment)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.process.returncode is None:
            address = re.search(r"Starting Coppice server on http://\S+:(\d+)\n", self.log())
            if address:
                self.port = int(address[1])
                if (await self.get("/health"))[0] == 200:
                    return self
            await asyncio.sleep(0.02)
        if self.process.returncode is None:
            self.process.kill()
        raise SystemExit("the server did not become healthy:\n" + self.log())

    def log(self):
        return os.pread(self.log_file.fileno(), 1 << 24, 0).decode()

    async def __aexit__(self, *_):
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def get(self, path):
        """Status and body; 0 when nobody answers."""
        try:
            answer = Answer(*await asyncio.open_connection("127.0.0.1", self.port))
            await answer.ask("GET", path)
            return answer.status, await answer.body()
        except (ConnectionError, asyncio.IncompleteReadError):
            return 0, ""

    async def metrics(self):
        """Sums over labels, by name."""
        sums = {}
        for line in (await self.get("/metrics"))[1].splitlines():
            match = re.match(r"([a-z_:0-9]+)(?:\{.*\})? (\S+)$", line)
            if match:
                sums[match[1]] = sums.get(match[1], 0) + float(match[2])
        return sums

    async def ask(self, **fields):
        """A completion under way, its head read."""
        answer = Answer(*await asyncio.open_connection("127.0.0.1", self.port))
        await answer.ask("POST", "/v1/completions", {"ignore_eos": True, "temperature": 0, **fields})
        return answer

    def memory_kib(self, name):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(name + r":\s+(\d+) kB", text)[1])

    def cpu_seconds(self):
        """By thread name."""
        ticks = {}
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:  # the thread has ended
                continue
            ticks[task.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return ticks


class Answer:
    """One HTTP exchange on a connection of its own; just enough HTTP for this server."""

    def __init__(self, reader, writer):
        self.reader, self.writer, self.status, self.headers = reader, writer, 0, {}

    async def ask(self, method, path, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        self.writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                          f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await self.writer.drain()
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(head[0].split()[1])
        self.headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if ": " in line)}

    async def chunks(self):
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()
        self.leave()

    async def body(self):
        if "content-length" in self.headers:
            text = (await self.reader.readexactly(int(self.headers["content-length"]))).decode()
            self.leave()
            return text
        return b"".join([piece async for piece in self.chunks()]).decode()

    def leave(self):
        self.writer.close()


def is_whole(text):
    return text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in text.replace(" ", "")


async def whole_stream(server, on_first=None, **fields):
    """'' when the stream came to its proper end, else the cause."""
    try:
        answer = await server.ask(stream=True, **fields)
        if answer.status != 200:
            return f"HTTP {answer.status}"
        text = b""
        async for piece in answer.chunks():
            text += piece
            if on_first:
                on_first()
                on_first = None
        return "" if is_whole(text.decode()) else "no proper end: " + text.decode()[-200:]
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        return repr(error)


def summary(causes):
    failed = [cause for cause in causes if cause]
    return f"{len(causes)} streams, {len(failed)} failures" + (f", first: {failed[0]}" if failed else "")


async def test_streams(binary, small, strict):
    count, tokens = (200, 8) if small else (2000, 16)
    async with Serve(binary, "--max-num-seqs", "64", "--max-model-len", "256") as server:
        # The engine's buffers have their full size before the streams come.
        await asyncio.gather(*(whole_stream(server, prompt="def f", max_tokens=8) for _ in range(64)))
        before = server.memory_kib("VmRSS")
        start, most_open = time.time(), 0
        streams = [asyncio.create_task(whole_stream(server, prompt=f"{i} is", max_tokens=tokens)) for i in range(count)]
        while not all(stream.done() for stream in streams):
            load = (await server.metrics()).get("coppice:requests_in_flight", 0)
            most_open = max(most_open, int(load))
            await asyncio.sleep(0.2)
        causes = [stream.result() for stream in streams]
        seconds = time.time() - start
        cost = (server.memory_kib("VmHWM") - before) / 1024
        print(f"        {count} streams of {tokens} tokens in {seconds:.1f} s; most under way at once {most_open}; "
              f"memory {before / 1024:.0f} MiB idle, +{cost:.1f} MiB at most")
        check(not any(causes), "every stream came to its proper end: " + summary(causes))
        # A sanitizer keeps what was freed in quarantine, more of it the longer the streams take.
        if "COPPICE_SANITIZED" not in os.environ:
            check(cost < 64, f"{count} streams cost less than 64 MiB: {cost:.1f} MiB")


async def test_cuts(binary, small, strict):
    count, at_once = (60, 12) if small else (1000, 16)
    rng = random.Random(1)
    late, longest, rounds = [], 0.0, []
    async with Serve(binary, "--max-num-seqs", "16", "--max-model-len", "1024", "--no-enable-prefix-caching") as server:
        async def leave_at_random():
            answer = await server.ask(stream=True, prompt="a" * rng.randrange(1, 200), max_tokens=800)
            wanted = rng.randrange(0, 12)
            async for _ in answer.chunks():
                if wanted == 0:
                    break
                wanted -= 1
            answer.writer.transport.abort()

        for _ in range(0, count, at_once):
            start, counts = time.time(), await server.metrics()
            await asyncio.gather(*(leave_at_random() for _ in range(at_once)))
            left, after = time.time(), await server.metrics()
            steps = after["coppice:rounds_total"] - counts["coppice:rounds_total"]
            rounds.append((left - start) / max(steps, 1))
            while (now := await server.metrics())["vllm:kv_cache_usage_perc"] > 0 or now["coppice:requests_in_flight"] > 0:
                if time.time() - left > PATIENCE:
                    check(False, f"cache blocks of clients that left are still held after {PATIENCE} s")
                    return
                await asyncio.sleep(0.005)
            took = time.time() - left
            longest = max(longest, took)
            limit = 2 * rounds[-1] + 0.1
            if took > limit:
                late.append(took - limit)
        print(f"        {count} cuts; a round takes {statistics.median(rounds) * 1000:.1f} ms; "
              f"blocks were free after at most {longest * 1000:.0f} ms; later than two rounds + 100 ms: {len(late)}")
        check(True, "every cut gave its cache blocks back")
        if strict:
            check(not late, "within two rounds + 100 ms")
        check(await whole_stream(server, prompt="def f", max_tokens=8) == "", "the server still answers")


async def test_overload(binary, small, strict):
    fits = 16  # 4 running and 12 waiting
    count, refusals, ends = fits * 10, [], []
    async with Serve(binary, "--max-num-seqs", "4", "--max-queued-requests", "12", "--max-model-len", "512") as server:
        async def one(index):
            start = time.time()
            answer = await server.ask(stream=True, prompt=f"{index}", max_tokens=60 if small and index >= fits else 200)
            if answer.status == 200:
                return is_whole(await answer.body())
            refusals.append((time.time() - start, answer.status, answer.headers.get("retry-after")))
            answer.leave()
            return None

        # Where the clients get little time, the first answers may have ended before the rest knocks: once more, then.
        for _ in range(1 if strict else 30):
            # What fits is there before the rest knocks, one after the other: each refusal's own time is seen.
            first = [asyncio.create_task(one(i)) for i in range(fits)]
            while (await server.metrics()).get("coppice:requests_in_flight", 0) < fits and not all(t.done() for t in first):
                await asyncio.sleep(0.005)
            for i in range(fits, count):
                ends.append(await one(i))
            ends += await asyncio.gather(*first)
            if refusals:
                break
        accepted = [end for end in ends if end is not None]
        times = sorted(seconds for seconds, _, _ in refusals) or [0]
        print(f"        {len(ends)} requests for {fits} places: {len(accepted)} accepted, {len(refusals)} refused; "
              f"a refusal takes {statistics.median(times) * 1000:.1f} ms, at most {times[-1] * 1000:.1f} ms")
        check(len(accepted) >= fits and all(accepted), "no accepted request was lost")
        check(len(refusals) > 0 and all(status in (429, 503) and wait for _, status, wait in refusals),
              "the rest got 429 or 503 with Retry-After")
        if strict:
            check(times[-1] < 0.05, "within 50 ms")


async def test_drain(binary, small, strict):
    count, tokens = (40, 30) if small else (200, 100)
    async with Serve(binary, "--max-num-seqs", "32", "--max-model-len", "512") as server:
        # Where the clients get little time, all answers may have ended before the signal: once more, then.
        causes = []
        for _ in range(1 if strict else 30):
            begun = asyncio.Event()
            streams = [asyncio.create_task(whole_stream(server, begun.set, prompt=f"{i} is", max_tokens=tokens))
                       for i in range(count)]
            while (await server.metrics()).get("coppice:requests_in_flight", 0) < count and not all(s.done() for s in streams):
                await asyncio.sleep(0.01)
            await begun.wait()
            under_way = (await server.metrics()).get("coppice:requests_in_flight", 0)
            if under_way > 0:
                break
            causes += await asyncio.gather(*streams)
        server.process.send_signal(signal.SIGTERM)
        causes += await asyncio.gather(*streams)
        code = await server.process.wait()
        print(f"        SIGTERM with {under_way:.0f} requests under way")
        check(under_way > 0 and not any(causes), "every accepted stream was finished: " + summary(causes))
        check(code == 0, f"exit code {code}")


async def test_cpu(binary, small, strict):
    streams, tokens = (16, 40) if small else (64, 200)
    async with Serve(binary, "--max-num-seqs", str(streams), "--max-model-len", "512") as server:
        await asyncio.gather(*(whole_stream(server, prompt=f"{i}", max_tokens=4) for i in range(streams)))
        before, start = server.cpu_seconds(), time.time()
        counts = await server.metrics()
        causes = await asyncio.gather(*(whole_stream(server, prompt=f"{i}", max_tokens=tokens) for i in range(streams)))
        seconds, after, ends = time.time() - start, server.cpu_seconds(), await server.metrics()
        spent = sorted((after[t] - before.get(t, 0) for t in after), reverse=True)
        total = ends["vllm:generation_tokens_total"] - counts["vllm:generation_tokens_total"]
        step = sum(ends[n] - counts[n] for n in ("coppice:decode_seconds_total", "coppice:prefill_seconds_total"))
        io = server_io_seconds(server, before, after)
        print(f"        {streams} streams, {total:.0f} tokens in {seconds:.1f} s: {total / seconds:.0f} tokens/s; "
              f"steps took {step:.1f} s of it, {100 * step / seconds:.1f} %")
        print(f"        CPU of the process {sum(spent) * 1e6 / total:.0f} us a token; "
              f"of the HTTP thread {io * 1e6 / total:.1f} us a token")
        check(not any(causes), "every stream came to its proper end: " + summary(causes))


def server_io_seconds(server, before, after):
    """CPU of the HTTP thread: the one that sleeps in epoll when the server is idle; else the third, as they start."""
    threads = sorted(after, key=int)
    waits = {t: pathlib.Path(f"/proc/{server.process.pid}/task/{t}/wchan").read_text() for t in threads}
    io = next((t for t in threads if "epoll" in waits[t] or "ep_poll" in waits[t]), threads[min(2, len(threads) - 1)])
    return after[io] - before.get(io, 0)


TESTS = {"streams": test_streams, "cuts": test_cuts, "overload": test_overload, "drain": test_drain, "cpu": test_cpu}


def main():
    arguments = sys.argv[1:]
    small, strict = "--small" in arguments, "--strict" in arguments
    names = [argument for argument in arguments[1:] if not argument.startswith("--")] or list(TESTS)
    if not arguments or any(name not in TESTS for name in names):
        sys.exit(__doc__)
    if not (MODEL / "config.json").exists():
        print("models/tiny-k2 is absent")
        sys.exit(77)
    import resource
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name in names:
        print(f"{name}:", flush=True)
        asyncio.run(asyncio.wait_for(TESTS[name](arguments[0], small, strict), 2 * PATIENCE))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
