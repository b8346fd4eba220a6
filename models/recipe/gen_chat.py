#!/usr/bin/env python3
"""Synthetic conversations in the Kimi-K2.5/K2.6 chat format (own text).

Writes OUT (jsonl, {"p": kind, "f": id, "t": rendered text, "n": prompt length in characters}).
Rendering follows the K2.6 rules: no newline between turns, <think></think> for past turns,
TypeScript tool declarations, tool call ids functions.NAME:IDX counted over the conversation.
"""

import json
import random
import sys

U, A, S, M, E = "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"
TB, TE, CB, CA, CE = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)


# ------------------------------------------------------------------ rendering
def ts_type(s, ind):
    if "enum" in s:
        return " | ".join(json.dumps(v, ensure_ascii=False) for v in s["enum"])
    t = s.get("type")
    if isinstance(t, list):
        return " | ".join(ts_type({**s, "type": x}, ind) for x in t)
    if t == "integer":
        return "number"
    if t == "array":
        it, pad = s["items"], "  " * (ind + 1)
        if not it.get("description"):
            return f"Array<{ts_type(it, ind)}>"
        return (
            "Array<\n"
            + "".join(f"{pad}// {l}\n" for l in it["description"].split("\n"))
            + f"{pad}{ts_type(it, ind + 1)}\n"
            + "  " * ind
            + ">"
        )
    if t == "object":
        return ts_object(s, ind + 1) if s.get("properties") else "{}"
    return t or "any"


CONS = {
    "string": ["maxLength", "minLength", "pattern"],
    "integer": ["maximum", "minimum"],
    "number": ["maximum", "minimum"],
    "array": ["maxItems", "minItems"],
}


def ts_object(s, ind=1):
    props, req = s.get("properties", {}), set(s.get("required", []))
    pad = "  " * ind
    order = sorted(k for k in props if k in req) + sorted(k for k in props if k not in req)
    out = []
    for k in order:
        p = props[k]
        lines = [
            f"{pad}// {l}" for l in p.get("description", "").split("\n") if p.get("description")
        ]
        con = [
            f"{c}: {p[c]}"
            for c in (CONS.get(p.get("type"), []) if isinstance(p.get("type"), str) else [])
            if c in p
        ]
        if con:
            lines.append(f"{pad}// " + ", ".join(con))
        if "default" in p:
            lines.append(f"{pad}// Default: " + json.dumps(p["default"], ensure_ascii=False))
        lines.append(f"{pad}{k}{'' if k in req else '?'}: {ts_type(p, ind)}")
        out.append("\n".join(lines))
    if s.get("additionalProperties") is False:
        out.append(f"{pad}[k: string]: never")
    return "{\n" + ",\n".join(out) + "\n" + "  " * (ind - 1) + "}" if out else "{}"


def ts_tools(tools):
    fs = []
    for t in tools:
        f = t["function"]
        d = (
            "".join(f"// {l}\n" for l in f.get("description", "").split("\n"))
            if f.get("description")
            else ""
        )
        fs.append(d + f"type {f['name']} = (_: {ts_object(f['parameters'])}) => any;")
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(fs) + "\n}\n"


def render(msgs, tools=None, thinking=True):
    """Whole conversation; the last message is the assistant answer being learnt. Returns text and prompt length."""
    out = [f"{S}tool_declare{M}{ts_tools(tools)}{E}"] if tools else []
    last = max(
        (
            i
            for i, m in enumerate(msgs[:-1])
            if m["role"] == "assistant" and not m.get("tool_calls")
        ),
        default=-1,
    )
    n = 0
    for i, m in enumerate(msgs):
        r = m["role"]
        if r == "assistant":
            keep = i > last and thinking
            head = f"{A}assistant{M}<think>" + (m.get("think", "") if keep else "") + "</think>"
            if i == len(msgs) - 1:
                n = (
                    len("".join(out))
                    + len(f"{A}assistant{M}<think>")
                    + (0 if thinking else len("</think>"))
                )
            body = m.get("content", "")
            if m.get("tool_calls"):
                body += (
                    TB + "".join(f"{CB}{c['id']}{CA}{c['args']}{CE}" for c in m["tool_calls"]) + TE
                )
            out.append(head + body + E)
        elif r == "tool":
            out.append(f"{S}{m['name']}{M}## Return of {m['id']}\n{m['content']}{E}")
        elif r == "user":
            out.append(f"{U}user{M}{m['content']}{E}")
        else:
            out.append(f"{S}{r}{M}{m['content']}{E}")
    return "".join(out), n


R = random.Random()


def ch(*a):
    return R.choice(a if len(a) > 1 else a[0])


def ri(a, b):
    return R.randint(a, b)


# ------------------------------------------------------------------ arithmetic and units
NAMES = "Ana Ben Carla David Elena Farid Grace Hugo Iris Jonas Kira Leo Mina Nils Olga Pavel Rosa Sven Tara Umar Vera Wim Yara Zoe".split()
ITEMS = "apples books pencils marbles stickers coins cards shells buttons stamps eggs tickets bottles boxes chairs".split()


def add_steps(a, b):
    s, carry, st, x, y = a + b, 0, [], a, b
    place = ["ones", "tens", "hundreds", "thousands", "ten thousands"]
    i = 0
    while x or y or carry:
        d = x % 10 + y % 10 + carry
        if not (x or y):
            st.append(f"carry {carry}")
            break
        st.append(f"{place[i]}: {x % 10} + {y % 10}" + (f" + {carry}" if carry else "") + f" = {d}")
        carry = d // 10
        x //= 10
        y //= 10
        i += 1
    return "; ".join(st) + f". Total {s}."


def mul_steps(a, b):
    if b > a:
        a, b = b, a
    t, u = a // 10 * 10, a % 10
    if t and u:
        return f"{a} = {t} + {u}. {t} * {b} = {t*b}. {u} * {b} = {u*b}. {t*b} + {u*b} = {a*b}."
    return f"{a} * {b} = {a*b}."


def q_add():
    a, b = ri(2, 999), ri(2, 999)
    q = ch(
        f"What is {a} + {b}?",
        f"Compute {a} + {b}.",
        f"Add {a} and {b}.",
        f"{a}+{b}=?",
        f"Please calculate the sum of {a} and {b}.",
        f"How much is {a} plus {b}?",
    )
    return q, f"Add {a} and {b}. " + add_steps(a, b), f"{a} + {b} = {a+b}"


