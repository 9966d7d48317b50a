"""Rules that checks of documents consist of. Each yields the errors of a value at a path."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from svc.model.field_errors import MISSING, FieldError, json_kind

Found = Iterator[FieldError]
Rule = Callable[[str, Any], Found]


def lines(found: Iterable[FieldError]) -> Iterator[str]:
    """Return each error with its fix."""
    return (error.line for error in found)


def fields(known: dict[str, Rule], where: str, value: Any, *, open_ended: bool = False, required: Sequence[str] = ()) -> Found:
    """Yield the errors of an object with these fields; null counts as missing. With `open_ended`, it may have others."""
    yield from typed(dict)(where, value)
    given = (
        {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else dict.fromkeys(required)
    )
    for name in required:
        if name not in given:
            yield FieldError(f"{where}.{name}", MISSING, "is missing", "add it")
    for name, item in given.items():
        if rule := known.get(name):
            yield from rule(f"{where}.{name}", item) if item is not None else ()
        elif not open_ended:
            yield FieldError(f"{where}.{name}", item, "is not known", f"leave it out, or use one of {', '.join(known)}")


def typed(kind: type) -> Rule:
    """Return the rule for values of a type."""

    def rule(where: str, value: Any) -> Found:
        if type(value) is not kind:
            yield FieldError(where, value, f"is {json_kind(value)}", f"give {json_kind(kind())}")

    return rule


def items(rule: Rule) -> Rule:
    """Return the rule for arrays of items that have a rule."""

    def each(where: str, value: Any) -> Found:
        yield from typed(list)(where, value)
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from rule(f"{where}[{index}]", item)

    return each


def one_of(words: Sequence[str | int]) -> Rule:
    """Return the rule for one of some words."""

    def rule(where: str, value: Any) -> Found:
        if value not in words:
            listed = ", ".join(str(word) or repr(word) for word in words)
            yield FieldError(where, value, "is not known", f"give one of {listed}")

    return rule


def texts(where: str, value: Any) -> Found:
    """Yield the errors of an object whose values are strings."""
    yield from typed(dict)(where, value)
    for name, text in value.items() if isinstance(value, dict) else ():
        yield from typed(str)(f"{where}.{name}", text)
