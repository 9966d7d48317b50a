"""Selectors: a table of expressions, and a comparison with a simple evaluator."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.model.selector import MAX_DEPTH, SelectorError, parse

LABELS = {"zone": "a", "app.kubernetes.io/name": "web-1", "in": "x", "empty": ""}

MEANING = [
    ("", True),
    ("  ", True),
    ("all()", True),
    ("global()", True),
    ("has(zone)", True),
    ("has( zone )", True),
    ("has(rack)", False),
    ("!has(rack)", True),
    ("! ! has(zone)", True),
    ("zone == 'a'", True),
    ('zone=="a"', True),
    ("zone == 'b'", False),
    ("rack == 'a'", False),
    ("zone != 'b'", True),
    ("zone != 'a'", False),
    ("rack != 'a'", True),
    ("zone in {'b', 'a'}", True),
    ("zone in{'b',}", False),
    ("zone in {}", False),
    ("rack in {'a'}", False),
    ("zone not in {'a'}", False),
    ("zone not   in {}", True),
    ("rack not in {'a'}", True),
    ("app.kubernetes.io/name contains 'eb-'", True),
    ("zone contains 'b'", False),
    ("rack contains ''", False),
    ("app.kubernetes.io/name starts with 'web'", True),
    ("app.kubernetes.io/name starts with 'eb'", False),
    ("rack starts with ''", False),
    ("app.kubernetes.io/name ends with '-1'", True),
    ("app.kubernetes.io/name ends with 'web'", False),
    ("empty == ''", True),
    ("in == 'x' && in in {'x'}", True),
    ("has(zone) && has(rack)", False),
    ("has(zone) || has(rack)", True),
    ("has(rack) && has(rack) || has(zone)", True),
    ("has(rack) && (has(rack) || has(zone))", False),
    ("!(has(zone) && has(rack))", True),
    ("!zone == 'b'", True),
    ("not in {'a'}", False),
    ("not not in {'a'}", True),
    ("starts starts with 'a'", False),
    ("zone notin{'b'}", True),
    ("zone not in{'a'}", False),
    ("zone notin {'a'}", False),
    ("zone startswith'a'", True),
    ("zone startswith 'b'", False),
    ("zone starts   with'a'", True),
    ("zone endswith'a'", True),
    ("zone ends with'b'", False),
    ("zone contains'a'", True),
    ("notin notin{'a'}", True),
]

CANONICAL = [
    ("", "all()"),
    ("zone=='a'", 'zone == "a"'),
    ("zone == '\"'", "zone == '\"'"),
    ("zone in {'b','a','b'}", 'zone in {"a", "b"}'),
    ("((has(a)))&&(has(b)&&has(c))", "has(a) && has(b) && has(c)"),
    ("has(a) && (has(b) || has(c))", "has(a) && (has(b) || has(c))"),
    ("(has(a) && has(b)) || has(c)", "has(a) && has(b) || has(c)"),
    ("!(zone == 'a')", '!(zone == "a")'),
    ("a starts  with 'x'", 'a starts with "x"'),
    ("a startswith'x'", 'a starts with "x"'),
    ("a notin{'x'}", 'a not in {"x"}'),
]

WRONG = [
    ("zone", 5, "contains"),
    ("zone ==", 8, "quoted"),
    ("zone == a", 9, "quoted"),
    ("zone == 'a", 9, "quoted"),
    ("(zone == 'a'", 13, ")"),
    ("zone == 'a')", 12, "the end"),
    ("zone == 'a' rack == 'b'", 13, "&&"),
    ("&& has(a)", 1, "label"),
    ("has(a) &&", 10, "label"),
    ("has()", 5, "label"),
    ("has('a')", 5, "label"),
    ("all(a)", 5, ")"),
    ("any()", 5, "has("),
    ("zone in ('a')", 9, "{"),
    ("zone in {'a' 'b'}", 14, "}"),
    ("zone in {a}", 10, "quoted"),
    ("zone not == 'a'", 10, "in"),
    ("zone = 'a'", 6, "=="),
    ("zone starts 'a'", 13, "with"),
    ("zone startswiths 'a'", 6, "starts with"),
    ("zöne == 'a'", 2, "=="),
    ("(" * 5000, MAX_DEPTH + 1, "levels"),
    ("!" * 5000 + "all()", MAX_DEPTH + 1, "levels"),
]


@pytest.mark.parametrize(("text", "expected"), MEANING)
def test_selectors_match_labels(text: str, expected: bool) -> None:
    """A missing label satisfies only `!=` and `not in`."""
    assert parse(text).matches(LABELS) is expected


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_selectors_have_a_canonical_text(text: str, canonical: str) -> None:
    """It has only the necessary parentheses."""
    assert str(parse(text)) == canonical
    assert parse(text) == parse(canonical)


@pytest.mark.parametrize(("text", "position", "expected"), WRONG, ids=range(len(WRONG)))
def test_error_has_the_position_and_what_is_expected(text: str, position: int, expected: str) -> None:
    """The position is that of a character, counted from 1."""
    with pytest.raises(SelectorError) as caught:
        parse(text)
    assert f"at character {position}, " in str(caught.value)
    assert expected in str(caught.value).partition(": expected ")[2]


def test_global_is_found_at_any_depth() -> None:
    """Pools refuse selectors with it."""
    assert parse("has(a) && !(zone == 'b' || global())").uses_global
    assert not parse("zone == 'global()'").uses_global


Tree = tuple[Any, ...]

names = st.sampled_from(["zone", "rack", "in", "has", "not", "a.b/c-d_e"])
texts = st.text(st.characters(exclude_characters="'\"", codec="utf-8"), max_size=3) | st.sampled_from(["a", "ab", "b"])
leaves: st.SearchStrategy[Tree] = st.one_of(
    st.just(("all",)),
    st.tuples(st.just("has"), names),
    st.tuples(st.sampled_from(["==", "!=", "contains", "starts with", "ends with"]), names, texts),
    st.tuples(st.sampled_from(["in", "not in"]), names, st.lists(texts, max_size=3)),
)
trees: st.SearchStrategy[Tree] = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(st.just("!"), inner) | st.tuples(st.sampled_from(["&&", "||"]), st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=8,
)


def evaluate(tree: Tree, labels: Mapping[str, str]) -> bool:
    """Return whether the expression matches, in the simplest way."""
    match tree:
        case ("all",):
            return True
        case ("has", name):
            return name in labels
        case ("!", inner):
            return not evaluate(inner, labels)
        case ("&&", parts):
            return all(evaluate(part, labels) for part in parts)
        case ("||", parts):
            return any(evaluate(part, labels) for part in parts)
        case (("!=" | "not in"), name, _) if name not in labels:
            return True
        case (_, name, _) if name not in labels:
            return False
        case ("==", name, text):
            return bool(labels[name] == text)
        case ("!=", name, text):
            return bool(labels[name] != text)
        case ("contains", name, text):
            return text in labels[name]
        case ("starts with", name, text):
            return bool(labels[name].startswith(text))
        case ("ends with", name, text):
            return bool(labels[name].endswith(text))
        case ("in", name, choices):
            return labels[name] in choices
        case ("not in", name, choices):
            return labels[name] not in choices
    raise AssertionError(tree)


def text_of(tree: Tree) -> str:
    """Return the text of the expression with all optional parentheses."""
    match tree:
        case ("all",):
            return "all()"
        case ("has", name):
            return f"has({name})"
        case ("!", inner):
            return f"!({text_of(inner)})"
        case (("&&" | "||") as sign, list(parts)):
            return str(sign).join(f"({text_of(part)})" for part in parts)
        case (sign, name, list(choices)):
            return f"{name} {sign} {{{','.join(repr_of(choice) for choice in choices)}}}"
        case (sign, name, text):
            return f"{name} {sign} {repr_of(text)}"
    raise AssertionError(tree)


def repr_of(text: str) -> str:
    return f"'{text}'"


@given(trees, st.dictionaries(names, texts))
def test_selectors_agree_with_the_simple_evaluator(tree: Tree, labels: dict[str, str]) -> None:
    """The text and its canonical form match the same labels."""
    selector = parse(text_of(tree))
    assert selector.matches(labels) is evaluate(tree, labels)
    again = parse(str(selector))
    assert str(again) == str(selector)
    assert again.matches(labels) is selector.matches(labels)


@given(st.text(max_size=40) | st.text("()!&|={}'\", abhnsitwx", max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """No exception but SelectorError is raised."""
    try:
        parse(text)
    except SelectorError as error:
        assert "character" in str(error)  # noqa: PT017 both outcomes are valid