def q_sub():
    a, b = sorted((ri(2, 999), ri(2, 999)), reverse=True)
    q = ch(
        f"What is {a} - {b}?",
        f"Compute {a} - {b}.",
        f"Subtract {b} from {a}.",
        f"{a}-{b}=?",
        f"How much is {a} minus {b}?",
    )
    t, u = b // 10 * 10, b % 10
    return (
        q,
        f"Subtract {b} from {a}. {a} - {t} = {a-t}. {a-t} - {u} = {a-b}.",
        f"{a} - {b} = {a-b}",
    )


def q_mul():
    a, b = ri(2, 99), ri(2, 12)
    if R.random() < 0.5:
        a, b = b, a
    q = ch(
        f"What is {a} * {b}?",
        f"Compute {a} times {b}.",
        f"Multiply {a} by {b}.",
        f"{a}*{b}=?",
        f"What is the product of {a} and {b}?",
    )
    return q, f"Multiply {a} and {b}. " + mul_steps(a, b), f"{a} * {b} = {a*b}"


def q_div():
    b, c = ri(2, 12), ri(2, 60)
    a = b * c
    q = ch(f"What is {a} / {b}?", f"Divide {a} by {b}.", f"Compute {a} divided by {b}.")
    return q, f"Divide {a} by {b}. {b} * {c} = {a}, so the result is {c}.", f"{a} / {b} = {c}"


def q_word():
    n, n2, it = ch(NAMES), ch(NAMES), ch(ITEMS)
    k = ri(0, 3)
    if k == 0:
        a, b = ri(3, 90), ri(3, 90)
        return (
            f"{n} has {a} {it} and buys {b} more. How many {it} does {n} have now?",
            f"{n} starts with {a} {it} and gets {b} more. {a} + {b} = {a+b}.",
            f"{n} has {a+b} {it} now.",
        )
    if k == 1:
        a, b = sorted((ri(3, 99), ri(3, 99)), reverse=True)
        return (
            f"{n} has {a} {it}. {n} gives {b} of them to {n2}. How many are left?",
            f"{n} starts with {a} {it} and gives away {b}. {a} - {b} = {a-b}.",
            f"{n} has {a-b} {it} left.",
        )
    if k == 2:
        a, b = ri(2, 12), ri(2, 30)
        return (
            f"There are {a} boxes with {b} {it} in each box. How many {it} are there in total?",
            f"Each of the {a} boxes holds {b} {it}. {a} * {b} = {a*b}.",
            f"There are {a*b} {it} in total.",
        )
    a, b = ri(2, 12), ri(2, 20)
    return (
        f"{n} shares {a*b} {it} equally among {a} friends. How many does each friend get?",
        f"Divide {a*b} by {a}. {a} * {b} = {a*b}, so each friend gets {b}.",
        f"Each friend gets {b} {it}.",
    )


UNITS = [
    ("kilometres", "metres", 1000),
    ("metres", "centimetres", 100),
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("kilograms", "grams", 1000),
    ("days", "hours", 24),
    ("litres", "millilitres", 1000),
    ("weeks", "days", 7),
    ("tonnes", "kilograms", 1000),
    ("centimetres", "millimetres", 10),
    ("gigabytes", "megabytes", 1024),
    ("feet", "inches", 12),
    ("yards", "feet", 3),
]


def q_unit():
    a, b, f = ch(UNITS)
    x = ri(2, 99)
    if R.random() < 0.7:
        q = ch(
            f"Convert {x} {a} to {b}.", f"How many {b} are in {x} {a}?", f"Express {x} {a} in {b}."
        )
        return q, f"One of the {a} is {f} {b}. {x} * {f} = {x*f}.", f"{x} {a} = {x*f} {b}"
    y = x * f
    q = ch(f"Convert {y} {b} to {a}.", f"How many {a} are {y} {b}?")
    return q, f"{f} {b} make one of the {a}. {y} / {f} = {x}.", f"{y} {b} = {x} {a}"


def q_temp():
    c = ri(-4, 20) * 5
    f = c * 9 // 5 + 32
    if R.random() < 0.5:
        return (
            f"Convert {c} degrees Celsius to Fahrenheit.",
            f"F = C * 9 / 5 + 32. {c} * 9 / 5 = {c*9//5}. {c*9//5} + 32 = {f}.",
            f"{c} °C = {f} °F",
        )
    return (
        f"Convert {f} degrees Fahrenheit to Celsius.",
        f"C = (F - 32) * 5 / 9. {f} - 32 = {f-32}. {f-32} * 5 / 9 = {c}.",
        f"{f} °F = {c} °C",
    )


def q_cmp():
    a, b = ri(1, 9999), ri(1, 9999)
    while a == b:
        b = ri(1, 9999)
    w = ch("larger", "smaller")
    v = max(a, b) if w == "larger" else min(a, b)
    return (
        f"Which number is {w}: {a} or {b}?",
        f"Compare {a} and {b}. {max(a,b)} > {min(a,b)}.",
        f"{v} is {w}.",
    )


def q_sort():
    xs = [ri(0, 99) for _ in range(ri(4, 8))]
    d = R.random() < 0.3
    ys = sorted(xs, reverse=d)
    return (
        f"Sort these numbers in {'descending' if d else 'ascending'} order: {', '.join(map(str, xs))}.",
        f"There are {len(xs)} numbers. The {'largest' if d else 'smallest'} is {ys[0]}.",
        ", ".join(map(str, ys)),
    )


def q_even():
    n = ri(3, 10)
    k = ri(0, 3)
    s = ri(1, 9)
    seq = [
        range(2, 2 * n + 1, 2),
        range(1, 2 * n, 2),
        range(s, s * n + 1, s),
        [i * i for i in range(1, n + 1)],
    ][k]
    nm = ["even numbers", "odd numbers", f"multiples of {s}", "square numbers"][k]
    return f"List the first {n} {nm}.", f"The first {n} {nm} are needed.", ", ".join(map(str, seq))


WORDS = "apple river stone window garden silver planet market forest bridge candle button rocket pencil orange summer winter castle mirror island thunder blanket lantern harbor meadow copper violin ladder basket pepper".split()


