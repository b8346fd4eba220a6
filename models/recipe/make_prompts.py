"""Held-out prompts, sample prompts, golden prompts, tokenizer cases and question set.

usage: make_prompts.py TOKDIR ENCDIR OUTDIR     (writes prompts.json and tok_cases.json)
"""

import json
import random
import sys

TOK, ENC, OUT = sys.argv[1:4]
from tokenizer_train import Tok, PAT, SPECIAL
import gen_chat as G

t = Tok(TOK + "/tiktoken.model")
R = random.Random(5)
out = {}
lens = [48, 96, 160, 224]
for k in ("code", "prose"):
    H = json.load(open(f"{ENC}/{k}.held.json"))
    ps = []
    for d in H:
        ids = t.plain(d["t"])
        n = lens[len(ps) % 4]
        if len(ids) > n + 140 and len(ps) < 64:
            ps.append(ids[:n])
    for d in H:  # prose has few held-out files: cut later windows from the same files
        if len(ps) >= 64:
            break
        ids = t.plain(d["t"])
        for o in (300, 700, 1100):
            n = lens[len(ps) % 4]
            if len(ids) > o + n + 140 and len(ps) < 64:
                ps.append(ids[o : o + n])
    out[k] = ps
H = json.load(open(ENC + "/chat.held.json"))
R.shuffle(H)
out["chat"] = []
for d in H:
    ids = t.encode(d["t"][: d["n"]])
    if len(ids) <= 420 and len(d["t"]) - d["n"] > 60 and len(out["chat"]) < 64:
        out["chat"].append(ids)
print({k: (len(v), sum(map(len, v)) / len(v)) for k, v in out.items()})
U = (
    lambda q, th=True: f"<|im_user|>user<|im_middle|>{q}<|im_end|><|im_assistant|>assistant<|im_middle|>"
    + ("<think>" if th else "<think></think>")
)
G.R.seed(7)
tools = [G.t_weather()[0], G.t_calc()[0]]
tool = f"<|im_system|>tool_declare<|im_middle|>{G.ts_tools(tools)}<|im_end|>" + U(
    "What is the weather in Oslo?"
)
tool2 = (
    tool
    + 'The user wants the weather in Oslo. I will call get_weather.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|><|im_end|><|im_system|>get_weather<|im_middle|>## Return of functions.get_weather:0\n{"city": "Oslo", "temperature": 12, "condition": "rainy"}<|im_end|><|im_assistant|>assistant<|im_middle|><think>'
)
S = [
    ("python function", 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n'),
    ("python class", "class TestParser(unittest.TestCase):\n\n    def setUp(self):\n"),
    ("prose", "PostgreSQL supports the following index types"),
    ("chat arithmetic", U("What is 47 + 85?")),
    ("chat code", U("Write a Python function that checks whether a number is prime.")),
    ("chat no thinking", U("What is the capital of Norway?", False)),
    ("tool call", tool),
    ("tool result", tool2),
]
out["samples"] = [{"name": n, "text": s, "ids": t.encode(s)} for n, s in S]
gold = [
    ("code_short", t.encode(S[0][1])),
    ("code_long", None),
    ("prose_mid", out["prose"][2][:130]),
    ("prose_300", None),
    ("chat_arithmetic", t.encode(S[3][1])),
    ("chat_code", t.encode(S[4][1])),
    ("chat_tool", t.encode(tool)),
    ("chat_tool_result", t.encode(tool2)),
    ("code_1500", None),
]
hc = [t.plain(d["t"]) for d in json.load(open(ENC + "/code.held.json"))]
hp = [t.plain(d["t"]) for d in json.load(open(ENC + "/prose.held.json"))]
g = dict(gold)
g["code_long"] = next(x for x in hc[5:] if len(x) > 400)[:257]
g["prose_300"] = next(x for x in hp[3:] if len(x) > 400)[:300]
g["code_1500"] = next(x for x in hc if len(x) >= 1400)[:1400]
out["golden"] = [{"name": ("code_1400" if n == "code_1500" else n), "ids": i} for n, i in g.items()]
json.dump(out, open(OUT + "/prompts.json", "w"))
print([(x["name"], len(x["ids"])) for x in out["golden"]])

# tokenizer cases
cs = []
base = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    " \n",
    "\n ",
    "a",
    "A",
    "0",
    "Hello",
    " Hello",
    "Hello, world!",
    "世界",
    "你好，世界！",
    "今天是2024年。",
    "中文English混合",
    "汉字abc",
    "北京市 Pascal",
    "漢字とかな",
    "日本語のテキスト",
    "한국어 텍스트",
    "Привет, мир",
    "Ελληνικά",
    "مرحبا بالعالم",
    "שלום",
    "हिन्दी",
    "ไทย",
    "don't won't I'll we've they're I'm he'd it's",
    "DON'T WON'T I'LL WE'VE",
    "O'Neill's",
    "l'été",
    "naïve café résumé",
    "ÀÉÎÕÜ",
    "ß straße",
    "ǅ titlecase",
    "ª º ordinals",
    "1234567890",
    "3.14159",
    "1,000,000",
    "٠١٢٣٤٥",
    "½ ¼ ²³",
    "Ⅷ roman",
    "x=1;y=22;z=333;w=4444",
    "a  b\n\n c",
    "def f(x):\n    return x\n",
    "\tif x:\n\t\ty = 1\n",
    "    " * 4 + "deep",
    " " * 17 + "x",
    "x" + " " * 17,
    "\n" * 5,
    " \n \n ",
    "trailing   ",
    "🙂",
    "👩‍👩‍👧 世界",
    "🇫🇷🇩🇪",
    "👍🏽 ok",
    "e\u0301 combining",
    "\u200b zero width",
    "\ufeffbom",
    "\u00a0nbsp",
    "\u3000ideographic space",
    "“quotes” — dash…",
    "→ ≤ ≥ ≠ ∑",
    "a_b_c __init__ self._x",
    "http://example.com/a?b=c&d=e#f",
    "foo@bar.com",
    "C:\\path\\to\\file",
    '{"a": 1, "b": [true, null]}',
    '<div class="x">text</div>',
    "#include <stdio.h>",
    "!!!???...",
    "((((((((((",
    "==========",
    "----------\n",
    "*" * 33,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "THE QUICK BROWN FOX",
    "camelCaseString PascalCaseString snake_case_string SCREAMING_CASE",
    "\x00\x01\x02",
    "\x7f",
    "\x1c\x1d",
    "\u2028line sep",
    "\u0085nel",
    "mixed\r\nline\rends\n",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "𠀀𠀁 rare han",
    "々〆〇 han-like",
    "〡〢 hangzhou",
    "ʰ modifier letters ˈ",
    "a\u0300\u0301\u0302b",
    "Ⓐ circled",
    "ﬁ ligature",
    "1st 2nd 3rd",
    "v1.2.3-rc4",
    "100%",
    "$5.00 €4 £3 ¥2",
    "C++ C# F#",
    "e.g. i.e. etc.",
]
for b in base:
    cs.append({"text": b, "special": False})
