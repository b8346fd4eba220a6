#!/usr/bin/env python3
"""Drives the page at / in Chromium: send, stream, stop, the tree, keys, dark, keyboard, nothing from elsewhere.

usage: test_page.py COPPICE_BINARY [SCREENSHOT.png [DARK.png]]     (exit 77 without Chromium or models/tiny-k2)
"""
import json
import pathlib
import sys
import time

import chromium
from test_serve_cli import DRAFTER, MODEL, Serve, check, get

QUESTION = "Write a Python function to sort a list."
LAST = "[...document.querySelectorAll('.turn.assistant')].at(-1)"
ENTER = dict(name="Enter", code=13, text="\r")


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def choose(page, **values):
    for name, value in values.items():
        page.run(f"document.getElementById({name!r}).value = {str(value)!r}")


def idle(server):
    deadline = time.time() + 60
    while time.time() < deadline:
        if json.loads(get(server.port, "/load")[1])["server_load"] == 0:
            return True
        time.sleep(0.02)
    return False


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
    page.type(QUESTION)
    page.key(**ENTER)
    page.wait(f"document.body.dataset.busy === 'false' && {LAST}?.querySelector('.text').textContent")
    plain = page.run(f"{LAST}.querySelector('.text').textContent")
    choose(page, budget=16)
    page.run("document.getElementById('new-chat').click()")
    page.type(QUESTION)
    page.run("window.lengths = new Set(); new MutationObserver(() => "
             f"window.lengths.add({LAST}?.querySelector('.text').textContent.length))"
             ".observe(document.getElementById('log'), {childList: true, subtree: true, characterData: true})")
    page.key(**ENTER)
    page.wait(f"document.body.dataset.busy === 'false' && {LAST}?.querySelector('.text').textContent")
    check(page.run("window.lengths.size") > 2, "the answer came in pieces")
    shown = page.run(f"{LAST}.querySelector('.text').textContent")
    for mark in ("```python", "`"):
        whole = whole.replace(mark, "")
    check(shown == plain, "the same with drafts and without")
    check("".join(shown.split()) == "".join(whole.split()), "its text is that of the API")


def test_round(server, page):
    page.wait("document.querySelectorAll('#tree .node').length > 4")
    # A round that kept nothing is a round too: ask until one with drafts kept is shown.
    page.wait("document.querySelectorAll('#tree .node.root').length === 1 && "
              "document.querySelectorAll('#tree .node.bonus').length === 1")
    kept = page.run("document.querySelectorAll('#tree .edge.kept').length")
    check(kept >= 1, "the tree is drawn with its kept path")
    check(page.run("[...document.querySelectorAll('#tree .node')].every((node) => node.querySelector('text').textContent)"),
          "every node shows its token")
    check(page.run("[...document.querySelectorAll('#tree .node.left')].every((node) => node.querySelector('.prob'))"),
          "and its probability")
    for name in ("speed", "gain", "per-round", "accepted"):
        value = page.run(f"document.getElementById({name!r}).textContent")
        check(value[:1].isdigit(), f"figure {name}: {value}")
    check(float(page.run("document.getElementById('per-round').textContent")) > 1.2, "more than one token a round")
    check(page.run("[...document.querySelectorAll('.stack i')].filter((part) => Number(part.style.flexGrow) > 0).length") >= 5,
          "the time of all five verbs")
    check(page.run("document.querySelectorAll('#strip rect').length") > 5, "tokens of the last rounds")
    check(page.run("document.querySelectorAll('#depths .bar-kept').length") >= 7, "what is kept by depth")
    check("blocks" in page.run("document.getElementById('kv-note').textContent"), "the cache's blocks")


def test_stop(server, page):
    for how in ("document.getElementById('stop').click()",
                "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))"):
        for _ in range(5):  # a random answer may end by itself before it is stopped
            count = page.run("document.querySelectorAll('.turn').length")
            choose(page, budget=0, **{"max-tokens": 700})
            page.run("document.getElementById('temperature').value = '1.5'; document.getElementById('question').focus()")
            page.type("Tell me a long story.")
            page.run(f"new MutationObserver((_, watch) => {{ const turn = {LAST};"
                     f"if (document.querySelectorAll('.turn').length === {count} + 2 && turn.querySelector('.text').textContent)"
                     f"{{ watch.disconnect(); {how}; }} }}).observe(document.getElementById('log'), {{childList: true, subtree: true}})")
            page.key(**ENTER)
            page.wait(f"document.querySelectorAll('.turn').length === {count} + 2 && document.body.dataset.busy === 'false'")
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
    server = Serve(binary, str(MODEL), "--host", "127.0.0.1", "--api-key", "secret")
    try:
        check(get(server.port, "/v1/rounds")[0] == 401, "the rounds are guarded by the key")
        open_page(server, page)
        page.wait("document.getElementById('key-dialog').open")
        page.type("secret")
        page.key(**ENTER)
        page.wait("document.getElementById('state').textContent === 'ready'")
        check(True, "the page asks for the key")
        started = time.time()
        code, _ = server.stop()
        check(code == 0 and time.time() - started < 20, "an open page does not hold up the shutdown")
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