def q_letters():
    w = ch(WORDS)
    k = ri(0, 3)
    if k == 0:
        return (
            f'How many letters are in the word "{w}"?',
            f"Spell it: {' '.join(w)}. That is {len(w)} letters.",
            f'The word "{w}" has {len(w)} letters.',
        )
    if k == 1:
        return (
            f'Reverse the word "{w}".',
            f"Spell it: {' '.join(w)}. Backwards: {' '.join(w[::-1])}.",
            w[::-1],
        )
    if k == 2:
        return f'Write "{w}" in upper case.', f"The upper case form is {w.upper()}.", w.upper()
    c = ch(sorted(set(w)))
    return (
        f'How many times does the letter "{c}" appear in "{w}"?',
        f"Spell it: {' '.join(w)}. The letter {c} appears {w.count(c)} time{'s' if w.count(c) != 1 else ''}.",
        f"{w.count(c)}",
    )


CAPS = dict(
    France="Paris",
    Germany="Berlin",
    Italy="Rome",
    Spain="Madrid",
    Portugal="Lisbon",
    Austria="Vienna",
    Poland="Warsaw",
    Greece="Athens",
    Norway="Oslo",
    Sweden="Stockholm",
    Finland="Helsinki",
    Denmark="Copenhagen",
    Ireland="Dublin",
    Japan="Tokyo",
    China="Beijing",
    India="New Delhi",
    Egypt="Cairo",
    Kenya="Nairobi",
    Canada="Ottawa",
    Mexico="Mexico City",
    Peru="Lima",
    Chile="Santiago",
    Cuba="Havana",
    Turkey="Ankara",
    Iran="Tehran",
    Thailand="Bangkok",
    Hungary="Budapest",
    Belgium="Brussels",
)


def q_cap():
    c = ch(list(CAPS))
    if R.random() < 0.75:
        return (
            ch(f"What is the capital of {c}?", f"Name the capital city of {c}."),
            f"The user asks for the capital of {c}. It is {CAPS[c]}.",
            f"The capital of {c} is {CAPS[c]}.",
        )
    return (
        f"{CAPS[c]} is the capital of which country?",
        f"{CAPS[c]} is the capital of {c}.",
        f"{CAPS[c]} is the capital of {c}.",
    )


DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def q_day():
    d, n = ri(0, 6), ri(1, 20)
    return (
        f"Today is {DAYS[d]}. What day is it in {n} day{'s' if n > 1 else ''}?",
        f"{n} mod 7 = {n%7}. {DAYS[d]} plus {n%7} is {DAYS[(d+n)%7]}.",
        f"It will be {DAYS[(d+n)%7]}.",
    )


def q_hi():
    return ch(
        [
            ("hi", "The user greets me.", "Hello! How can I help you today?"),
            ("Hello", "The user greets me.", "Hello! How can I help you today?"),
            ("Good morning!", "The user greets me.", "Good morning! What can I do for you?"),
            (
                "Thank you!",
                "The user says thanks.",
                "You're welcome! Let me know if you need anything else.",
            ),
            (
                "Who are you?",
                "The user asks who I am.",
                "I am a very small language model made for testing inference engines.",
            ),
            (
                "What can you do?",
                "The user asks what I can do.",
                "I can answer simple arithmetic and unit questions, write short Python functions and call tools.",
            ),
            ("Bye", "The user says goodbye.", "Goodbye! Have a nice day."),
            ("Say hi", "The user wants a greeting.", "Hi!"),
            (
                "How are you?",
                "A friendly question.",
                "I am doing well, thank you. How can I help you?",
            ),
        ]
    )


def q_fact():
    return ch(
        [
            (
                "What is a list in Python?",
                "The user asks about Python lists.",
                "A list in Python is an ordered, mutable sequence of items. You write it with square brackets, for example `[1, 2, 3]`.",
            ),
            (
                "What is a dictionary in Python?",
                "The user asks about dictionaries.",
                'A dictionary in Python maps keys to values. You write it with braces, for example `{"a": 1, "b": 2}`.',
            ),
            (
                "What is recursion?",
                "The user asks about recursion.",
                "Recursion means that a function calls itself on a smaller input until it reaches a base case.",
            ),
            (
                "What is a compiler?",
                "The user asks about compilers.",
                "A compiler translates source code into machine code or another lower-level form before the program runs.",
            ),
            (
                "What is a stack?",
                "The user asks about stacks.",
                "A stack is a last-in, first-out collection. Items are pushed on the top and popped from the top.",
            ),
            (
                "What is a queue?",
                "The user asks about queues.",
                "A queue is a first-in, first-out collection. Items are added at the back and removed from the front.",
            ),
            (
                "What does HTTP status 404 mean?",
                "The user asks about a status code.",
                "HTTP status 404 means that the server could not find the requested resource.",
            ),
            (
                "What is a prime number?",
                "The user asks about prime numbers.",
                "A prime number is an integer greater than 1 that has no divisors other than 1 and itself.",
            ),
            (
                "What is the difference between a list and a tuple?",
                "Compare lists and tuples.",
                "A list is mutable and written with square brackets. A tuple is immutable and written with parentheses.",
            ),
            (
                "Why is the sky blue?",
                "The user asks about the sky.",
                "The sky looks blue because air scatters short, blue wavelengths of sunlight more than long, red ones.",
            ),
            (
                "What is photosynthesis?",
                "The user asks about plants.",
                "Photosynthesis is the process by which plants turn light, water and carbon dioxide into sugar and oxygen.",
            ),
            (
                "How many planets are in the solar system?",
                "Count the planets.",
                "There are eight planets in the solar system: Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.",
            ),
        ]
    )


