#!/usr/bin/env python3
"""Writes data/template_cases.json: pieces of chat templates and what transformers' Jinja2 environment prints for them.

    .deps/pyref/bin/python tests/golden/make_template_cases.py
"""
import json
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

OUT = Path(__file__).resolve().parent / "data" / "template_cases.json"
VARIABLES = {
    "text": "  Zürich's \"<b>\"\n", "none": None, "yes": True, "no": False, "whole": 3, "big": 1e20, "small": 0.00001,
    "half": 0.5, "one": 1.0, "list": ["a", "b'c", 1, None, True, 2.0], "empty": [], "object": {"k": "v", "n": {"z": [1, 2.5]}, "e": {}},
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "tool_calls": []}], "tools": None,
}
CASES = [
    "{{ yes }} {{ no }} {{ none }} {{ whole }} {{ one }} {{ half }} {{ big }} {{ small }}",
    "{{ list }} {{ object }} {{ empty }}", "{{ list | string }}{{ none | string }}{{ yes | string }}",
    "{{ object | tojson }}", "{{ object | tojson(indent=4) }}", "{{ list | tojson }}{{ text | tojson }}{{ none | tojson }}",
    "{{ object | tojson(indent=2, sort_keys=true) }}", "{{ text | tojson(ensure_ascii=true) }}",
    "{{ list | tojson(separators=(',', ':')) }}", "{{ empty | tojson(indent=2) }}{{ {} | tojson }}",
    "{{ missing }}|{{ missing is defined }}|{{ none is defined }}|{{ tools is none }}|{{ not tools }}",
    "{{ object.missing is defined }}{{ object.missing }}", "{{ messages[0].tool_calls is defined }}{{ messages[1].tool_calls is defined }}",
    "{% if 'k' in object %}in{% endif %}{{ 'z' not in object }}{{ 'a' in list }}{{ 'ri' in text }}",
    "{{ text is iterable }}{{ list is iterable }}{{ object is iterable }}{{ none is iterable }}{{ whole is iterable }}",
    "{{ text is sequence }}{{ list is sequence }}{{ object is sequence }}{{ none is sequence }}",
    "{{ text is string }}{{ object is mapping }}{{ list is mapping }}{{ yes is boolean }}{{ yes is true }}{{ whole is number }}{{ half is float }}{{ whole is integer }}",
    "[{{ text | trim }}][{{ text.strip() }}][{{ text.lstrip() }}][{{ text.rstrip('\\n') }}]",
    "{{ 'a-b-c'.split('-') }}{{ 'a-b-c'.split('-')[-1] }}{{ 'a b'.split() | length }}{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('ab') }}",
    "{{ 'abc'.upper() }}{{ 'ABC' | lower }}{{ 'hello world' | title }}{{ 'a,b'.replace(',', ';') }}{{ 'abc' | replace('b', 'x') }}",
    "{% for k, v in object.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in object | items %}{{ k }}{% endfor %}",
    "{{ object.get('k') }}{{ object.get('q', 'd') }}{{ object.get('q') }}{{ object['k'] }}{{ object.keys() | list }}",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }};{% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}{{ loop.nextitem.role if loop.nextitem is defined else '-' }}{% endfor %}",
    "{% for m in messages[::-1] %}{{ m.role }}{% endfor %}{{ messages[1:] | length }}{{ messages[-1].content }}{{ messages[:1][0]['role'] }}",
    "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if m.role == 'assistant' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}{{ ns.n }}",
    "{% for x in list %}{% if x == 1 %}{% break %}{% endif %}{% if x == 'a' %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in empty %}x{% else %}none{% endfor %}{{ range(3) | list }}{% for i in range(1, 4) %}{{ i }}{% endfor %}",
    "{% macro m(a, b='d') %}<{{ a }}{{ b }}>{% endmacro %}{{ m('x') }}{{ m('x', b='y') }}",
    "  {% if yes %}\n  line\n  {% endif %}\nend\n", "{%- if yes -%}  x  {%- endif -%}  y", "{# comment #}\nz\n{#- c -#} w",
    "a{% generation %}b{% endgeneration %}c", "a {%- generation -%} b {%- endgeneration -%} c", "{% generation %}\n  x\n{% endgeneration %}\ny",
    "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='content') | list }}{{ list | first }}{{ list | last }}",
    "{{ 7 // 2 }}{{ 7 % 2 }}{{ 2 ** 3 }}{{ 7 / 2 }}{{ 1 + 2 }}{{ -3 | abs }}{{ '%s-%d' | format('a', 3) }}",
    "{{ 'a' ~ 1 ~ 'b' }}{{ 'x' if no else 'y' }}{{ 'x' if no }}{{ none or 'd' }}{{ '' | default('d', true) }}{{ missing | default('e') }}",
    "{{ text | length }}{{ object | length }}{{ [3, 1, 2] | sort | join }}{{ [1, 2] + [3] }}{{ {'a': 1} }}{{ (1, 2)[0] }}",
    "{{ 'é' * 3 }}{{ \"it's\" }}{{ 'tab\\t' }}{{ '\\u00e9' }}{{ '\\\\' }}{{ ['\\n', '\\'', 'é'] }}",
    "{% set x %}block {{ whole }}{% endset %}{{ x }}{% filter upper %}up{% endfilter %}", "{{ 'abc'[0] }}{{ 'abc'[-1] }}{{ 'abc'[1:] }}{{ 'a' < 'b' }}",
    "{{ list | tojson | length }}{{ 'abc' is in ['abc'] }}{{ whole == 3.0 }}{{ whole is divisibleby 3 }}{{ 'b' is eq 'b' }}",
    "{% if messages and messages[0].role != 'system' %}no system{% endif %}{{ messages[0].content is string and messages[0].content != '' }}",
    "{{ raise_exception('no ' + text) }}", "{{ missing.attribute }}", "{{ none.attribute }}", "{{ object.missing.deeper }}", "{{ 'a' + 1 }}",
    "{{ missing | tojson }}", "{% if", "{{ unknown_function() }}", "{{ text | unknown_filter }}", "{{ 'a'.unknown_method() }}",
]


def main() -> None:
    results = []
    for source in CASES:
        try:
            results.append({"template": source, "text": _compile_jinja_template(source).render(**VARIABLES)})
        except Exception:  # every kind of refusal counts the same
            results.append({"template": source, "error": True})
    OUT.write_text(json.dumps({"variables": VARIABLES, "cases": results}, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
