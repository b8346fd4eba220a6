"""Tokenizer golden cases with the tiktoken package and the Kimi pattern. usage: tok_golden.py TOKDIR CASES.json OUT.json"""

import json
import sys
import tiktoken
from tiktoken.load import load_tiktoken_bpe

d, cases, out = sys.argv[1:4]
PAT = json.load(open(cases))["pattern"]
C = json.load(open(cases))["cases"]
ranks = load_tiktoken_bpe(d + "/tiktoken.model")
base = len(ranks)
cfg = json.load(open(d + "/tokenizer_config.json"))["added_tokens_decoder"]
sp = {
    cfg[str(i)]["content"] if str(i) in cfg else f"<|reserved_token_{i}|>": i
    for i in range(base, base + 256)
}
enc = tiktoken.Encoding(
    "tiny-k2", pat_str=PAT, mergeable_ranks=ranks, special_tokens=sp, explicit_n_vocab=base + 256
)


def chunks(
    t, M=400_000, R=25_000
):  # the wrapper's cutting: 400,000 characters, then runs of one kind longer than 25,000
    for i in range(0, len(t), M):
        s = t[i : i + M]
        st = run = 0
        kind = s[0].isspace() if s else False
        for j, ch in enumerate(s):
            k = ch.isspace()
            if k != kind:
                run, kind = 1, k
            else:
                run += 1
                if run > R:
                    yield s[st:j]
                    st, run = j, 1
        yield s[st:]


bad = 0
res = []
for c in C:
    t = c["text"] * c.get("repeat", 1)
    allow = "all" if c["special"] else set()
    ids = (
        [x for s in chunks(t) for x in enc.encode(s, allowed_special=allow, disallowed_special=())]
        if t
        else []
    )
    assert enc.decode_bytes(ids) == t.encode("utf-8"), c
    if "ids" in c and c["ids"] != ids:
        bad += 1
        print("DIFF", repr(t[:80]), ids[:20], c["ids"][:20])
    res.append({k: c[k] for k in ("text", "special", "repeat") if k in c} | {"ids": ids})
json.dump(
    {
        "tiktoken": tiktoken.__version__ if hasattr(tiktoken, "__version__") else "0.14.0",
        "pattern": PAT,
        "n_vocab": enc.n_vocab,
        "cases": res,
    },
    open(out, "w"),
    ensure_ascii=False,
)
print(
    "tokenizer cases",
    len(res),
    "different from the reference encoder:",
    bad,
    "n_vocab",
    enc.n_vocab,
)