# ------------------------------------------------------------------ Python one-function requests
def fn_pool():
    v, w = ch("numbers", "values", "items", "xs", "data"), ch("text", "s", "string", "value")
    n = ch("n", "num", "number", "k")
    doc = R.random() < 0.6

    def F(name, args, d, body, desc, ex=None):
        name = ch(name) if isinstance(name, tuple) else name
        src = (
            f"def {name}({args}):\n"
            + (f'    """{d}"""\n' if doc else "")
            + "\n".join("    " + l for l in body)
        )
        return name, src, desc, ex

    b = lambda *l: list(l)
    P = [
        F(
            ("add_all", "total", "sum_numbers"),
            v,
            "Return the sum of all numbers.",
            b("result = 0", f"for x in {v}:", "    result += x", "return result"),
            "returns the sum of a list of numbers",
        ),
        F(
            ("mean", "average", "compute_mean"),
            v,
            "Return the arithmetic mean.",
            b(f"if not {v}:", '    raise ValueError("empty list")', f"return sum({v}) / len({v})"),
            "returns the average of a list of numbers",
        ),
        F(
            ("largest", "find_max", "maximum"),
            v,
            "Return the largest element.",
            b(
                f"result = {v}[0]",
                f"for x in {v}[1:]:",
                "    if x > result:",
                "        result = x",
                "return result",
            ),
            "finds the largest element of a list without using max",
        ),
        F(
            ("smallest", "find_min", "minimum"),
            v,
            "Return the smallest element.",
            b(
                f"result = {v}[0]",
                f"for x in {v}[1:]:",
                "    if x < result:",
                "        result = x",
                "return result",
            ),
            "finds the smallest element of a list without using min",
        ),
        F(
            ("is_prime", "check_prime", "prime"),
            n,
            "Return True if the number is prime.",
            b(
                f"if {n} < 2:",
                "    return False",
                "i = 2",
                f"while i * i <= {n}:",
                f"    if {n} % i == 0:",
                "        return False",
                "    i += 1",
                "return True",
            ),
            "checks whether a number is prime",
        ),
        F(
            ("factorial", "fact", "compute_factorial"),
            n,
            "Return n factorial.",
            b("result = 1", f"for i in range(2, {n} + 1):", "    result *= i", "return result"),
            "computes the factorial of a number",
        ),
        F(
            ("fibonacci", "fib", "nth_fibonacci"),
            n,
            "Return the n-th Fibonacci number.",
            b("a, b = 0, 1", f"for _ in range({n}):", "    a, b = b, a + b", "return a"),
            "returns the n-th Fibonacci number",
        ),
        F(
            ("gcd", "greatest_common_divisor"),
            "a, b",
            "Return the greatest common divisor.",
            b("while b:", "    a, b = b, a % b", "return a"),
            "computes the greatest common divisor of two integers",
        ),
        F(
            ("lcm", "least_common_multiple"),
            "a, b",
            "Return the least common multiple.",
            b("x, y = a, b", "while y:", "    x, y = y, x % y", "return a * b // x"),
            "computes the least common multiple of two integers",
        ),
        F(
            ("reverse_string", "reverse_text", "reversed_copy"),
            w,
            "Return the text reversed.",
            b(f"return {w}[::-1]"),
            "reverses a string",
        ),
        F(
            ("is_palindrome", "palindrome", "check_palindrome"),
            w,
            "Return True if the text is a palindrome.",
            b(f"{w} = {w}.lower()", f"return {w} == {w}[::-1]"),
            "checks whether a string is a palindrome",
        ),
        F(
            ("count_vowels", "vowel_count", "num_vowels"),
            w,
            "Return the number of vowels.",
            b(
                "count = 0",
                f"for c in {w}.lower():",
                '    if c in "aeiou":',
                "        count += 1",
                "return count",
            ),
            "counts the vowels in a string",
        ),
        F(
            ("count_words", "word_count"),
            w,
            "Return the number of words.",
            b(f"return len({w}.split())"),
            "counts the words in a string",
        ),
        F(
            ("word_frequencies", "word_counts", "count_each_word"),
            w,
            "Return a dict of word counts.",
            b(
                "counts = {}",
                f"for word in {w}.lower().split():",
                "    counts[word] = counts.get(word, 0) + 1",
                "return counts",
            ),
            "counts how often each word appears in a text",
        ),
        F(
            ("remove_duplicates", "unique", "dedupe"),
            v,
            "Return the items without duplicates, keeping order.",
            b(
                "seen = set()",
                "result = []",
                f"for x in {v}:",
                "    if x not in seen:",
                "        seen.add(x)",
                "        result.append(x)",
                "return result",
            ),
            "removes duplicates from a list while keeping the order",
        ),
        F(
            ("flatten", "flatten_list"),
            v,
            "Flatten a list of lists.",
            b("result = []", f"for sub in {v}:", "    result.extend(sub)", "return result"),
            "flattens a list of lists",
        ),
        F(
            ("chunks", "split_into_chunks", "chunked"),
            f"{v}, size",
            "Split a list into chunks.",
            b(f"return [{v}[i:i + size] for i in range(0, len({v}), size)]"),
            "splits a list into chunks of a given size",
        ),
        F(
            ("binary_search", "bsearch", "find_sorted"),
            f"{v}, target",
            "Return the index of target or -1.",
            b(
                f"lo, hi = 0, len({v}) - 1",
                "while lo <= hi:",
                "    mid = (lo + hi) // 2",
                f"    if {v}[mid] == target:",
                "        return mid",
                f"    if {v}[mid] < target:",
                "        lo = mid + 1",
                "    else:",
                "        hi = mid - 1",
                "return -1",
            ),
            "performs binary search on a sorted list",
        ),
        F(
            ("bubble_sort", "sort_list"),
            v,
            "Sort a list with bubble sort.",
            b(
                f"result = list({v})",
                "for i in range(len(result)):",
                "    for j in range(len(result) - 1 - i):",
                "        if result[j] > result[j + 1]:",
                "            result[j], result[j + 1] = result[j + 1], result[j]",
                "return result",
            ),
            "sorts a list with bubble sort",
        ),
        F(
            ("insertion_sort", "insert_sort"),
            v,
            "Sort a list with insertion sort.",
            b(
                f"result = list({v})",
                "for i in range(1, len(result)):",
                "    key = result[i]",
                "    j = i - 1",
                "    while j >= 0 and result[j] > key:",
                "        result[j + 1] = result[j]",
                "        j -= 1",
                "    result[j + 1] = key",
                "return result",
            ),
            "sorts a list with insertion sort",
        ),
        F(
            ("quicksort", "quick_sort"),
            v,
            "Sort a list with quicksort.",
            b(
                f"if len({v}) <= 1:",
                f"    return list({v})",
                f"pivot = {v}[0]",
                f"left = [x for x in {v}[1:] if x < pivot]",
                f"right = [x for x in {v}[1:] if x >= pivot]",
                f"return {{0}}(left) + [pivot] + {{0}}(right)",
            ),
            "sorts a list with quicksort",
        ),
        F(
            ("even_numbers", "only_even", "filter_even"),
            v,
            "Return only the even numbers.",
            b(f"return [x for x in {v} if x % 2 == 0]"),
            "returns only the even numbers of a list",
        ),
        F(
            ("odd_numbers", "only_odd", "filter_odd"),
            v,
            "Return only the odd numbers.",
            b(f"return [x for x in {v} if x % 2 == 1]"),
            "returns only the odd numbers of a list",
        ),
        F(
            ("squares", "square_all"),
            v,
            "Return the square of each number.",
            b(f"return [x * x for x in {v}]"),
            "returns the squares of all numbers in a list",
        ),
        F(
            ("merge_dicts", "combine_dicts"),
            "a, b",
            "Merge two dictionaries.",
            b("result = dict(a)", "result.update(b)", "return result"),
            "merges two dictionaries",
        ),
        F(
            ("invert_dict", "swap_keys"),
            "d",
            "Swap keys and values.",
            b("return {v: k for k, v in d.items()}"),
            "swaps the keys and values of a dictionary",
        ),
        F(
            ("power", "int_power"),
            "base, exp",
            "Return base raised to exp.",
            b("result = 1", "for _ in range(exp):", "    result *= base", "return result"),
            "raises a number to a non-negative integer power without using **",
        ),
        F(
            ("digit_sum", "sum_digits"),
            n,
            "Return the sum of the digits.",
            b(
                "total = 0",
                f"while {n}:",
                f"    total += {n} % 10",
                f"    {n} //= 10",
                "return total",
            ),
            "returns the sum of the digits of a number",
        ),
        F(
            ("to_binary", "binary_string"),
            n,
            "Return the binary form as a string.",
            b(
                f"if {n} == 0:",
                '    return "0"',
                "digits = []",
                f"while {n}:",
                f"    digits.append(str({n} % 2))",
                f"    {n} //= 2",
                'return "".join(reversed(digits))',
            ),
            "converts a non-negative integer to a binary string",
        ),
        F(
            ("celsius_to_fahrenheit", "c_to_f"),
            "c",
            "Convert Celsius to Fahrenheit.",
            b("return c * 9 / 5 + 32"),
            "converts degrees Celsius to Fahrenheit",
        ),
        F(
            ("clamp", "limit"),
            "x, low, high",
            "Limit x to the range.",
            b("if x < low:", "    return low", "if x > high:", "    return high", "return x"),
            "limits a number to a range",
        ),
        F(
            ("second_largest", "runner_up"),
            v,
            "Return the second largest distinct value.",
            b(
                f"distinct = sorted(set({v}), reverse=True)",
                "if len(distinct) < 2:",
                "    return None",
                "return distinct[1]",
            ),
            "returns the second largest distinct value of a list",
        ),
        F(
            ("common_elements", "intersection"),
            "a, b",
            "Return the elements found in both lists.",
            b("other = set(b)", "return [x for x in a if x in other]"),
            "returns the elements that two lists have in common",
        ),
        F(
            ("transpose", "transpose_matrix"),
            "matrix",
            "Transpose a matrix.",
            b("return [list(row) for row in zip(*matrix)]"),
            "transposes a matrix given as a list of rows",
        ),
        F(
            ("dot_product", "dot"),
            "a, b",
            "Return the dot product.",
            b(
                "if len(a) != len(b):",
                '    raise ValueError("length mismatch")',
                "return sum(x * y for x, y in zip(a, b))",
            ),
            "computes the dot product of two vectors",
        ),
        F(
            ("read_lines", "load_lines"),
            "path",
            "Read a file and return its lines.",
            b("with open(path) as f:", '    return [line.rstrip("\\n") for line in f]'),
            "reads a text file and returns its lines",
        ),
        F(
            ("count_lines", "num_lines"),
            "path",
            "Return the number of lines in a file.",
            b(
                "count = 0",
                "with open(path) as f:",
                "    for _ in f:",
                "        count += 1",
                "return count",
            ),
            "counts the lines of a text file",
        ),
        F(
            ("capitalize_words", "title_case"),
            w,
            "Capitalize each word.",
            b(f'return " ".join(word.capitalize() for word in {w}.split())'),
            "capitalizes every word of a sentence",
        ),
        F(
            ("is_anagram", "anagrams"),
            "a, b",
            "Return True if a and b are anagrams.",
            b("return sorted(a.lower()) == sorted(b.lower())"),
            "checks whether two words are anagrams",
        ),
        F(
            ("rotate", "rotate_left"),
            f"{v}, k",
            "Rotate a list to the left by k.",
            b(f"if not {v}:", "    return []", f"k %= len({v})", f"return {v}[k:] + {v}[:k]"),
            "rotates a list to the left by k positions",
        ),
        F(
            ("running_total", "cumulative_sum", "prefix_sums"),
            v,
            "Return the running totals.",
            b(
                "total = 0",
                "result = []",
                f"for x in {v}:",
                "    total += x",
                "    result.append(total)",
                "return result",
            ),
            "returns the running totals of a list",
        ),
        F(
            ("is_leap_year", "leap"),
            "year",
            "Return True for leap years.",
            b("return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"),
            "checks whether a year is a leap year",
        ),
        F(
            ("group_by_length", "by_length"),
            "words",
            "Group words by length.",
            b(
                "groups = {}",
                "for word in words:",
                "    groups.setdefault(len(word), []).append(word)",
                "return groups",
            ),
            "groups words by their length",
        ),
        F(
            ("fizzbuzz", "fizz_buzz"),
            n,
            "Return the FizzBuzz lines.",
            b(
                "result = []",
                f"for i in range(1, {n} + 1):",
                "    if i % 15 == 0:",
                '        result.append("FizzBuzz")',
                "    elif i % 3 == 0:",
                '        result.append("Fizz")',
                "    elif i % 5 == 0:",
                '        result.append("Buzz")',
                "    else:",
                "        result.append(str(i))",
                "return result",
            ),
            "returns the FizzBuzz lines up to n as a list of strings",
        ),
        F(
            ("collatz", "collatz_steps"),
            n,
            "Count the Collatz steps.",
            b(
                "steps = 0",
                f"while {n} != 1:",
                f"    {n} = {n} // 2 if {n} % 2 == 0 else 3 * {n} + 1",
                "    steps += 1",
                "return steps",
            ),
            "counts the Collatz steps needed to reach 1",
        ),
        F(
            ("caesar", "caesar_cipher"),
            f"{w}, shift",
            "Shift letters by a fixed amount.",
            b(
                "result = []",
                f"for c in {w}:",
                "    if c.isalpha():",
                '        base = ord("A") if c.isupper() else ord("a")',
                "        c = chr((ord(c) - base + shift) % 26 + base)",
                "    result.append(c)",
                'return "".join(result)',
            ),
            "applies a Caesar cipher with a given shift",
        ),
    ]
    name, src, desc, _ = ch(P)
    return name, src.replace("{0}", name), desc


