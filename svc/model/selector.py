"""Parser for selectors: conditions on the labels of a node or a namespace.

    either     = both { "||" both }
    both       = term { "&&" term }
    term       = "!" term | "(" either ")" | "all()" | "global()" | "has(" LABEL ")" | comparison
    comparison = LABEL ( "==" | "!=" | "contains" | "starts with" | "ends with" ) STRING
               | LABEL [ "not" ] "in" "{" [ STRING { "," STRING } ] "}"

A missing label satisfies `!=` and `not in`, but no other comparison. Strings have single or double quotes and no escapes. The
blank in `starts with`, `ends with` and `not in` is optional. An empty selector is `all()`.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from svc.values import dataclass, field

MAX_DEPTH = 50  # of parentheses and negations

Labels = Mapping[str, str]

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"[^"]*"|'[^']*')|(?P<sign>==|!=|&&|\|\||[!(){},])|(?P<word>[\w./-]+)|(?P<end>\Z)|(?P<other>.))""",
    re.ASCII,
)
_EITHER, _BOTH, _COMPARISON, _TERM = range(4)  # how tightly an expression binds

_COMPARISONS: dict[str, Callable[[str | None, str], bool]] = {
    "==": lambda value, text: value == text,
    "!=": lambda value, text: value != text,
    "contains": lambda value, text: value is not None and text in value,
    "starts with": lambda value, text: value is not None and value.startswith(text),
    "ends with": lambda value, text: value is not None and value.endswith(text),
}
_MEMBERSHIPS = ("in", "not in")


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class SelectorError(ValueError):
    """An invalid selector: what was found where, and what was expected."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed selector. Its text is canonical, and selectors with the same text are equal."""

    text: str
    matches: Callable[[Labels], bool] = field(compare=False, repr=False)
    binding: int = field(default=_TERM, compare=False, repr=False)
    uses_global: bool = field(default=False, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=1024)
def parse(text: str) -> Selector:
    """Parse a selector; empty text selects everything. Raise SelectorError if it is invalid."""
    return _Parser(text).parse() if text.strip() else ALL


def _everything(_: Labels) -> bool:
    return True


ALL = Selector("all()", _everything)
_GLOBAL = Selector("global()", _everything, uses_global=True)


def _join(parts: list[Selector], sign: str, binding: int, rule: Callable[..., bool]) -> Selector:
    """Combine selectors; `rule` is any() or all()."""
    if len(parts) == 1:
        return parts[0]
    tests = tuple(part.matches for part in parts)
    text = f" {sign} ".join(_bound(part, binding) for part in parts)
    uses_global = any(part.uses_global for part in parts)
    return Selector(text, lambda labels: rule(test(labels) for test in tests), binding, uses_global)


def _negate(part: Selector) -> Selector:
    test = part.matches
    return Selector(f"!{_bound(part, _TERM)}", lambda labels: not test(labels), uses_global=part.uses_global)


def _bound(part: Selector, binding: int) -> str:
    return part.text if part.binding >= binding else f"({part.text})"


def _has(label: str) -> Selector:
    return Selector(f"has({label})", lambda labels: label in labels)


def _compare(label: str, name: str, text: str) -> Selector:
    test = _COMPARISONS[name]
    return Selector(f"{label} {name} {_quote(text)}", lambda labels: test(labels.get(label), text), _COMPARISON)


def _one_of(label: str, sign: str, texts: list[str]) -> Selector:
    allowed, wanted = frozenset(texts), sign == "in"
    listed = ", ".join(_quote(text) for text in sorted(allowed))
    return Selector(f"{label} {sign} {{{listed}}}", lambda labels: (labels.get(label) in allowed) is wanted, _COMPARISON)


def _quote(text: str) -> str:
    return f"'{text}'" if '"' in text else f'"{text}"'


class _Parser:
    """A recursive descent parser for one text, with a method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        found = _TOKEN.finditer(text)
        self._tokens = deque(_Token(kind := str(match.lastgroup), match[kind], match.start(kind)) for match in found)
        self._depth = 0

    def parse(self) -> Selector:
        selector = self._either()
        if self._tokens[0].kind != "end":
            raise self._error("&& or || or the end")
        return selector

    def _error(self, expected: str) -> SelectorError:
        token = self._tokens[0]
        there = repr(token.text) if token.text else "the end"
        return SelectorError(f"selector {self._text!r} is wrong at character {token.start + 1}, {there}: expected {expected}")

    def _skip(self, text: str) -> bool:
        """Skip the next token if it is `text`. Return True if it was skipped."""
        if self._tokens[0].text != text:
            return False
        self._tokens.popleft()
        return True

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            raise self._error(text)

    def _take(self, kind: str, expected: str) -> str:
        if self._tokens[0].kind != kind:
            raise self._error(expected)
        return self._tokens.popleft().text

    def _either(self) -> Selector:
        parts = [self._both()]
        while self._skip("||"):
            parts.append(self._both())
        return _join(parts, "||", _EITHER, any)

    def _both(self) -> Selector:
        parts = [self._term()]
        while self._skip("&&"):
            parts.append(self._term())
        return _join(parts, "&&", _BOTH, all)

    def _term(self) -> Selector:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"at most {MAX_DEPTH} levels of parentheses and !")
        selector = self._negation_or_group()
        self._depth -= 1
        return selector

    def _negation_or_group(self) -> Selector:
        if self._skip("!"):
            return _negate(self._term())
        if self._skip("("):
            selector = self._either()
            self._expect(")")
            return selector
        word = self._take("word", "a label, all(), has(LABEL), ! or (")
        return self._function(word) if self._skip("(") else self._comparison(word)

    def _function(self, name: str) -> Selector:
        if name not in ("all", "global", "has"):
            raise self._error(f"all(, global( or has( before it, not {name}(")
        selector = _has(self._take("word", "a label")) if name == "has" else ALL if name == "all" else _GLOBAL
        self._expect(")")
        return selector

    def _comparison(self, label: str) -> Selector:
        sign = self._operator()
        return _one_of(label, sign, self._texts()) if sign in _MEMBERSHIPS else _compare(label, sign, self._string())

    def _operator(self) -> str:
        """Return the operator. The blank between its words is optional."""
        for sign in (*_COMPARISONS, *_MEMBERSHIPS):
            first, _, second = sign.partition(" ")
            if self._skip(first + second):
                return sign
            if second and self._skip(first):
                self._expect(second)
                return sign
        raise self._error("==, !=, in, not in, contains, starts with or ends with")

    def _texts(self) -> list[str]:
        self._expect("{")
        texts: list[str] = []
        while not self._skip("}"):
            texts.append(self._string())
            if not self._skip(","):
                self._expect("}")
                break
        return texts

    def _string(self) -> str:
        return self._take("string", 'a quoted text, such as "value"')[1:-1]
