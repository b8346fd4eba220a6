#!/usr/bin/env python3
"""Drives the page at / in Chromium: send, stream, stop, the tree, keys, dark, keyboard, nothing from elsewhere.

usage: test_page.py COPPICE_BINARY [SCREENSHOT.png [DARK.png]]     (exit 77 without Chromium or models/tiny-k2)
"""
import json
import pathlib
import sys
import time

import chromium
from test_serve_cli import DRAFTER, MODEL, PATIENCE, Serve, check, get

QUESTION = "Write a Python function to sort a list."
LAST = "[...document.querySelectorAll('.turn.assistant')].at(-1)"
ENTER = dict(name="Enter", code=13, text="\r")
TRIES = 30  # where the browser gets little time, an answer may have ended before the page shows its first piece


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def choose(page, **values):
    for name, value in values.items():
        page.run(f"document.getElementById({name!r}).value = {str(value)!r}")


def idle(server):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if json.loads(get(server.port, "/load")[1])["server_load"] == 0:
            return True
        time.sleep(0.02)
    return False


def answered(page, question, before=""):
    """Asks, waits for the whole answer and returns its text."""
    count = page.run("document.querySelectorAll('.turn').length")
    page.run("document.getElementById('question').focus()")
    page.type(question)
    page.run(before)
    page.key(**ENTER)
    page.wait(f"document.querySelectorAll('.turn').length === {count} + 2 && document.body.dataset.busy === 'false' && "
              f"{LAST}.querySelector('.text').textContent")
    return page.run(f"{LAST}.querySelector('.text').textContent")


def open_page(server, page):
    page.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
    page.wait("document.readyState === 'complete' && ['question', 'key'].includes(document.activeElement?.id)")


def test_answer(server, page):
    body = get(server.port, "/v1/chat/completions", {
        "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 160,
        "chat_template_kwargs": {"thinking": False}})[1]
    whole = json.loads(body)["choices"][0]["message"]["content"]
    open_page(server, page)
    page.wait("document.getElementById('state').textContent === 'ready'")
    check(page.run("document.getElementById('model').textContent") != "", "the page shows the model and that it is ready")
    choose(page, budget=0, **{"max-tokens": 160})
    plain = answered(page, QUESTION)
    choose(page, budget=16)
    watch = ("window.lengths = new Set(); window.watch?.disconnect(); window.watch = new MutationObserver(() => "
             f"window.lengths.add({LAST}?.querySelector('.text').textContent.length));"
             "window.watch.observe(document.getElementById('log'), {childList: true, subtree: true, characterData: true})")
    for _ in range(TRIES):
        page.run("document.getElementById('new-chat').click()")
        shown = answered(page, QUESTION, watch)
        if page.run("window.lengths.size") > 2:
            break
    check(page.run("window.lengths.size") > 2, "the answer came in pieces")
    for mark in ("```python", "`"):
        whole = whole.replace(mark, "")
    check(shown == plain, "the same with drafts and without")
    check("".join(shown.split()) == "".join(whole.split()), "its text is that of the API")


# What the page shows of the rounds, at one moment.
SHOWN = """(() => {
  const all = (what) => [...document.querySelectorAll(what)], text = (id) => document.getElementById(id).textContent;
  return {
    nodes: all('#tree .node').length, roots: all('#tree .node.root').length, bonuses: all('#tree .node.bonus').length,
    kept: all('#tree .edge.kept').length, tokens: all('#tree .node').every((node) => node.querySelector('text').textContent),
    probabilities: all('#tree .node.left').every((node) => node.querySelector('.prob')),
    figures: Object.fromEntries(['speed', 'gain', 'per-round', 'accepted'].map((name) => [name, text(name)])),
    verbs: all('.stack i').filter((part) => Number(part.style.flexGrow) > 0).length,
    strip: all('#strip rect').length, depths: all('#depths .bar-kept').length, cache: text('kv-note')};
})()"""


def round_checks(shown):
    yield shown["nodes"] > 4 and shown["roots"] == 1 and shown["bonuses"] == 1, "a tree with its root and its bonus"
    yield shown["kept"] >= 1, "the tree is drawn with its kept path"
    yield shown["tokens"], "every node shows its token"
    yield shown["probabilities"], "and its probability"
    for name, value in shown["figures"].items():
        yield value[:1].isdigit(), f"figure {name}: {value}"
    per_round = shown["figures"]["per-round"]
    yield per_round[:1].isdigit() and float(per_round) > 1.2, "more than one token a round"
    yield shown["verbs"] >= 5, "the time of all five verbs"
    yield shown["strip"] > 5, "tokens of the last rounds"
    yield shown["depths"] >= 7, "what is kept by depth"
    yield "blocks" in shown["cache"], "the cache's blocks"