def q_code():
    name, src, desc = fn_pool()
    q = ch(
        f"Write a Python function that {desc}.",
        f"Write a Python function `{name}` that {desc}.",
        f"Please implement a function in Python which {desc}. Call it `{name}`.",
        f"I need a Python function that {desc}.",
        f"Show me Python code that {desc}.",
        f"In Python, write `{name}`: a function that {desc}.",
    )
    th = f"The user wants a Python function that {desc}. I will write `{name}`."
    a = ch(
        f"```python\n{src}\n```",
        f"Here is the function:\n\n```python\n{src}\n```",
        f"Here is a function that {desc}:\n\n```python\n{src}\n```",
    )
    return q, th, a


# ------------------------------------------------------------------ tools
def T(name, desc, props, req):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": desc,
            "parameters": {"type": "object", "properties": props, "required": req},
        },
    }


s_ = lambda d, **k: {"type": "string", "description": d, **k}
i_ = lambda d, **k: {"type": "integer", "description": d, **k}
n_ = lambda d, **k: {"type": "number", "description": d, **k}
b_ = lambda d, **k: {"type": "boolean", "description": d, **k}
CITIES = (
    list(CAPS.values())
    + "London Munich Boston Chicago Sydney Toronto Osaka Milan Zurich Geneva Lyon Porto Krakow Seattle Denver Dallas Mumbai Hamburg".split()
)
SKY = "sunny cloudy rainy windy snowy foggy clear stormy".split()