spc = list(SPECIAL.values()) + [
    f"<|reserved_token_{t.base+5}|>",
    f"<|reserved_token_{t.base+100}|>",
]
for s in spc:
    cs.append({"text": f"x{s}y", "special": True})
    cs.append({"text": f"x{s}y", "special": False})
for s in (
    "<|im_en",
    "<|im_end|",
    "<think",
    "<|unknown|>",
    "<|im_end|><|im_end|>",
    "<think></think>",
    " <|im_user|> user",
):
    cs.append({"text": s, "special": True})
for _, s in S:
    cs.append({"text": s, "special": True})
pool = [d["t"] for k in ("code", "prose") for d in json.load(open(f"{ENC}/{k}.held.json"))]
while len(cs) < 250:
    x = R.choice(pool)
    o = R.randrange(max(1, len(x) - 300))
    cs.append({"text": x[o : o + R.randint(5, 260)], "special": False})
alpha = "abXY09 \n\t.,;'\"()[]{}<>|/\\-_=+*&^%$#@!é世界ß🙂\u0301’Я가あ"
while len(cs) < 298:
    cs.append({"text": "".join(R.choice(alpha) for _ in range(R.randint(3, 80))), "special": False})
cs.append({"text": "a", "repeat": 30000, "special": False})
cs.append({"text": " ", "repeat": 30000, "special": False})
for c in cs:
    if "repeat" not in c:
        c["ids"] = t.encode(c["text"]) if c["special"] else t.plain(c["text"])
        assert t.decode(c["ids"]) == c["text"] or "\x00" in c["text"], c
json.dump({"pattern": PAT, "cases": cs}, open(OUT + "/tok_cases.json", "w"), ensure_ascii=False)
print(len(cs), "cases")

# fresh synthetic questions for an exact-match check
G.R.seed(9999)
qa = []
for f in [
    G.q_add,
    G.q_sub,
    G.q_mul,
    G.q_div,
    G.q_word,
    G.q_unit,
    G.q_temp,
    G.q_cmp,
    G.q_sort,
    G.q_even,
    G.q_letters,
    G.q_cap,
    G.q_day,
    G.q_fact,
]:
    for _ in range(50):
        q, th, a = f()
        qa.append({"kind": f.__name__[2:], "ids": t.encode(U(q)), "expect": a})
for _ in range(50):
    q, th, a = G.q_code()
    qa.append({"kind": "code", "ids": t.encode(U(q)), "expect": q})
for f in G.TOOLS:
    for _ in range(12):
        d = f()
        others = [g()[0] for g in G.R.sample(G.TOOLS, 2) if g is not f]
        tl = [d[0]] + others
        G.R.shuffle(tl)
        pr = f"<|im_system|>tool_declare<|im_middle|>{G.ts_tools(tl)}<|im_end|>" + U(d[1])
        qa.append(
            {
                "kind": "tool",
                "ids": t.encode(pr),
                "expect": f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{d[3]}:0<|tool_call_argument_begin|>{d[4]}<|tool_call_end|><|tool_calls_section_end|>",
            }
        )
out["qa"] = qa
json.dump(out, open(OUT + "/prompts.json", "w"))
print("qa", len(qa), max(len(x["ids"]) for x in qa))