def test_round(server, page):
    # A page that is late may be left with the last round alone, which often drafts nothing: it is asked again.
    for _ in range(TRIES):
        until, right = time.monotonic() + 3, False
        while not right and time.monotonic() < until:
            shown = page.run(SHOWN)
            right = all(holds for holds, _ in round_checks(shown))
        if right:
            break
        page.run("document.getElementById('new-chat').click()")
        answered(page, QUESTION)
    for holds, what in round_checks(shown):
        check(holds, what)


def test_stop(server, page):
    for how in ("document.getElementById('stop').click()",
                "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))"):
        for _ in range(TRIES):  # a random answer may end by itself before it is stopped
            page.run("document.getElementById('new-chat').click()")
            choose(page, budget=0, **{"max-tokens": 700})
            page.run("document.getElementById('temperature').value = '1.5'; document.getElementById('question').focus()")
            page.type("Tell me a long story.")
            page.run(f"new MutationObserver((_, watch) => {{ const turn = {LAST};"
                     f"if (document.querySelectorAll('.turn').length === 2 && turn.querySelector('.text').textContent)"
                     f"{{ watch.disconnect(); {how}; }} }}).observe(document.getElementById('log'), {{childList: true, subtree: true}})")
            page.key(**ENTER)
            page.wait("document.querySelectorAll('.turn').length === 2 && document.body.dataset.busy === 'false'")
            after = page.run(f"{LAST}.querySelector('.after').textContent")
            if "stopped" in after:
                break
        check("stopped" in after, f"stopped by {how[:45]}")
        check(idle(server), "the server stopped too")


def test_looks(server, page, dark_shot):
    light = page.run("getComputedStyle(document.body).backgroundColor")
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    check(page.run("getComputedStyle(document.body).backgroundColor") != light, "dark where the system is dark")
    if dark_shot:
        page.screenshot(dark_shot)
    reached = []
    page.run("document.getElementById('question').focus()")
    for _ in range(12):
        page.key("Tab", 9)
        reached.append(page.run("document.activeElement.id"))
    for name in ("temperature", "budget", "max-tokens", "thinking", "send", "hold"):
        check(name in reached, f"the Tab key reaches {name}")
    own = f"http://127.0.0.1:{server.port}/"
    strange = [url for url in page.requests if not url.startswith((own, "data:", "about:"))]
    check(not strange and len(page.requests) > 5, f"nothing comes from elsewhere {strange}")
    check(not page.errors, f"no errors in the console {page.errors}")


def test_key(binary, page):
    # A page that held up the shutdown would do so until the patience of stop() has ended.
    server = Serve(binary, str(MODEL), "--host", "127.0.0.1", "--api-key", "secret", "--shutdown-timeout", str(2 * PATIENCE))
    try:
        check(get(server.port, "/v1/rounds")[0] == 401, "the rounds are guarded by the key")
        open_page(server, page)
        page.wait("document.getElementById('key-dialog').open")
        page.type("secret")
        page.key(**ENTER)
        page.wait("document.getElementById('state').textContent === 'ready'")
        check(True, "the page asks for the key")
        check(server.stop()[0] == 0, "an open page does not hold up the shutdown")
    finally:
        server.process.kill()


def main():
    if chromium.find() is None:
        skip("no Chromium (apt install chromium)")
    if not (MODEL / "config.json").exists():
        skip("models/tiny-k2 is absent")
    binary, shot, dark_shot = (*sys.argv[1:], None, None)[:3]
    server = Serve(binary, str(MODEL), "--spec-model", str(DRAFTER))
    live = json.loads(get(server.port, "/v1/rounds")[1])
    check(live["state"] == "running" and live["kv"]["blocks"] > 0 and live["round"] is None, "GET /v1/rounds as JSON")
    page = chromium.Page()
    try:
        test_answer(server, page)
        test_round(server, page)
        if shot:
            pathlib.Path(shot).parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(shot)
        test_stop(server, page)
        test_looks(server, page, dark_shot)
        check(server.stop()[0] == 0, "the server ends although the page listens")
        test_key(binary, page)
    finally:
        page.close()
        server.process.kill()


if __name__ == "__main__":
    main()