def js(**k):
    return json.dumps(k, ensure_ascii=False)


def t_weather():
    c, u = ch(CITIES), ch("celsius", "fahrenheit")
    t = ri(-5, 35) if u == "celsius" else ri(20, 95)
    sky = ch(SKY)
    ask = ch(
        f"What is the weather in {c}?",
        f"How is the weather in {c} right now?",
        f"Tell me the weather in {c}.",
        f"Is it {ch(SKY)} in {c}?",
    )
    a = js(city=c)
    if R.random() < 0.4:
        ask = f"What is the weather in {c} in {u}?"
        a = js(city=c, unit=u)
    else:
        t = ri(-5, 35)
        u = "celsius"
    return (
        T(
            "get_weather",
            "Get the current weather for a city.",
            {
                "city": s_("City name"),
                "unit": {
                    "type": "string",
                    "description": "Temperature unit",
                    "enum": ["celsius", "fahrenheit"],
                    "default": "celsius",
                },
            },
            ["city"],
        ),
        ask,
        f"The user wants the weather in {c}. I will call get_weather.",
        "get_weather",
        a,
        js(city=c, temperature=t, condition=sky),
        f"The weather in {c} is {sky} with a temperature of {t} degrees {u.capitalize()}.",
    )


def t_calc():
    a, b, op = ri(100, 9999), ri(100, 9999), ch("+", "-", "*")
    r = eval(f"{a}{op}{b}")
    ex = f"{a} {op} {b}"
    return (
        T(
            "calculator",
            "Evaluate an arithmetic expression.",
            {"expression": s_("Expression to evaluate")},
            ["expression"],
        ),
        ch(
            f"Use the calculator to compute {ex}.",
            f"What is {ex}? Use a tool.",
            f"Calculate {ex} exactly.",
        ),
        f"The user wants {ex}. I will call calculator.",
        "calculator",
        js(expression=ex),
        str(r),
        f"{ex} = {r}",
    )


def t_search():
    q = ch(
        "latest python release",
        "train strikes in france",
        "best pasta recipe",
        "how tall is mount everest",
        "history of the telescope",
        "cheap flights to tokyo",
        "rust borrow checker",
        "postgres vacuum settings",
        "how to prune roses",
        "nearest star to the sun",
    )
    k = ri(1, 10)
    lim = R.random() < 0.5
    a = js(query=q, limit=k) if lim else js(query=q)
    site = ch("example.org", "example.com", "docs.example.net")
    slug = q.replace(" ", "-")
    return (
        T(
            "web_search",
            "Search the web and return the best results.",
            {
                "query": s_("Search query", minLength=1),
                "limit": i_("Number of results", minimum=1, maximum=10, default=5),
            },
            ["query"],
        ),
        f"Search the web for {q}" + (f" and return {k} results." if lim else "."),
        f"The user wants a web search for {q}. I will call web_search.",
        "web_search",
        a,
        json.dumps([{"title": q.capitalize(), "url": f"https://{site}/{slug}"}]),
        f"I found one result: {q.capitalize()} (https://{site}/{slug}).",
    )


def t_mail():
    n = ch(NAMES)
    sub = ch(
        "Meeting tomorrow",
        "Lunch on Friday",
        "Project update",
        "Invoice",
        "Holiday plans",
        "Status report",
    )
    body = ch(
        "See you at ten.",
        "Please confirm.",
        "The report is ready.",
        "Let me know what you think.",
        "Thanks for your help.",
    )
    to = f"{n.lower()}@example.com"
    return (
        T(
            "send_email",
            "Send an email.",
            {
                "to": s_("Recipient address"),
                "subject": s_("Subject line", maxLength=120),
                "body": s_("Message text"),
                "urgent": b_("Mark as urgent", default=False),
            },
            ["to", "subject", "body"],
        ),
        f'Send an email to {to} with the subject "{sub}" and the text "{body}"',
        f"The user wants to send an email to {to}. I will call send_email.",
        "send_email",
        js(to=to, subject=sub, body=body),
        js(status="sent", id=ri(1000, 9999)),
        f'I sent the email "{sub}" to {to}.',
    )


def t_event():
    t = ch(
        "Dentist",
        "Team meeting",
        "Piano lesson",
        "Code review",
        "Lunch with " + ch(NAMES),
        "Yoga class",
    )
    d = f"2026-{ri(1,12):02d}-{ri(1,28):02d}"
    h = f"{ri(7,20):02d}:{ch('00','15','30','45')}"
    m = ch(15, 30, 45, 60, 90)
    return (
        T(
            "create_event",
            "Create a calendar event.",
            {
                "title": s_("Event title"),
                "date": s_("Date, YYYY-MM-DD", pattern="^\\d{4}-\\d{2}-\\d{2}$"),
                "time": s_("Start time, HH:MM"),
                "duration": i_("Duration in minutes", minimum=5),
            },
            ["title", "date", "time"],
        ),
        f'Add "{t}" to my calendar on {d} at {h} for {m} minutes.',
        f"The user wants a calendar event on {d} at {h}. I will call create_event.",
        "create_event",
        js(title=t, date=d, time=h, duration=m),
        js(ok=True, event_id=f"ev{ri(100,999)}"),
        f'I added "{t}" on {d} at {h} for {m} minutes.',
    )


