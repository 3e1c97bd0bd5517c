#!/usr/bin/env python3
"""Makes cases.json: small templates, one construct each, with the text that jinja2 renders.

Needs jinja2 3.1.6 or later (pip install jinja2). The environment below is the one that transformers builds for chat
templates (transformers.utils.chat_template_utils), written out so that transformers itself is not needed; where
transformers is installed, --check compares both.
"""

import json
import os
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils


class GenerationTag(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


class TemplateNamespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            TemplateNamespace._check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        TemplateNamespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compile_template(source):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
    environment.globals["namespace"] = TemplateNamespace
    return environment.from_string(source)


# What every case sees unless it brings its own.
DEFAULTS = {"messages": [], "tools": None, "documents": None, "add_generation_prompt": True}

CONTEXT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello, wörld! 日本 \U0001f600"},
        {"role": "assistant", "content": " Hi <b>there</b> & 'you' \"all\"\n", "tool_calls": []},
        {"role": "user", "content": None},
    ],
    "text": "Hello World",
    "wide": "Größe ΑΣ ΣΑΣ İ ﬁ 日本語 \U0001f600\u00a0x",
    "n": 7,
    "neg": -7,
    "f": 2.5,
    "big": 9007199254740993,
    "yes": True,
    "no": False,
    "nothing": None,
    "items": [3, 1, 2],
    "names": ["bob", "Alice", "carol", "alice"],
    "nested": {"a": {"b": [10, {"c": "deep"}]}, "items": "shadow", "z": 0},
    "people": [
        {"name": "Ann", "age": 30, "city": "Rome", "tags": ["x", "y"]},
        {"name": "bob", "age": 25, "city": "rome"},
        {"name": "Cid", "age": 30, "city": "Oslo", "boss": {"name": "Ann"}},
    ],
    "empty": "",
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}, {"v": 5, "kids": []}],
    "quotes": "it's \"x\"\\\t\x7f\u200b\xe9",
    "multiline": "one\n two\n\n  three",
}

