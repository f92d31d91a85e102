"""YAML within bounds: a bad file is one line that names file, line and remedy."""

import random
import re
from itertools import pairwise

import pytest

from fintrader import config
from fintrader.config import list_shipped_configs, read_yaml
from fintrader.errors import ConfigError
from fintrader.yaml_text import MOST_BYTES, MOST_LEVELS, MOST_VALUES, parse_yaml
from tests.engines.runs import fintrader
from tests.test_system import SOURCES


def laughs(first, row):
    """Nine rows, each of which repeats the one before it ten times."""
    rows = []
    for old, new in pairwise("abcdefghij"):
        repeated = ", ".join([f"*{old}"] * 10)
        rows.append(f"{new}: &{new} {row % repeated}")
    return "\n".join([f"a: &a {first}", *rows])


TAG = r"or leave out its tag"
BAD = [
    ("{" * 3000, r", line 1: nested more than 50 levels deep; write it with fewer levels"),
    ("[\n" * 3000, r", line 51: nested more than 50"),
    ("- " * 3000, r", line 1: nested more than 50"),
    ("? " * 3000, r", line 1: nested more than 50"),
    ("a: 1\nb: !!timestamp 99", rf", line 2: 99 is no date; correct the value, {TAG}"),
    ("a: !!int ''", rf", line 1: an empty text is no whole number; correct the value, {TAG}"),
    ("a: !!int x", rf", line 1: x is no whole number; .*{TAG}"),
    ("a: !!float x", rf", line 1: x is no number; .*{TAG}"),
    ("a: !!bool x", rf", line 1: x is no value of !!bool; .*{TAG}"),
    ("a: 2020-02-30", r", line 1: 2020-02-30 is no date; correct it: there is no such date"),
    ("a: 2020-01-01T99:00:00", r", line 1: .* is no date"),
    ("a: 2020-01-01T00:00:00+99:99", r", line 1: .* is no date"),
    ("\n\na: " + "9" * 5000, r", line 3: 9+\.\.\. is no whole number"),
    ("a: 1" + ":1" * 200_000, r", line 1: .* is no whole number"),
    ("a: " + "9" * 5000 + ".0", r", line 1: .* is no number"),
    ('a: "\\ud800"', r", line 1: \\ud800 is no text; correct the value, or quote it"),
    ("a: &x [*x]", r", line 1: \*x is inside the value that it repeats; write the value out"),
    ("a: &x {b: [*x]}", r", line 1: \*x is inside"),
    (laughs("[x, x, x, x, x, x, x, x, x, x]", "[%s]"), r", line 5: more than 100000 values"),
    (laughs("{x: 1}", "{<<: [%s]}"), r", line 6: more than 100000 values"),
    ("a: &a " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 20 + "*a" + "]" * 20, r", line 2: nested"),
    ("a: *b", r": not valid YAML at line 1, column 4: found undefined alias"),
    ("a: [1", r": not valid YAML at line 1, column 6: .*; correct it there, or quote the text"),
    ("a: !!python/object:os.system x", r": not valid YAML at line 1, column 4: could not"),
    ("? [a]\n: 1", r": not valid YAML at line 1, column 3: found unhashable key"),
    ("a: 1\nb: \x01", r": not valid YAML at line 2: it holds a control character; remove it"),
    ("--- 1\n--- 2", r": not valid YAML at line 2"),
    ("x" * (MOST_BYTES + 1), r": more than the 1048576 bytes .*; leave values out"),
]


@pytest.mark.parametrize(("text", "expected"), BAD, ids=[repr(text[:20]) for text, _ in BAD])
def test_a_bad_text_is_one_line_with_its_place(tmp_path, text, expected):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    said = str(caught.value)
    assert re.match(re.escape(str(path)) + expected, said), said
    assert "\n" not in said
    assert len(said) < len(str(path)) + 250