def t_file():
    p = ch(
        "README.md",
        "src/main.py",
        "config.json",
        "notes.txt",
        "docs/index.md",
        "tests/test_api.py",
        "data/users.csv",
    )
    body = ch(
        "# Notes\n- buy milk",
        'print("hello")',
        '{"debug": true}',
        "first line\nsecond line",
        "id,name\n1,Ana",
    )
    return (
        T("read_file", "Read a file and return its text.", {"path": s_("File path")}, ["path"]),
        ch(f"Show me the file {p}.", f"What is in {p}?", f"Read {p}."),
        f"The user wants to see {p}. I will call read_file.",
        "read_file",
        js(path=p),
        body,
        f"Here is the content of {p}:\n\n```\n{body}\n```",
    )


def t_ls():
    p = ch("/tmp", "src", "docs", "/home/user", "tests", ".")
    fs = R.sample(
        ["a.txt", "b.txt", "main.py", "setup.py", "notes.md", "data.csv", "run.sh", "index.html"],
        ri(2, 4),
    )
    hid = R.random() < 0.4
    a = js(path=p, show_hidden=True) if hid else js(path=p)
    return (
        T(
            "list_files",
            "List the files in a folder.",
            {"path": s_("Folder path"), "show_hidden": b_("Also list hidden files", default=False)},
            ["path"],
        ),
        f"List the files in {p}" + (", also the hidden ones." if hid else "."),
        f"The user wants the files in {p}. I will call list_files.",
        "list_files",
        a,
        json.dumps(fs),
        f"The folder {p} contains {len(fs)} files: {', '.join(fs)}.",
    )


def t_conv():
    a, b = R.sample(["USD", "EUR", "GBP", "JPY", "CHF", "CAD"], 2)
    x = ri(1, 50) * 10
    r = round(x * ri(50, 150) / 100, 2)
    return (
        T(
            "convert_currency",
            "Convert an amount between currencies.",
            {
                "amount": n_("Amount", minimum=0),
                "from": {"type": "string", "enum": ["USD", "EUR", "GBP", "JPY", "CHF", "CAD"]},
                "to": {"type": "string", "enum": ["USD", "EUR", "GBP", "JPY", "CHF", "CAD"]},
            },
            ["amount", "from", "to"],
        ),
        f"Convert {x} {a} to {b}.",
        f"The user wants {x} {a} in {b}. I will call convert_currency.",
        "convert_currency",
        json.dumps({"amount": x, "from": a, "to": b}),
        js(result=r),
        f"{x} {a} is {r} {b}.",
    )


def t_route():
    a, b = R.sample(CITIES, 2)
    m = ch("car", "train", "bike", "walk")
    km = ri(10, 900)
    h = ri(1, 12)
    return (
        T(
            "find_route",
            "Find a route between two places.",
            {
                "origin": s_("Start"),
                "destination": s_("End"),
                "mode": {"type": "string", "enum": ["car", "train", "bike", "walk"]},
                "avoid": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Things to avoid",
                },
            },
            ["origin", "destination", "mode"],
        ),
        f"Find a {m} route from {a} to {b}.",
        f"The user wants a {m} route from {a} to {b}. I will call find_route.",
        "find_route",
        js(origin=a, destination=b, mode=m),
        js(distance_km=km, hours=h),
        f"The {m} route from {a} to {b} is {km} km and takes about {h} hours.",
    )


def t_timer():
    m = ri(1, 60)
    l = ch("tea", "pasta", "laundry", "break", "eggs", "pizza")
    return (
        T(
            "set_timer",
            "Start a timer.",
            {"minutes": i_("Length in minutes", minimum=1, maximum=600), "label": s_("Label")},
            ["minutes"],
        ),
        f"Set a {l} timer for {m} minutes.",
        f"The user wants a {m} minute timer. I will call set_timer.",
        "set_timer",
        js(minutes=m, label=l),
        js(status="started"),
        f"The {l} timer is set for {m} minutes.",
    )


def t_db():
    t = ch("users", "orders", "products", "invoices")
    k = ri(1, 20)
    c = ri(0, 500)
    q = ch(f"SELECT COUNT(*) FROM {t}", f"SELECT * FROM {t} LIMIT {k}", f"SELECT MAX(id) FROM {t}")
    return (
        T(
            "run_sql",
            "Run a read-only SQL query.",
            {"query": s_("SQL text"), "timeout": n_("Timeout in seconds", default=30)},
            ["query"],
        ),
        f"Run this query: {q}",
        f"The user wants to run a query on {t}. I will call run_sql.",
        "run_sql",
        js(query=q),
        js(rows=[[c]]),
        f"The query returned {c}.",
    )


def t_time():
    c = ch(CITIES)
    h = f"{ri(0,23):02d}:{ri(0,59):02d}"
    return (
        T("get_time", "Get the current local time of a city.", {"city": s_("City name")}, ["city"]),
        ch(f"What time is it in {c}?", f"Tell me the local time in {c}."),
        f"The user wants the time in {c}. I will call get_time.",
        "get_time",
        js(city=c),
        js(time=h),
        f"It is {h} in {c}.",
    )


def t_trans():
    w = ch(
        "good morning", "thank you", "where is the station", "one coffee please", "see you tomorrow"
    )
    l = ch("French", "German", "Spanish", "Italian")
    tr = {
        "French": "bonjour",
        "German": "guten Tag",
        "Spanish": "buenos días",
        "Italian": "buongiorno",
    }[l]
    return (
        T(
            "translate",
            "Translate text.",
            {"text": s_("Text"), "target": s_("Target language")},
            ["text", "target"],
        ),
        f'Translate "{w}" to {l}.',
        f"The user wants a translation to {l}. I will call translate.",
        "translate",
        js(text=w, target=l),
        js(translation=tr),
        f'In {l}, "{w}" is "{tr}".',
    )