EXPRESSIONS = """
n + 1 | n - 8 | n * 3 | n / 2 | n // 2 | neg // 2 | n % 3 | neg % 3 | n % -3 | n ** 2 | 2 ** -1 | 2 ** 3 ** 2 | -2 ** 2
f + 1 | f * 2 | f // 1 | -f // 1 | f % 1 | -f % 2 | 7 / 7 | 1e3 | 1e16 | 1.5e-7 | 0.1 + 0.2 | 1e22 | 123456789.123456789
1_000 + 0x1f | 0b101 | 0o17 | 1_0.5_0 | 10 / 4 | 4 / 2 | 7.0 // 2 | 1e308 * 10 | -(1e308 * 10) | 5 % 2.5 | -0.0
true + true | true * 3 | not true | not nothing | not not 0 | yes and n | no and n | no or n | nothing or empty or "x"
"a" + "b" | "a" * 3 | 3 * "ab" | "a" * -1 | [1] + [2] | [1, 2] * 2 | (1,) + (2,) | "a" ~ 1 ~ none ~ true ~ 1.0 | 1 ~ 2
"x" ~ undefined_thing ~ "y" | [1, 2.0, "a", none, true, [], {}, ()] | {"a": 1, 2: "b", none: 3.5} | (1, 2) | (1,) | ()
1 < 2 < 3 | 1 < 3 < 2 | 1 == 1.0 | 1 == true | "1" == 1 | none == none | [1, 2] == [1, 2] | [1] == (1,) | {"a": 1} == {"a": 1.0}
"a" < "b" | "Z" < "a" | [1, 2] < [1, 3] | (1, 2) <= (1, 2) | 2 >= 2.0 | 1 != 2 | big == 9007199254740993.0 | big > 9007199254740992.0
1 in [1, 2] | "ell" in "Hello" | "a" in {"a": 1} | 3 not in [1, 2] | "" in "" | 2 in range(5) | "x" in undefined_thing | 1.0 in [1]
"x" if yes else "y" | "x" if no else "y" | "x" if no | ("x" if no) is undefined | "a" if no else "b" if no else "c"
text[0] | text[-1] | text[20] | text[1:4] | text[:-6] | text[::-1] | text[::2] | text[-3:] | text[10:2:-2] | text[5:5] | text[:100]
items[0] | items[-1] | items[9] | items[1:] | items[::-1] | items[:-1] | items[-2:] | (1, 2, 3)[1:] | items[none:2] | range(10)[2:5] | range(10)[::-3]
wide[0:3] | wide[2] | wide[::-1] | wide|length | wide[-3] | messages[1].content[7:12]
nested.a.b[1].c | nested["a"]["b"][0] | nested["items"] | nested.missing | nested["missing"] | nested.z | nested.a.b.0
undefined_thing | undefined_thing is defined | nested.x is defined | nested.x is undefined | nothing is none | nothing is defined
none | true | false | None | True | False | nothing | yes | no | 1 is number | true is number | true is integer | 1.0 is float | 1 is float
"a" is string | [] is iterable | "a" is iterable | 1 is iterable | {} is mapping | [] is mapping | [] is sequence | {} is sequence | "s" is sequence | 1 is sequence
undefined_thing is sequence | undefined_thing is iterable | range is callable | text.upper is callable | n is callable
3 is odd | 4 is even | 9 is divisibleby 3 | 9 is divisibleby(2) | 3 is not odd | 1 is eq 1 | 1 is equalto(2) | 1 is ne 2 | 1 is lt 2 | 1 is le 1
2 is gt 1 | 2 is ge 3 | 1 is in [1, 2] | "a" is in "abc" | none is sameas none | yes is sameas true | 1 is sameas true | "abc" is lower | "ABC" is upper
"A1" is upper | "" is lower | "upper" is filter | "nope" is filter | "odd" is test | yes is boolean | yes is true | no is false | 1 is true | 2 is not none and 1
text|upper | text|lower | text|title | "hello-wORLD (foo) b_c"|title | text|capitalize | "  x "|trim | "xxaxx"|trim("x") | text|length | text|reverse
wide|upper | wide|lower | wide|capitalize | wide|title | "straße"|upper | "ŉ ǆ"|title | "ÅÄÖ"|lower | "日本"|length
text|replace("o", "0") | text|replace("o", "0", 1) | "aaa"|replace("", "-") | 123|replace(2, "x") | text|replace("World", "")
items|sort | items|sort(reverse=true) | names|sort | names|sort(case_sensitive=true) | people|sort(attribute="age")|map(attribute="name")|join(",")
people|sort(attribute="age,name", reverse=true)|map(attribute="name")|list | people|sort(attribute="tags.0")|length
items|first | items|last | []|first | []|last is undefined | "abc"|first | "abc"|last | {"a": 1}|first | {"a": 1, "b": 2}|last | range(3)|last
items|join | items|join(", ") | people|join("/", attribute="name") | "abc"|join("-") | undefined_thing|join(",") | [1, none, true]|join(" ") | {"a": 1, "b": 2}|join(",")
items|sum | people|sum(attribute="age") | []|sum | [0.5, 1]|sum | items|sum(start=10) | [[1], [2]]|sum(start=[]) | items|min | items|max | names|min | names|max(case_sensitive=true)
people|max(attribute="age") | []|min is undefined | items|list | "abc"|list | {"a": 1}|list | range(3)|list | items|length | nested|length | undefined_thing|length
people|map(attribute="name")|list | people|map(attribute="boss.name", default="-")|list | names|map("upper")|join(" ") | names|map("replace", "a", "4")|list | none|map("upper")|list
people|selectattr("age", "equalto", 30)|map(attribute="name")|join | people|selectattr("tags")|list|length | people|rejectattr("tags", "defined")|map(attribute="name")|list | people|selectattr("boss", "undefined")|list|length
items|select("odd")|list | items|reject("odd")|list | [0, 1, "", "a", none]|select|list | [0, 1, ""]|reject|list | items|select(">", 1)|list | items|select("in", [1, 3])|list
names|unique|list | names|unique(case_sensitive=true)|list | people|unique(attribute="age")|map(attribute="name")|list | [1, 1.0, true, 2]|unique|list
people|groupby("age")|list|length | people|groupby("city")|map(attribute="grouper")|list | people|groupby("city")|map("first")|list | people|groupby("city", case_sensitive=true)|map("last")|map("length")|list | (people|groupby("age"))[0].list|length
range(7)|batch(3)|list | range(7)|batch(3, "-")|list | range(7)|slice(3)|list | range(7)|slice(3, "-")|list | {"b": 1, "A": 2}|dictsort | {"b": 1, "A": 2}|dictsort(true) | {"b": 1, "A": 2}|dictsort(by="value") | {"b": 1, "a": 2}|dictsort(reverse=true)
nested|items|list | undefined_thing|items|list | {"a": 1}.items()|list | {"a": 1}.keys() | {"a": 1}.values() | {"a": 1, "b": 2}.items() | nested.get("z") | nested.get("q") | nested.get("q", 5) | nested.keys()|list
undefined_thing|default("d") | empty|default("d") | empty|default("d", true) | nothing|default("d") | nothing|d("e", boolean=true) | n|default(1) | undefined_thing|default
"42"|int | "4.7"|int | "x"|int | "x"|int(-1) | "0x1f"|int(base=16) | "z"|int(base=36) | 3.9|int | -3.9|int | true|int | none|int(5) | " 12 "|int | "1_000"|int | "1.5"|float | "x"|float | "x"|float(2.5) | 3|float | "1e3"|float | "inf"|float | "nan"|float
2.5|round | 3.5|round | 2.567|round(2) | 2.5|round(method="ceil") | 2.5|round(0, "floor") | 42.55|round(1, "floor") | 5|round | -2.5|round | 2.675|round(2) | 1234.5|round(-2) | 7|abs | -7.5|abs | neg|abs
text|center(20) ~ "|" | "ab"|center(5) ~ "|" | "x"|indent | multiline|indent | multiline|indent(2, true) | multiline|indent(2, blank=true) | multiline|indent("> ", first=true) | "a\\n"|indent
"foo bar baz qux"|truncate(9) | "foo bar baz qux"|truncate(9, true) | "foo bar baz qux"|truncate(11) | "foo bar baz qux"|truncate(11, false, "..", 0) | "日本語日本語日本語"|truncate(5, true, "…", 0) | "a, b-c d"|wordcount
"<a href='x'>&\\"</a>"|escape | "<a>"|e|e | "<a>"|forceescape | "<a>"|safe ~ "<b>" | ("<a>"|safe) + "<b>" | "<b>" + ("<a>"|safe) | ("<a>"|e)|upper | ("x"|safe) is escaped | "<i>"|safe|replace("i", "b")
"%s is %d and %5.2f%%"|format("x", 5, 2.5) | "%s" % "a" | "%s-%s" % (1, none) | "%(a)s" % {"a": 1} | "%05d|%-5d|%+d" % (42, 42, 42) | "%x %X %o %e %g" % (255, 255, 8, 1234.5, 0.0001) | "%r" % "it's" | "%5s|%-5s|%.2s" % ("a", "b", "cde") | "%c%c" % ("x", 65)
"{} {}".format(1, "a") | "{1} {0}".format(1, 2) | "{a}{{}}".format(a=1) | "{:>5}|{:<5}|{:^5}".format("a", "b", "c") | "{:05d} {:,} {:.2f}".format(42, 1234567, 3.14159) | "{0.a} {0[a]}".format({"a": 1}) | "{!r}".format("x") | "{:x} {:#x} {:b}".format(255, 255, 5) | "{:.1%}".format(0.256) | "{:*^9}".format("mid") | "{:+} {: }".format(5, 5) | "{:e}".format(12345.678) | "{a[b]}".format_map({"a": {"b": 2}})
text.upper() | text.lower() | text.title() | text.capitalize() | text.swapcase() | " x ".strip() | " x ".lstrip() ~ "|" | " x ".rstrip() ~ "|" | "xyabcyx".strip("xy") | "xxa".lstrip("x") | "axx".rstrip("x") | "<think>a".lstrip("<think>")
"a b  c ".split() | "a,b,,c".split(",") | "a,b,c".split(",", 1) | "a,b,c".rsplit(",", 1) | " a b c ".split(none, 1) | " a b c ".rsplit(none, 1) | "a--b--c".split("--")[-1] | "".split(",") | "".split() | "a</think>b</think>c".split("</think>")[-1] | "a,b".split(sep=",", maxsplit=1)
"a\\nb\\r\\nc\\n".splitlines() | "a\\nb\\n".splitlines(true) | ", ".join(["a", "b"]) | "-".join("abc") | "".join(names) | "ab".join([]) | "a-b-c".partition("-") | "a-b-c".rpartition("-") | "abc".partition("x") | "abc".rpartition("x")
"hello".startswith("he") | "hello".startswith(("x", "he")) | "hello".endswith("lo") | "hello".endswith(("a", "b")) | "hello".startswith("l", 2) | "hello".find("l") | "hello".find("z") | "hello".rfind("l") | "hello".index("e") | "hello".count("l") | "日本日".find("日", 1) | "aaaa".count("aa") | "abc".count("")
"a.b.a".replace("a", "x") | "a.b.a".replace("a", "x", 1) | "5".zfill(3) | "-5".zfill(4) | "a".ljust(3) ~ "|" | "a".rjust(3, "*") | "a".center(4, "-") | "ab".center(5, "-") | "pre-x".removeprefix("pre-") | "x.py".removesuffix(".py") | "a\\tb".expandtabs(4)
"abc".isalpha() | "ab1".isalnum() | "12".isdigit() | "1.2".isdigit() | "²".isdigit() | "²".isdecimal() | "½".isnumeric() | " ".isspace() | "".isspace() | "AB".isupper() | "ab".islower() | "Ab Cd".istitle() | "a_1".isidentifier() | "1a".isidentifier() | "abc".isascii() | "é".isascii() | "ÉÀ".isalpha()
[1, 2, 1].count(1) | [1, 2].index(2) | (1, 2, 1).count(1) | (3, 4).index(4) | {"a": 1}.copy() | [1].copy()
nested|tojson | people|tojson(indent=2) | quotes|tojson | wide|tojson(ensure_ascii=true) | quotes|tojson(ensure_ascii=true) | {"b": 1, "a": [1, 2]}|tojson(sort_keys=true) | [1, {"a": 2}]|tojson(separators=(",", ":")) | [1, [2]]|tojson(indent="\\t") | []|tojson(indent=2) | {}|tojson | [1.0, 1e20, 1e-7, none, true]|tojson | {1: 2, none: 3, true: 4, 1.5: 6}|tojson | "</script>"|tojson | (1, 2)|tojson | "é\\u2028"|tojson | [[], {}]|tojson(indent=1) | [1]|tojson(indent=0) | {"a": {"b": []}}|tojson(indent=4, separators=(", ", " = "))
quotes | [quotes] | ["it's", 'say "x"', "both ' and \\"", "tab\\t", "nl\\n", "\\x00\\x7f", "é日\\u200b"] | {"k": "v"} | [none, true, 1.0] | [[1, (2,)], {"a": ()}] | [undefined_thing] | 1.0 | 100000000000000000.0 | 1e100 | -1.5
range(3)|string | range(1, 4) | range(0, 10, 3)|list | range(5, 0, -2)|list | range(0)|list | dict(a=1, b=2) | dict([["x", 1]]) | dict({"a": 1}, b=2) | namespace(a=1).a | namespace(a=1).b is defined | namespace({"q": 2}).q
"a" "b" 'c' | "\\x41\\u00e9\\101\\n\\\\\\'" | 'a\\'b' | "a\\
b" | "\\q" | '"' | "{{ x }}" | "%}" | "#}" | [1, 2,][1] | {"a": 1,}.a | (1 if yes else 2, 3) | [x for_missing] if no else 1
items|attr("count") is callable | nested|attr("a") is defined | namespace(a=5)|attr("a") | ["a", "b"]|map("upper")|first | "abc"|map("upper")|join | {"a": 1}|map("upper")|list
- 3|abs | -items|first | (-3)|abs | 2 + 3|string ~ "x" | 1 + 2 * 3 - 4 / 2 | (1 + 2) * 3 | 7 - 2 - 1 | 2 * 3 % 4 | not 1 == 2 | not (1 in [1]) | 1 if 0 or 2 else 3 | "a" in "abc" and "x" not in "abc" | 1 + 1 ~ 2 * 3
"x"|filesizeformat if no else 1000|filesizeformat | 1|filesizeformat | 123456789|filesizeformat | 2048|filesizeformat(true) | "a b/c?d=é"|urlencode | {"a b": "c&d", "e": 1}|urlencode | {"class": "x<y", "id": none}|xmlattr | {"a": 1}|xmlattr(false)
[1, 2, 3]|sum / 2 | items|sort|join("<") | text|list|length | text.split()|map("first")|join | messages|map(attribute="role")|unique|join(",") | messages|selectattr("role", "eq", "user")|list|length | (messages|last).role | messages[-1].content is none | messages[0]["content"] | messages[2].tool_calls|length | (messages|selectattr("role", "==", "user")|first).content
"ß".casefold() if no else "ok" | 1 is not none | text is defined and text is string | nothing is none or nothing is string | undefined_thing.x is defined if no else "skip" | [items, names]|map("first")|list | {"a": [1, {"b": "c"}]}["a"][1].b | "abc"[1] ~ "abc"[-1:] | [[1, 2], [3, 4]]|map("last")|list | "x".__class__ is defined | {}.__class__ is undefined | [].append is defined | {}.pop is defined
"a" < 1 | none < 1 | 1 + "a" | "a" + 1 | none + 1 | undefined_thing + 1 | undefined_thing.x | nested.x.y | undefined_thing() | undefined_thing[0] | 1 / 0 | 1 // 0 | 1 % 0 | 1.0 / 0 | n() | text.nope() | [].append(1) | {}.pop("a") | {}.update({}) | none.x.y | 1 in 5 | 1 in "abc" | none in "abc"
-"a" | +none | "a" - "b" | [1] + (1,) | {} + {} | [1] * [2] | "a" * 1.5 | items["a"].b | {[1]: 2} | {}.get([]) | "a".split("") | "a".index("z") | [1].index(5) | ", ".join([1]) | 5|length | none|length | none|list | 5|join | none|first | (items|map("upper"))|length | range(1000000) | range(1, 5, 0) | range("a")
"x"|nope | "x" is nope | items|map("nope")|list | items|map|list | 5|map("upper")|list | items|sort(attribute="x.y") | [1, "a"]|sort | "%d" % "x" | "%s %s" % (1,) | "%s" % (1, 2) | "{} {}".format(1) | "{x}".format() | undefined_thing|tojson | range(3)|tojson | [undefined_thing]|tojson | namespace(a=1)|tojson | {(1, 2): 3}|tojson | namespace(_a=1) | "abc"|indent(width=none) | 5|indent | "a"|round | raise_exception("no way") | 1 2 | (1 | [1, | {"a" 1} | a b | 'abc | 1 + | "x"|int(foo=1) | "x".upper(1) | text|upper(1) | "a".startswith(1) | namespace(1) | dict(1) | "a" is divisibleby 2 | none is odd | 1 is in 5
"""

