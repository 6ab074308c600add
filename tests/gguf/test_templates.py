# ruff: noqa: E501
"""Chat templates: those of models give what jinja2 gives, those of others end within bounds."""

from __future__ import annotations

import contextlib

import pytest

import rlx

pytest.importorskip("jinja2", reason="the package jinja2 is not installed")
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rlx.lm.template import Template

TALK = [
    {"role": "system", "content": "Be  brief.\nThink: <think>x</think> y"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi", "tool_calls": [
        {"function": {"name": "f", "arguments": {"a": [1, 2.5, None, True], "b": "c"}}}]},
    {"role": "user", "content": "bye"},
]  # fmt: skip
ORDINARY = (
    "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' + m['content'] | trim }}{% endfor %}",
    "{% for m in messages if m.role != 'system' %}{{ loop.index0 }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.cycle('a', 'b') }}{% else %}none{% endfor %}",
    "{% set ns = namespace(n=0, seen=[]) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.seen = ns.seen + [m.role] %}{% endfor %}{{ ns.n }}{{ ns.seen }}",
    "{% macro f(x, y='d') %}[{{ x }}|{{ y }}|{{ caller() if caller else '' }}]{% endmacro %}"
    "{{ f(1) }}{{ f('a', y=2) }}{% call f(3) %}in{% endcall %}",
    "{{ messages[1:] | length }}{{ messages[::-1][0].role }}{{ messages[0].content[:4] }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}",
    "{{ messages | rejectattr('role', 'in', ['user']) | list | length }}{{ messages | tojson }}",
    "{{ messages[2].tool_calls[0].function.arguments | tojson(indent=2) }}",
    "{% for k, v in messages[2].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }};"
    "{% endfor %}{{ {'a': 1, 'b': (1, 2)} | dictsort }}",
    "{% if messages[0]['role'] == 'system' and '<think>' in messages[0].content %}"
    "{{ messages[0].content.split('</think>')[-1].lstrip('\\n') }}{% endif %}",
    "{{ 'a,b,,c'.split(',') }}{{ 'a b'.split() }}{{ ' x '.strip() }}{{ 'abc'.replace('b', 'xx') }}",
    "{{ '%s-%03d' % ('a', 7) }}{{ '%s' | format('b') }}{{ '{} {x}'.format(1, x=2) }}",
    "{{ 7 // 2 }}{{ 7 % 3 }}{{ 2 ** 10 }}{{ -3 + 1.5 }}{{ 'ab' * 3 }}{{ [1] * 2 + [3] }}{{ 1 < 2 < 3 }}",
    "{% set t %}{% for i in range(3) %}{{ i }}{% endfor %}{% endset %}{{ t | upper }}{{ t ~ 1 ~ none }}",
    "{% filter upper %}x{{ bos_token }}{% endfilter %}{% with a = 1 %}{{ a }}{% endwith %}",
    "{{ missing is defined }}{{ messages is iterable }}{{ messages is sequence }}{{ 3 is odd }}"
    "{{ missing | default('d') }}{{ 'x' is string }}{{ none is none }}{{ messages[0] is mapping }}",
    "{{ ['b', 'a'] | sort | join('-') }}{{ [3, 1] | max }}{{ [1, 2] | sum }}{{ 'a b' | title }}"
    "{{ [1, 1] | unique | list }}{{ 'abc' | first }}{{ 'ab' | list | last }}{{ 3.7 | int }}",
    "{{ 'a\nb' | indent(4) }}{{ 'a' | center(5) }}{{ [1, 2, 3] | batch(2) | list }}{{ '1' | int + 1 }}",
    "{%- for m in messages %}{%- if not loop.first %}, {% endif -%}{{ m.role | capitalize }}\n"
    "{%- endfor %}\n{% if add_generation_prompt %}<|a|>{% endif %}",
    "{% for a in [[1, [2]], [3, []]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}",
    "{{ messages[0].missing }}{{ messages | map(attribute='role') | join(', ') }}{{ 'é→' | tojson }}",
)  # fmt: skip