def test_the_command_prints_it_without_a_traceback(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("{" * 3000)
    done = fintrader("run", str(path))
    assert done.status == 2
    assert done.err.startswith(f"fintrader: {path}, line ")
    assert done.err.count("\n") == 1


def test_an_option_that_is_yaml_has_the_same_bounds():
    done = fintrader("run", "quickstart", "--tournament.search", "{" * 3000)
    assert done.status == 2
    assert done.err.startswith("fintrader: --tournament.search, line 1: nested more than")


def test_what_lies_within_the_bounds_is_read():
    deep = "[" * (MOST_LEVELS - 1) + "x" + "]" * (MOST_LEVELS - 1)
    value = parse_yaml(deep, "deep")
    for _ in range(MOST_LEVELS - 1):
        (value,) = value
    assert value == "x"
    shared = "base: &base {x: 1, y: 2}\none: {<<: *base, y: 3}\ntwo: [*base, *base]"
    base = {"x": 1, "y": 2}
    expected = {"base": base, "one": {"x": 1, "y": 3}, "two": [base, base]}
    assert parse_yaml(shared, "shared") == expected
    assert len(parse_yaml("- 1\n" * 20_000, "long")) == 20_000
    assert MOST_VALUES > 20_000
    for path in list_shipped_configs().values():
        assert read_yaml(path)


def test_a_file_without_end_is_not_read_to_its_end():
    with pytest.raises(ConfigError, match=r"/dev/zero: more than the 1048576 bytes"):
        read_yaml("/dev/zero")


def test_a_message_shows_no_credentials():
    for text in ("a: !!int https://user:s3cr3t@host/x", "a: *https://user:s3cr3t@host/x"):
        with pytest.raises(ConfigError) as caught:
            parse_yaml(text, "bad.yaml")
        assert "s3cr3t" not in str(caught.value)


def test_all_yaml_is_read_here():
    """A second door would have no bounds."""
    reads = re.compile(r"yaml\.(\w*load\w*|compose|parse|scan)\b|from yaml")
    for path in SOURCES:
        if path.name != "yaml_text.py":
            assert not reads.search(path.read_text()), path


PIECES = ("{", "}", "[", "]", ": ", "- ", "\n", "  ", "&a ", "*a", "<<: ", "!!timestamp ", "!!int ")
PIECES += ("!!bool ", "!!float ", "!!binary ", "!!set ", "!!omap ", "!!null ", "99", "2020-02-30")
PIECES += (".inf", "1e999", "1:99:99", "~", "null", "=", "? ", "|\n", "> \n", "'", '"', '"\\ud800"')
PIECES += ("\x00", "\x85", "\u2028", "é", "%", "@", "`", "#", "---\n", "1" * 4400, "{" * 60)
PIECES += ("&a [*a]", "3: x", "null: 1", "2020-01-01: x", "[a]: 1", "? {a: b}\n: c")
PIECES += ("0001-01-01T00:00:00+23:59",)


def mutate(text, draw):
    """A configuration with a few things put in, taken out or in another order."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        kind = draw.randrange(4)
        place = draw.randrange(len(text) + 1)
        piece = draw.choice(PIECES)
        lines = text.split("\n")
        line = draw.randrange(len(lines))
        name, colon, _ = lines[line].partition(":")
        if kind == 0:
            text = text[:place] + piece + text[place:]
        elif kind == 1:
            text = text[:place] + text[place + draw.randrange(20) :]
        elif kind == 2 and colon:
            lines[line] = f"{name}: {piece}"
            text = "\n".join(lines)
        elif kind == 3:
            draw.shuffle(lines)
            text = "\n".join(lines)
    return text


def test_no_mutated_configuration_gets_a_traceback(tmp_path):
    from fintrader.pipeline.config import load_config

    draw = random.Random(1)
    originals = [path.read_text() for path in list_shipped_configs().values()]
    path = tmp_path / "bad.yaml"
    messages = []
    for _ in range(150):
        path.write_text(mutate(draw.choice(originals), draw))
        try:
            load_config(path)
        except ConfigError as error:
            messages.append(str(error))
    assert len(messages) > 50
    for message in messages:
        assert message.startswith(str(path))
        assert "\n" not in message


def test_the_bounds_hold_before_pydantic_sees_a_value():
    """`validate` and messages recurse as deep as values are nested."""
    nested = parse_yaml("a: " + "[" * (MOST_LEVELS - 2) + "]" * (MOST_LEVELS - 2), "nested")
    with pytest.raises(ConfigError, match="a: unknown setting"):
        config.validate(config.Settings, nested, "nested")