BLOCKS = [
    # Loops.
    "{% for x in items %}{{ x }}{% endfor %}",
    "{% for x in items %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for x in items %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}",
    "{% for x in items %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}",
    "{% for x in items %}{{ loop.cycle('a', 'b') }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{% if loop.changed(x) %}{{ x }}{% endif %}{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}",
    "{% for x in items %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in undefined_thing %}x{% else %}nothing{% endfor %}",
    "{% for x in items if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{% endfor %}",
    "{% for x in items if x > 9 %}{{ x }}{% else %}filtered{% endfor %}",
    "{% for x in items if x > 1 %}{{ loop.length }}{{ loop.revindex }}{{ loop.nextitem }};{% endfor %}",
    "{% for k, v in nested.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in nested|dictsort %}{{ k }};{% endfor %}",
    "{% for k in nested %}{{ k }};{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in ['xy', [1, 2]] %}{{ a }}-{{ b }};{% endfor %}",
    "{% for a, in [[1], [2]] %}{{ a }}{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
    "{% for a, b in [[1]] %}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}",
    "{% for c in 'héé' %}[{{ c }}]{% endfor %}",
    "{% for x in 5 %}{% endfor %}",
    "{% for x in none %}{% endfor %}",
    "{% for x in range(3) %}{% for y in range(x) %}{{ loop.index }}/{{ x }}{{ y }} {% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in range(3) %}{% set outer = loop %}{% for y in range(2) %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in range(3) %}{% for y in range(3) %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% for x in range(2) %}{{ x }}{% break %}{% else %}else{% endfor %}",
    "{% for n in tree recursive %}{{ n.v }}{{ loop.depth }}{% if n.kids %}({{ loop(n.kids) }}){% endif %}{% endfor %}",
    "{% for n in tree recursive %}[{{ n.v }}{{ loop(n.kids) }}]{% else %}-{% endfor %}",
    "{% for x in items %}{{ loop(x) }}{% endfor %}",
    "{% for x in items %}{% set y = x %}{% endfor %}{{ y is defined }}",
    "{% set y = 0 %}{% for x in items %}{% set y = y + x %}{{ y }},{% endfor %}{{ y }}",
    "{% set ns = namespace(y=0) %}{% for x in items %}{% set ns.y = ns.y + x %}{% endfor %}{{ ns.y }}",
    "{% set x = 'out' %}{% for x in items %}{{ x }}{% endfor %}{{ x }}",
    "{% for x in items|reverse %}{{ x }}{{ loop.last }}{% endfor %}",
    "{% for x in items[::-1] %}{{ x }}{% endfor %}",
    "{% for x in items|map('string')|map('upper') %}{{ loop.length }}{{ x }}{% endfor %}",
    "{% set m = items|map('string') %}{{ m|join(',') }};{{ m|join(',') }}",
    "{% for x in items %}{{ x }}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {{ m['content'] }}\n{% endfor %}",
    "{% for g in people|groupby('age') %}{{ g.grouper }}:{{ g.list|length }};{% endfor %}",
    "{% for age, group in people|groupby('age') %}{{ age }}:{{ group|map(attribute='name')|join('+') }};{% endfor %}",
    "{% for loop in items %}{% endfor %}",
    "{% for x in items %}{% set loop = 1 %}{% endfor %}",
    "{% set loop = 5 %}{{ loop }}",
    "{{ loop }}{{ loop is defined }}",
    "{% break %}",
    "{% for x in items %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for x in items %}x{% else %}{% break %}{% endfor %}",
    "{% for x in items %}{% if loop.first %}first{% elif loop.last %}last{% else %}mid{% endif %} {% endfor %}",
    "{% for x in range(3) if loop is defined %}{{ x }}{% endfor %}-",
    "{% set ns = namespace(go=true) %}{% for x in range(6) if ns.go %}{{ x }}{% if x == 2 %}{% set ns.go = false %}{% endif %}{% endfor %}",
    "{% set ns = namespace(last=none) %}{% for m in messages[::-1] %}{% if ns.last is none and m.role == 'user' %}{% set ns.last = loop.revindex0 %}{% endif %}{% endfor %}{{ ns.last }}",
    # If.
    "{% if yes %}a{% elif n %}b{% else %}c{% endif %}{% if no %}a{% elif n %}b{% else %}c{% endif %}{% if no %}a{% elif 0 %}b{% else %}c{% endif %}",
    "{% if '' or [] or {} or 0 or 0.0 or none or () %}t{% else %}f{% endif %}{% if ' ' %}t{% endif %}{% if [0] %}t{% endif %}{% if range(0) %}t{% endif %}",
    "{% if undefined_thing %}t{% else %}f{% endif %}",
    "{% if yes %}{% set a = 1 %}{% endif %}{{ a }}",
    "{% if no %}{% set a = 1 %}{% endif %}{{ a is defined }}",
    "{% set n = 1 %}{{ n }}{% if yes %}{% set n = 2 %}{% endif %}{{ n }}",
    "{% if no %}{% set n = 2 %}{% endif %}{{ n }}",
    "{% if n == 7: %}seven{% endif %}",
    "{% if no %}{{ 'x'|nope }}{% endif %}ok",
    "{% if no %}{{ 'x' is nope }}{% endif %}ok",
    "{% if yes %}{{ 'x'|nope }}{% endif %}ok",
    "{{ 'x'|nope if no else 'fine' }}",
    "{% if no %}{{ raise_exception('never') }}{% endif %}ok",
    "{% if yes %}a",
    "{% if yes %}a{% endfor %}",
    "{% endif %}",
    "{% else %}",
    "{% unknown %}",
    "{% if %}{% endif %}",
    # Set.
    "{% set a = 1 %}{% set b, c = 2, 3 %}{% set d = a, b %}{{ a }}{{ b }}{{ c }}{{ d }}",
    "{% set (a, b) = [1, 2] %}{{ a }}{{ b }}",
    "{% set a, b = 1 %}",
    "{% set a %}x{{ n }}{% set inner = 1 %}{% endset %}[{{ a }}]{{ inner is defined }}",
    "{% set a | upper | replace('X', 'z') %}x{{ n }}{% endset %}{{ a }}",
    "{% set a %}\n  text\n{% endset %}[{{ a }}]",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b %}t{% endset %}{{ ns.a }}{{ ns.b }}",
    "{% set ns = namespace(a=1, b=[]) %}{{ ns }}{% set ns.b = ns.b + [1] %}{{ ns.b }}",
    "{% set ns.a = 1 %}",
    "{% set n.a = 1 %}",
    "{% set nested.a = 1 %}",
    "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "{% set ns = namespace(a=1) %}{{ ns['a'] }}{{ ns.zz }}{{ ns['zz'] is defined }}{{ ns.a is defined }}",
    "{% set ns = namespace() %}{% set ns.x, ns.y = 1, 2 %}{{ ns.x }}{{ ns.y }}",
    "{% set none = 1 %}",
    "{% set 1 = 1 %}",
    "{% set [a] = [1] %}",
    "{% set messages = messages[1:] %}{{ messages|length }}{{ messages[0].role }}",
    "{% set tools = none %}{{ tools is none }}{{ tools is defined }}",
    "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ bos_token is defined }}",
    "{% set x = 1 if yes else 2 %}{{ x }}{% set y = [1,\n 2] %}{{ y }}",
    # Macros.
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }};{{ m(1, 3) }};{{ m(1, c=9) }};{{ m(b=5, a=4) }}",
    "{% macro m(a) %}[{{ a }}{{ a is defined }}]{% endmacro %}{{ m() }}{{ m(none) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
    "{% macro m(a) %}{{ a }}{{ varargs|join('+') }}{% endmacro %}{{ m(1, 2, 3) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(b=1) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(5, **{'b': 6}) }}",
    "{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 'L' %}{{ m() }}",
    "{% macro m() %}{{ n }}{% set n = 1 %}{% endmacro %}{{ m() }}{{ n }}",
    "{% macro m() %}  x  {% endmacro %}{{ m()|trim }}|{{ m()|length }}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}body{{ n }}{% endcall %}",
    "{% macro m() %}{{ caller('a', 2) }}{{ caller('b') }}{% endmacro %}{% call(x, y=1) m() %}<{{ x }}{{ y }}>{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{{ caller }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% call 5 %}{% endcall %}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% macro m() %}x{% endmacro %}{{ m.name }}{{ m is callable }}{% set f = m %}{{ f() }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for x in items %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}",
    "{% macro render(o, d=0) %}{% if o is mapping %}{% for k, v in o.items() %}{{ '  ' * d }}{{ k }}:\n{{ render(v, d + 1) }}{% endfor %}{% else %}{{ '  ' * d }}{{ o }}\n{% endif %}{% endmacro %}{{ render(nested) }}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ items|map('string')|map('length')|list }}{{ [m(1), m(2)]|join }}",
    "{% macro m(x) -%}\n  {{ x }}\n{%- endmacro %}[{{ m('a') }}]",
    # With, filter, generation, print, raw, comments.
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a is defined }}{{ c is defined }}",
    "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}",
    "{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}",
    "{% filter upper %}a{{ text }}{% set z = 1 %}{% endfilter %}{{ z is defined }}",
    "{% filter replace('a', 'b')|title %}banana{% endfilter %}",
    "{% generation %}a{{ n }}{% set g = 1 %}{% endgeneration %}{{ g is defined }}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}",
    "{% for m in items %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "{% print 1, 'a', n %}",
    "{% raw %}{{ x }}{% if %}{# c #}{% endraw %}",
    "{% raw %}\n a\n{% endraw %}\nb",
    "  {%- raw -%}  a  {%- endraw -%}  b",
    "a\n  {% raw %}\n  x\n  {% endraw %}\n  b",
    "{% raw %}{% endraw x %}{% endraw %}",
    "{% raw %}",
    "a{# comment #}b{#- c -#} c {#\nmulti\nline#}\nd",
    "{# unclosed",
    "{#-#}x{#+ c +#}y",
    "a {#- {{ x }} {% if %} -#} b",
    "{{ '{#' }}{{ '#}' }}{{ '{{' }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
    "{% set j = joiner('; ') %}{% for x in items %}{{ j() }}{{ x }}{% endfor %}{% set k = joiner() %}{{ k() }}{{ k() }}",
    "{{ raise_exception('Roles must alternate: ' ~ n) }}",
    "{{ raise_exception() }}",
    "{% autoescape_missing %}{% endautoescape_missing %}",
    "{{ messages[0].content.split('.')[0].strip() | upper ~ '!' }}",
    "{{ (text ~ '!') | length }}{{ text ~ '!' | length }}",
    "{{ {'a': {'b': 1}}.a.b }}{{ {'x': [1, {'y': 2}]}['x'][1]['y'] }}",
    "{{ dict(a=1)|tojson }}{{ dict(a=1).a }}{{ dict(**{'z': 1}) }}",
    "{{ nested.a.b|length }}{{ nested.get('a', {}).get('b', [])|length }}{{ nested.get('q', {}).get('b', [])|length }}",
    "{{ messages|map(attribute='content')|list|length }}{{ messages|map(attribute='nope')|list }}",
    "{{ [1, 2, 3][:2] + [9] }}{{ ([1] + [2])|length }}",
    "{{ 9223372036854775807 }}{{ -9223372036854775807 - 1 }}",
    "{{ n.bit }}{{ none.x }}{{ true.y }}{{ 1.5.z }}",
    "line1\r\nline2\rline3\n{{ n }}\r\n",
    "no newline at the end",
    "one newline\n",
    "two newlines\n\n",
    "{{ n }}\n",
    "{{ n }}\n\n",
    "{% if yes %}\n",
    "{{ 'a' }}{{ }}",
    "{{ n",
    "{% if n",
    "{{ n }",
    "{{ n %}",
    "}} %} #} { % {",
    "{{ [1, 2 }}",
    "{{ (1, 2] }}",
    "{{ ) }}",
    "{{ {'a': '}}'} }}",
    "{{ 'unclosed }}",
    "{{ a ? b }}",
    "{{ n.1a }}",
    "{{ n. }}",
    "{{ items.0 }}{{ items.2 }}{{ items.9 }}",
    "{{ f(1, *[2], a=3) }}",
    "{{ f(a=1, 2) }}",
    "{{ f(a=1, a=2) }}",
    "{{ x is y is z }}",
    "{{ 1 is number is true }}",
    "{{ x y }}",
    "{{ not }}",
    "{{ items[1:2:3:4] }}",
    "{{ nothing[1:] }}",
    "{{ undefined_thing[1:] }}",
    "{{ items['a':] }}",
    "{{ items[::0] }}",
    "{{ nested[1:2] }}",
    "{{ '\\U0001F600' }}",
    "{{ '\\x4' }}",
]