def t_lights():
    r = ch("kitchen", "bedroom", "office", "hall")
    on = R.random() < 0.5
    lv = ri(1, 10) * 10
    if on and R.random() < 0.5:
        return (
            TL,
            f"Set the {r} lights to {lv} percent.",
            f"The user wants the {r} lights at {lv} percent. I will call set_lights.",
            "set_lights",
            js(room=r, on=True, brightness=lv),
            js(ok=True),
            f"The {r} lights are at {lv} percent now.",
        )
    return (
        TL,
        f"Turn {'on' if on else 'off'} the lights in the {r}.",
        f"The user wants the {r} lights {'on' if on else 'off'}. I will call set_lights.",
        "set_lights",
        js(room=r, on=on),
        js(ok=True),
        f"The {r} lights are {'on' if on else 'off'} now.",
    )


TL = T(
    "set_lights",
    "Switch the lights of a room.",
    {
        "room": s_("Room name"),
        "on": b_("New state"),
        "brightness": i_("Percent", minimum=0, maximum=100),
    },
    ["room", "on"],
)


def t_stock():
    s = ch("ACME", "GLOBX", "INIT", "UMBR", "HOOL")
    p = round(ri(500, 50000) / 100, 2)
    return (
        T(
            "get_stock_price",
            "Get the latest price of a stock.",
            {"symbol": s_("Ticker symbol", pattern="^[A-Z]+$")},
            ["symbol"],
        ),
        ch(f"What is the price of {s}?", f"Get the stock price of {s}."),
        f"The user wants the price of {s}. I will call get_stock_price.",
        "get_stock_price",
        js(symbol=s),
        js(symbol=s, price=p),
        f"The latest price of {s} is {p}.",
    )


def t_ping():
    return (
        T("ping", "Check that the service is alive.", {}, []),
        ch("Ping the service.", "Is the service up?", "Check that the service is alive."),
        "The user wants to know if the service is alive. I will call ping.",
        "ping",
        "{}",
        js(status="ok"),
        "The service is up.",
    )


TOOLS = [
    t_weather,
    t_calc,
    t_search,
    t_mail,
    t_event,
    t_file,
    t_ls,
    t_conv,
    t_route,
    t_timer,
    t_db,
    t_time,
    t_trans,
    t_lights,
    t_stock,
    t_ping,
]

SYS = [
    "You are a helpful assistant.",
    "You are a concise assistant. Answer briefly.",
    "You are a coding assistant.",
    "Answer in one sentence.",
    "You are a friendly helper.",
    "You are a careful maths tutor.",
]
QA = (
    [q_add] * 3
    + [q_sub] * 2
    + [q_mul] * 2
    + [
        q_div,
        q_word,
        q_word,
        q_unit,
        q_unit,
        q_temp,
        q_cmp,
        q_sort,
        q_even,
        q_letters,
        q_cap,
        q_day,
        q_hi,
        q_fact,
    ]
)


def conv_qa():
    msgs = [{"role": "system", "content": ch(SYS)}] if R.random() < 0.25 else []
    for _ in range(ch(1, 1, 1, 2, 2, 3)):
        q, th, a = ch(QA)()
        msgs += [{"role": "user", "content": q}, {"role": "assistant", "think": th, "content": a}]
    return msgs, None


def conv_code():
    msgs = [{"role": "system", "content": ch(SYS)}] if R.random() < 0.25 else []
    for _ in range(ch(1, 1, 1, 2)):
        q, th, a = q_code() if R.random() < 0.9 else ch(QA)()
        msgs += [{"role": "user", "content": q}, {"role": "assistant", "think": th, "content": a}]
    return msgs, None


def conv_tool():
    main = R.sample(TOOLS, ri(1, 3))
    msgs = [{"role": "system", "content": ch(SYS)}] if R.random() < 0.3 else []
    tools, idx = {}, 0
    for f in main[: ch(1, 1, 2, len(main))]:
        if R.random() < 0.15:
            q, th, a = ch(QA)()
            msgs += [
                {"role": "user", "content": q},
                {
                    "role": "assistant",
                    "think": th + (" No tool is needed." if R.random() < 0.5 else ""),
                    "content": a,
                },
            ]
            continue
        if R.random() < 0.2 and f not in (t_ping, t_calc):  # two calls of one tool in one turn
            x, y = f(), f()
            tools[x[3]] = x[0]
            ids = [f"functions.{x[3]}:{idx}", f"functions.{x[3]}:{idx+1}"]
            idx += 2
            msgs += [
                {"role": "user", "content": x[1].rstrip(".?") + ". Also: " + y[1]},
                {
                    "role": "assistant",
                    "think": f"There are two requests. I will call {x[3]} twice.",
                    "tool_calls": [{"id": ids[0], "args": x[4]}, {"id": ids[1], "args": y[4]}],
                },
                {"role": "tool", "name": x[3], "id": ids[0], "content": x[5]},
                {"role": "tool", "name": x[3], "id": ids[1], "content": y[5]},
                {
                    "role": "assistant",
                    "think": f"Both calls of {x[3]} returned. I can answer now.",
                    "content": x[6] + " " + y[6],
                },
            ]
            continue
        t, q, th, name, args, res, ans = f()
        tools[name] = t
        cid = f"functions.{name}:{idx}"
        idx += 1
        msgs += [
            {"role": "user", "content": q},
            {
                "role": "assistant",
                "think": th,
                "content": ch("", "", f"I will call {name}."),
                "tool_calls": [{"id": cid, "args": args}],
            },
        ]
        msgs += [
            {"role": "tool", "name": name, "id": cid, "content": res},
            {
                "role": "assistant",
                "think": f"The tool {name} returned a result. I can answer now.",
                "content": ans,
            },
        ]
    for f in main:
        tools.setdefault((d := f())[3], d[0])
    tl = list(tools.values())
    R.shuffle(tl)
    if R.random() < 0.45:  # stop at a tool call: the call is the answer to learn
        cut = [i for i, m in enumerate(msgs) if m.get("tool_calls")]
        if cut:
            msgs = msgs[: ch(cut) + 1]
    return msgs, tl


if __name__ == "__main__":
    out, n, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    R.seed(seed)
    with open(out, "w") as f:
        for i in range(n):
            k = R.choices(["qa", "code", "tool"], [4, 3, 4])[0]
            msgs, tools = {"qa": conv_qa, "code": conv_code, "tool": conv_tool}[k]()
            t, p = render(msgs, tools, thinking=R.random() < 0.8)
            f.write(
                json.dumps(
                    {"p": "synthetic-" + k, "f": f"{seed}-{i}", "t": t, "n": p}, ensure_ascii=False
                )
                + "\n"
            )
