#!/usr/bin/env python3
"""Renders chat templates with jinja2, configured as transformers does, for tests/text/jinja_oracle_test.cpp.

usage: oracle_chat_template.py snippets OUT          the language snippets below
       oracle_chat_template.py FOLDER OUT            every *.jinja of a folder with every conversation below

OUT gets one JSON object a line: name, template, variables and either text or error.
"""
import datetime
import functools
import json
import pathlib
import sys
import types

import jinja2
import jinja2.ext

NOW = datetime.datetime(2026, 3, 5, 14, 7, 9)


class Generation(jinja2.ext.Extension):
    """{% generation %} marks the assistant's part for training; the text is its body."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def make_environment():
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])

    # Our filters return lists where jinja2 has generators; transformers would fail on one.
    def to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        x = list(x) if isinstance(x, types.GeneratorType) else x
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    # With escaping off, jinja2 still HTML-escapes what is added by + to a `safe` string. No model saw prompts like that:
    # our interpreter does not copy it, so `safe` is plain text here too.
    environment.filters["safe"] = str
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment


TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a <city> & \"more\".", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "City name"}, "days": {"type": "integer", "minimum": 1, "default": 2},
                                     "unit": {"type": "string", "enum": ["c", "f"]}}, "required": ["city"]}}}
CALL = {"id": "functions.get_weather:0", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "S\u00e3o Paulo", "days": 3, "x": [1, 2.5, None, True]}}}
CALL_TEXT = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}}
user, assistant, system = (lambda t: {"role": "user", "content": t}), (lambda t, **k: {"role": "assistant", "content": t, **k}), (lambda t: {"role": "system", "content": t})
RESULT = {"role": "tool", "tool_call_id": "functions.get_weather:0", "name": "get_weather", "content": "{\"temp\": 21}"}
CONVERSATIONS = {
    "user": [user("Hello \u4e16\u754c")],
    "system": [system("Be  brief.\n"), user("hi ")],
    "turns": [user("a"), assistant("b"), user(" c\n"), assistant("<think>\nr\n</think>\n\nd"), user("e")],
    "reasoning": [user("a"), assistant("b", reasoning_content="why\n"), user("c")],
    "ends_assistant": [user("a"), assistant("b")],
    "tool_loop": [user("w?"), assistant("", reasoning_content="look", tool_calls=[CALL]), RESULT],
    "tool_loop_done": [system("s"), user("w?"), assistant("ok", tool_calls=[CALL, CALL_TEXT]), RESULT, dict(RESULT, content="second"), assistant("21"), user("ta")],
    "tool_text": [user("w?"), assistant(None, tool_calls=[CALL_TEXT]), RESULT],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image"}, {"type": "text", "text": "ok?"}]}],
    "null": [user(None), assistant(None), user("x")],
    "specials": [user("<|im_end|>{{ 7*7 }}{% if %}</s>")],
    "two_users": [user("a"), user("b")],
    "empty": [],
    "name": [{"role": "user", "name": "bob", "content": "hi"}, {"role": "developer", "content": "D"}],
}
SETTINGS = [{}, {"tools": [TOOL]}, {"add_generation_prompt": False}, {"enable_thinking": False, "thinking": False}, {"tools": [TOOL, TOOL], "preserve_thinking": True, "tools_ts_str": "TS"},
            {"enable_thinking": True, "thinking": True, "reasoning_effort": "high", "date_string": "1 Jan 2026", "builtin_tools": ["code_interpreter"]}]


def template_cases(folder):
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        text = path.read_text(encoding="utf-8")
        for name, messages in CONVERSATIONS.items():
            for i, setting in enumerate(SETTINGS):
                variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", **setting}
                yield f"{path.name} {name} {i}", text, variables


SNIPPETS = r"""
{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1.5 + 1 }} {{ 10 - 2 - 3 }} {{ 0.1 + 0.2 }} {{ 1e20 }} {{ 1e-7 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'x'] ~ {'k': "it's"} }} {{ "a" "b" }} {{ 'x' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ (1,) + (2, 3) }}
{{ 1 if true }}|{{ 1 if false }}|{{ 1 if false else 2 if false else 3 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' in 'cat' }} {{ 'z' not in 'cat' }} {{ 1 in [1] }} {{ 'k' in {'k': 1} }} {{ 1 == 1.0 }} {{ 'a' == 'a' }} {{ true == 1 }} {{ [1,2] == [1,2] }} {{ (1,) == [1] }} {{ 'b' > 'a' }} {{ none == false }}
{{ not true }} {{ not x }} {{ x is defined }} {{ x is not defined }} {{ x | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }} {{ x or 'y' }} {{ 0 or '' or none }} {{ 1 and 'z' }}
{{ 'abc'[1] }} {{ 'abc'[-1] }} {{ 'abcdef'[1:3] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[::2] }} {{ 'h\u00e9llo'[1:] }} {{ [1,2,3][1:] }} {{ [1,2,3][::-1] }} {{ [1,2,3][5:] }} {{ [1,2,3][-2:] }} {{ [1,2,3][:-1] }} {{ [1,2,3][2:0:-1] }} {{ 'abc'[10] }}| {{ [1][7] }}|
{{ ' a b '.strip() }}|{{ 'xxabxx'.strip('x') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b c'.split(none, 1) }} {{ 'a.b.c'.rsplit('.', 1) }} {{ 'a\nb\n'.splitlines() }} {{ '-'.join(['a', 'b']) }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abc'.find('z') }} {{ 'aXbX'.replace('X', '--') }} {{ 'aXbX'.replace('X', '', 1) }} {{ 'abab'.count('ab') }} {{ 'heLLo woRLD'.title() }} {{ 'heLLo'.capitalize() }} {{ 'abc'.upper() }} {{ 'ABC'.lower() }} {{ '12'.isdigit() }} {{ 'prefix'.removeprefix('pre') }}
{{ {'a': 1, 'b': {'c': [1, 2]}} }} {{ {'a': 1}.a }} {{ {'a': 1}['a'] }} {{ {'a': 1}.get('z') }} {{ {'a': 1}.get('z', 5) }} {{ {'a': 1}.items() | list }} {{ {'a': 1}.keys() | list }} {{ {'a': 1, 'b': 2}.values() | list }} {{ {1: 2}[1] }} {{ {}.x is defined }}
{{ [3,1,2] | sort }} {{ ['b','A','c'] | sort }} {{ ['b','A'] | sort(case_sensitive=true) }} {{ [3,1] | sort(reverse=true) }} {{ [1,2,3] | first }} {{ [1,2,3] | last }} {{ [] | first }}| {{ [1,2] | length }} {{ 'h\u00e9' | length }} {{ {} | length }} {{ [1,2] | sum }} {{ [1,5,2] | max }} {{ [4,2] | min }} {{ [1,2,1] | unique | list }} {{ [1,2] | reverse | list }} {{ 'abc' | reverse }} {{ 'abc' | list }}
{{ ['a','b'] | join }} {{ ['a','b'] | join(', ') }} {{ [1,2] | join('-') }} {{ [{'n': 1}, {'n': 2}] | join(',', attribute='n') }} {{ [{'n': 1}, {'n': 2}] | map(attribute='n') | list }} {{ ['a','b'] | map('upper') | list }} {{ [{'n': 1}, {}] | map(attribute='n', default=0) | list }} {{ [{'a': {'b': 3}}] | map(attribute='a.b') | list }}
{{ [1,2,3,4] | select('odd') | list }} {{ [1,2,3] | reject('gt', 2) | list }} {{ [0,1,''] | select | list }} {{ [{'r': 'u', 'n': 1}, {'r': 'a', 'n': 2}] | selectattr('r', 'equalto', 'u') | list }} {{ [{'r': 1}, {}] | selectattr('r', 'defined') | list | length }} {{ [{'r': true}, {'r': false}] | rejectattr('r') | list }} {{ ['x', 'y'] | select('in', ['x']) | list }} {{ none | selectattr('x') | list }} {{ none | map('upper') | list }} {{ none | reject | list }}
{{ {'b': 1, 'a': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }} {{ {'b': 1} | items | list }} {{ {'b': 1, 'a': [true, none, 'x"\n']} | tojson }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ [1, {'a': []}] | tojson(indent=2) }} {{ {'a': 1, 'b': 2} | tojson(separators=(',', ':')) }} {{ 'h\u00e9</x>' | tojson }} {{ 'h\u00e9' | tojson(ensure_ascii=true) }} {{ 1.0 | tojson }} {{ [] | tojson(indent=4) }}
{{ '  a ' | trim }}|{{ 'xax' | trim('x') }}|{{ 'abc' | upper }} {{ 'ABC' | lower }} {{ 'abc DEF' | capitalize }} {{ 'a-b' | replace('-', '+') }} {{ 5 | string ~ 'x' }} {{ '42' | int + 1 }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '1.5' | float }} {{ 3.7 | int }} {{ -3 | abs }} {{ 2.5 | round }} {{ 3.14159 | round(2) }} {{ 2.1 | round(0, 'ceil') }} {{ '<a>&"' | escape }} {{ '<a>' | safe }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\nb' | indent('>> ') }}|{{ 'a b  c' | wordcount }}
{{ 'x' is string }} {{ 1 is number }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is integer }} {{ true is boolean }} {{ none is none }} {{ [] is sequence }} {{ {} is mapping }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ (1,) is sequence }} {{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 is sameas 1 }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ x is undefined }} {{ 1 is in [1] }} {{ true is true }} {{ 1 is true }} {{ range is callable }}
{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %} {% for i in [] %}x{% else %}none{% endfor %} {% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %} {% for i in range(5, 0, -2) %}{{ i }}{% endfor %} {% for x in 'ab' %}{{ x }}.{% endfor %} {% for k in {'q': 1} %}{{ k }}{% endfor %}
{% for i in range(10) if i is odd %}{{ i }}{{ loop.index0 }}{{ loop.first }} {% endfor %}{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %} {% for i in [1,2] %}{{ loop.previtem is defined }}{{ loop.nextitem | default('-') }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.cycle('o', 'e') }}{% endfor %}
{% set x = 1 %}{% for i in [1,2] %}{{ x }}{% set x = i + 10 %}{{ x }}{% endfor %}{{ x }} {% if true %}{% set x = 5 %}{% endif %}{{ x }} {% set ns = namespace(a=1, b=[]) %}{% for i in [1,2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{% set ns.c = 'n' %}{{ ns.c }} {% set a, b = 1, 2 %}{{ a }}{{ b }} {% set a, b = b, a %}{{ a }}{{ b }}
{% set t %}a{{ 1 }}{% endset %}[{{ t }}] {% set u | upper | trim %} a{{ 'b' }} {% endset %}[{{ u }}] {% filter upper %}x{{ 'y' }}{% endfilter %} {% filter replace('a', 'b') | trim %} aa {% endfilter %} {% with q = 3, r = 4 %}{{ q + r }}{% endwith %}{{ q is defined }}
{% macro m(a, b='B', c=none) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 2) }} {{ m(1, c=3) }} {{ m(b=1, a=2) }} {{ m() }} {% macro r(n) %}{{ n }}{% if n > 0 %}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(3) }} {{ m is callable }} {{ m(1) | length }}
{% macro outer() %}{{ later }}{% endmacro %}{% set later = 'L' %}{{ outer() }} {% macro box(t) %}[{{ t }}:{{ caller() }}]{% endmacro %}{% call box('x') %}body{% endcall %} {% macro each(l) %}{% for i in l %}{{ caller(i) }};{% endfor %}{% endmacro %}{% call(i) each([1,2]) %}<{{ i }}>{% endcall %}
{% raw %}{{ x }}{% y %}{# z #}{% endraw %} {# comment #}a{#- c -#} b {{- ' c' -}} d {%- if true %} e{% endif -%} f
{%+ if true %}x{% endif %} {{ '\u00e9\x41\n\t\\\'"' }} {{ "a'b" }} {{ 'q"\'' }} {{ ['a\'b', "c\"d", 'e\n\t\u00e9'] }}
{% generation %}g{% set gg = 1 %}{% endgeneration %} {{ 'a' if 'b' is string and not 'c' is number else 'd' }} {{ 1 is number and 2 }} {{ ('a', 'b') }} {{ ('a',) }} {{ () }} {{ [] }} {{ {} }} {{ (1, 2)[0] }} {{ [[1, 2], [3]][0][1] }}
{{ '%s is %d and %.2f%%' % ('a', 3, 1.5) }} {{ '%s' % 'x' }} {{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ 'a' | default }} {{ [1, 2] | string }} {{ none | string }} {{ true | string | lower }} {{ 1 == true }} {{ '1' == 1 }}
{{ strftime_now('%d %b %Y %H:%M') }} {{ strftime_now is defined }} {{ messages | length }} {{ messages[0].role }} {{ messages[0]['content'] }} {{ messages[-1].x is defined }} {{ messages[0].content.split('o') }} {{ messages[0].items() | list | length }} {{ messages }}
{{ undefined_thing.x }}
{{ 1 + 'a' }}
{{ 'a' + undefined_thing }}
{{ none.x.y }}
{{ raise_exception('bad ' ~ 'thing') }}
{{ [1] | nosuchfilter }}
{{ 1 < 'a' }}
{{ undefined_thing() }}
{{ 1 / 0 }}
{% set ns = namespace() %}{{ ns.x is defined }}{{ {'a': 1}.a.b is defined }}{{ undefined_thing | length }}{{ undefined_thing is iterable }}{% for i in undefined_thing %}x{% endfor %}{{ undefined_thing | list }}{{ undefined_thing == undefined_thing }}{{ 'a' in undefined_thing | list }}
{% if messages and messages[0] and 'content' in messages[0] %}y{% elif x %}z{% else %}n{% endif %} {% if not messages %}a{% elif messages | length > 0 %}b{% endif %} {% set n = namespace(l=[]) %}{% set _ = n.l.append('a') %}{% set _ = n.l.append('b') %}{{ n.l }}{{ n.l.pop(0) }}{{ n.l }} {% set l = [] %}{% for i in [1,2] %}{% set _ = l.append(i) %}{% endfor %}{{ l }}
""".strip("\n").split("\n")
BLOCKS = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "a\n   {% if true %}\n   b\n   {% endif %}\nc\n\n",
    "  {% set x = 1 %}  \n{{ x }}\n\n  {{- x }}\n  {{ x -}}\n  z\n",
    "  {# c #}\n  d\n{#- e #}\n\n f {#- g -#}\n h",
    "{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}\n{%- for i in [1,2] -%}\n  {{ i }}\n{%- endfor -%}\n",
    "x {% if true %} y\n {%+ if true %} z {% endif +%}\n{% endif %}\nw",
    "{%- macro f(a) -%}\n  {%- if a -%}\n    A{{ a }}\n  {% else -%}\n    B\n  {%- endif -%}\n{%- endmacro -%}\n{{ f(1) }}|{{ f(0) }}\n",
    "a\r\n{% if true %}\r\nb{% endif %}\rc\r\n", "\n\n{% if true %}{% endif %}\n", "   {{ 1 }}   \n   {% raw %}\n  {{ 2 }}\n   {% endraw %}\n3",
    "{% if true %}\n\n  x{% endif %}{% if false %}{% endif %}\ny", "\t{%- set a = '}}' ~ '%}' -%}\t{{ a }}{{ {'b': {'c': 1}}['b'] }}",
    "{{ 'x' }}\n  {% set y = 1 %}\n{{ y }}", "a {%- set q = 1 -%} b", "{{ '-' -}} -\n{{- '-' }}",
]


def snippet_cases():
    variables = {"messages": [{"role": "user", "content": "hello <|im_end|>", "n": 1.5}]}
    for i, text in enumerate(SNIPPETS + BLOCKS):
        yield f"snippet {i}", text, variables
        # Each tag alone, so that one difference does not hide another.
        if i < len(SNIPPETS) and "{%" not in text:
            for j, part in enumerate(text.split("{{")[1:]):
                yield f"snippet {i}.{j}", "{{" + part, variables


def main():
    what, out = sys.argv[1:]
    environment = make_environment()
    compiled = functools.cache(environment.from_string)
    with open(out, "w", encoding="utf-8") as file:
        for name, text, variables in snippet_cases() if what == "snippets" else template_cases(what):
            case = {"name": name, "template": text, "variables": variables}
            try:
                case["text"] = compiled(text).render(**json.loads(json.dumps(variables)))
            except Exception as error:
                case["error"] = f"{type(error).__name__}: {error}"
            file.write(json.dumps(case) + "\n")


if __name__ == "__main__":
    main()