# White-space control: every mark on either side, with line breaks and spaces around the tag.
for left in ("", "-", "+"):
    for right in ("", "-", "+"):
        BLOCKS.append("a \n  {%" + left + " set x = 1 " + right + "%}  \n  b {%" + left + " if yes " + right + "%} \n c\n{%" + left + " endif " + right + "%}\n\n d")
        BLOCKS.append(" \t{#" + left + " c " + right + "#} \n  x {#" + left + " c " + right + "#}\n  y")
        BLOCKS.append("\n\n  {%" + left + " set z " + right + "%}\n  v \n  {%" + left + " endset " + right + "%}\n[{{ z }}]")
        BLOCKS.append("p\n  {%" + left + " raw %}\n r {{ }} \n  {%" + left + " endraw " + right + "%}\n q")
    BLOCKS.append("a \n {{" + left + " n }} \n b {{" + left + " n -}} \n c\n  {{" + left + " n }}")
    BLOCKS.append("x\n\t{%" + left + " for i in [1, 2] %}\n\t  {{ i }}\n\t{%" + left + " endfor %}\ny")
    BLOCKS.append("{%" + left + " if yes %}  {%" + left + " if yes %}\n  a{%" + left + " endif %}\n{%" + left + " endif %}  end")
BLOCKS += [
    "  {% if yes %}  {% endif %}  ",
    "\u00a0 {% if yes %}a{% endif %}",
    "a{% if yes %}\n\n\nb{% endif %}",
    "a\n   {{ n }}{% if yes %}   x{% endif %}",
    "   {% set a = 1 %}   {% set b = 2 %}\n   {{ a }}",
    "{{ n -}}   \n   {% if yes %}x{% endif %}",
    "{% if yes -%}   x   {%- endif %}   y",
    "\n{%- if yes %}x{% endif -%}\n",
    "  {#- c #}  {% set a = 1 -%}  x",
    "{{- '  a  ' -}}  b  {{- '  c  ' }}",
    "{{-1}}{{ -1 }}{{ - 1 }}{{--1}}",
    "{{ '\n' }}  {% if yes %}x{% endif %}",
    "a\n  {%+ if yes %}x{% endif %}",
    "a\n  {% if yes +%}\nx{% endif %}",
    "{%- for m in messages %}\n    {%- if m.role == 'user' %}\n        {{- '<|user|>' + (m.content or '') }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|assistant|>' }}\n{%- endif %}\n",
]