@pytest.mark.parametrize("source", ORDINARY, ids=range(len(ORDINARY)))
def test_ordinary_templates_give_what_jinja2_gives(source: str) -> None:
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    ours = Template(source, "m", {"bos_token": "<s>"})
    from rlx.lm.template import _json  # pyright: ignore[reportPrivateUsage]

    plain.filters["tojson"] = _json
    wanted = plain.from_string(source).render(
        messages=TALK, add_generation_prompt=True, bos_token="<s>"
    )
    assert ours.render(TALK) == wanted


def test_long_conversations_are_rendered() -> None:
    talk = [{"role": "user", "content": f"{i} " + "word " * 400} for i in range(2000)]
    ours = Template(ORDINARY[0], "m", {})
    assert len(ours.render(talk)) > 4_000_000
    ours = Template("{% for m in messages %}{% if messages|length > loop.index and m in messages[:9]"
                    " %}x{% endif %}{{ m.content }}{% endfor %}", "m", {})  # fmt: skip
    assert len(ours.render(talk)) > 4_000_000


def test_a_step_of_each_message_is_no_matter_of_the_bounds() -> None:
    source = "{% for m in messages %}" + "{% if m.content == 'y' and m.role %}{% endif %}" * 40
    talk = [{"role": "user", "content": "x"}] * 1000
    assert Template(source + "{{ m.role }}{% endfor %}", "m", {}).render(talk) == "user" * 1000