def split_expressions():
    """The expressions stand between ' | ' with blanks around; a filter's bar has none."""
    for line in EXPRESSIONS.strip().replace("\\\nb", "\\\x00b").split("\n"):
        for expression in line.split(" | "):
            yield expression.replace("\\\x00b", "\\\nb").strip()


def render(source, context):
    try:
        return compile_template(source).render(**{**DEFAULTS, **json.loads(json.dumps(context))})
    except Exception:  # whatever it raises, the template has no text
        return None


def main():
    templates = ["{{ " + expression + " }}" for expression in split_expressions()] + BLOCKS
    cases = []
    for source in templates:
        text = render(source, CONTEXT)
        cases.append({"template": source, "error": True} if text is None else {"template": source, "text": text})
    addresses = [case for case in cases if " at 0x" in case.get("text", "")]
    assert not addresses, f"an object's address is printed: {addresses}"
    assert len({case["template"] for case in cases}) == len(cases), "a case stands there twice"
    if "--check" in sys.argv:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        for case in cases:
            try:
                text = _compile_jinja_template(case["template"]).render(**{**DEFAULTS, **CONTEXT})
            except Exception:
                text = None
            assert text == case.get("text"), case
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "cases.json"), "w", encoding="utf-8") as out:
        lines = ",\n".join(json.dumps(case) for case in cases)
        out.write('{\n"context": ' + json.dumps(CONTEXT) + ',\n"cases": [\n' + lines + "\n]\n}\n")
    errors = sum("error" in case for case in cases)
    print(f"{len(cases)} cases, {errors} of them errors")


if __name__ == "__main__":
    main()