DOUBLE = "{%% set s = %s %%}"
HOSTILE = {
    "loops": "{% for a in range(60000) %}{% for b in range(60000) %}{% endfor %}{% endfor %}",
    "loops of nothing": "{% for a in range(60000) %}{% for b in range(60000) if false %}{% endfor %}"
    "{% endfor %}",
    "a loop of itself": "{% for a in [0, 1, 2] recursive %}{{ loop([0, 1, 2]) }}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "a macro of itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "joined": "{% set s = 'ab' %}" + DOUBLE % "s ~ s" * 60,
    "added": "{% set s = 'ab' %}" + DOUBLE % "s + s" * 60,
    "added lists": "{% set s = [1] %}" + DOUBLE % "s + s" * 60,
    "nested lists": "{% set s = [1] %}" + DOUBLE % "[s, s]" * 60 + "{{ s }}",
    "nested tuples": "{% set s = (1,) %}" + DOUBLE % "(s, s)" * 60 + "{{ {s: 1} }}",
    "nested dicts": "{% set s = {} %}" + DOUBLE % "{'a': s, 'b': s}" * 60 + "{{ s == s }}{{ s|tojson }}",
    "captured": "{% set s = 'ab' %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 60,
    "formatted": "{% set s = 'ab' %}" + DOUBLE % "'%s%s' % (s, s)" * 60,
    "formatted by a method": "{% set s = 'ab' %}" + DOUBLE % "'{0}{0}'.format(s)" * 60,
    "replaced": "{% set s = 'aa' %}" + DOUBLE % "s.replace('a', s)" * 60,
    "replaced by a filter": "{% set s = 'aa' %}" + DOUBLE % "s|replace('a', s)" * 60,
    "joined by itself": "{% set s = 'aa' %}" + DOUBLE % "s.join(s|list)" * 60,
    "joined by a filter": "{% set s = 'aa' %}" + DOUBLE % "(s|list)|join(s)" * 60,
    "chains of namespaces": "{% set a = namespace() %}{% set s = a %}"
    + "{% set n = namespace(a=s, b=s) %}{% set s = n %}" * 60 + "{{ s }}",
    "repeated": "{{ 'x' * 10**10 }}", "repeated lists": "{{ [0] * 10**9 }}",
    "powers": "{{ 10 ** 10 ** 10 }}", "powers of powers": "{{ ((9**99)**99)**99 }}",
    "negative powers": "{{ 2.0 ** 99999 }}", "products": "{% set s = 9**99 %}" + DOUBLE % "s * s" * 60,
    "wide": "{{ 'x'.ljust(10**10) }}", "wide filter": "{{ 'x' | center(10**10) }}",
    "wide format": "{{ '%9999999999d' % 1 }}", "wide operand": "{{ '%*d' % (10**9, 1) }}",
    "wide spec": "{{ '{:>9999999999}'.format(1) }}", "nested spec": "{{ '{:>{w}}'.format(1, w=10**10) }}",
    "wide filter format": "{{ '%9999999999d' | format(1) }}", "indented": "{{ 'x' | indent(10**10, true) }}",
    "indented JSON": "{{ messages | tojson(indent=10**9) }}", "zeros": "{{ 'x'.zfill(10**10) }}",
    "batches": "{{ [1] | batch(10**10, 0) | list }}", "slices": "{{ [1] | slice(10**10) | list }}",
    "slices of slices": "{% set s = 'x' * 10**7 %}{% for i in range(60000) %}{% set t = s[::-1] %}"
    "{% endfor %}",
    "tabs": "{{ ('\t' * 9000).expandtabs(10**9) }}", "bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "sums": "{{ ([[1]] * 60000) | sum(start=[]) | length }}",
    "comparisons": "{% set s = range(60000) | list %}{% for i in s %}{{ -1 in s }}{% endfor %}",
    "membership by a test": "{% set s = range(60000) | list %}{{ s | select('in', s) | list | length }}",
    "letters": "{{ ('x' * 10**7) | list | length }}", "pieces": "{{ ('x ' * 10**6 * 8).split() | length }}",
    "lines": "{{ ('\n' * 10**7).splitlines() | length }}", "deep": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "deep lists": "{{ " + "[" * 500 + "]" * 500 + " }}", "deep negation": "{{ " + "-" * 9000 + "1 }}",
    "deep not": "{{ " + "not " * 9000 + "1 }}", "deep loops": "{% for a in b %}" * 50 + "{% endfor %}" * 50,
    "deep ifs": "{% if a %}" * 1500 + "{% endif %}" * 1500, "a long sum": "{{ " + "+".join("1" * 9000) + " }}",
    "a huge number": "{{ " + "9" * 9000 + " }}", "many branches": "{% if a %}{% set x = 1 %}{% endif %}" * 1200,
    "many names": "".join(f"{{% if a %}}{{% set x{i} = 1 %}}{{% endif %}}" for i in range(1200)),
    "unclosed": "{{ 'a" * 20_000, "a comment": "{#" * 40_000, "raw": "{% raw %}" + "{% " * 40_000,
    "include": "{% include 'x' %}", "import": "{% import 'x' as y %}", "extends": "{% extends 'x' %}",
    "blocks": "{% block a %}{{ self.a() }}{% endblock %}", "loremipsum": "{{ lipsum(n=10**9) }}",
    "cyclers": "{{ cycler(1).next() }}", "classes": "{{ ''.__class__.__mro__ }}",
    "attributes": "{{ 'x' | attr('__class__') }}", "functions": "{{ messages.append(1) }}",
    "globals": "{{ range.__globals__ }}", "a loop's own": "{% for a in [1] %}{{ loop._iterable }}{{ loop.__init__ }}{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_templates_end_with_an_error_or_little(case: str) -> None:
    """Those that hang would hang the test."""
    text = ""
    with contextlib.suppress(rlx.Error):
        text = Template(HOSTILE[case], "m", {}).render(TALK)
    assert len(text) < 1 << 16


def test_nothing_is_evaluated_while_a_template_is_read() -> None:
    for source in ("{{ 10 ** 10 ** 10 }}", "{{ 'x' * 10**12 }}", "{{ 'x' | center(10**12) }}",
                   "{% set a = [0] * 10**12 %}", "{% if 'x' * 10**12 %}{% endif %}"):  # fmt: skip
        Template(source, "m", {})
