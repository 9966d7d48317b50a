"""Field errors of an input, collected so that one error lists all of them."""

import re
import reprlib
from collections.abc import Callable
from typing import Any, Final

from svc.model.errors import CallerError, Code
from svc.values import dataclass, field

Finding = tuple[str, str]  # problem and fix
Check = Callable[[Any], Finding | None]

MAX_PROBLEM = 200  # characters
MAX_LISTED = 20  # errors go to events and logs, so they are bounded


@dataclass(frozen=True, slots=True)
class Written:
    """The text and kind of a value that JSON cannot represent, or that is shown as its author wrote it."""

    text: str
    kind: str

    def __repr__(self) -> str:
        return self.text


MISSING: Final = object()  # the value of a field that is missing; `null` is a value
HIDDEN: Final = object()  # placeholder for a value that may be a secret
_KINDS: Final = {
    bool: "a boolean",
    int: "a number",
    float: "a decimal number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


class _Shortened(reprlib.Repr):
    """Repr that redacts user, password and query of URLs."""

    def repr_str(self, text: str, level: int) -> str:
        return super().repr_str(without_query(without_credentials(text)), level)


_CREDENTIALS: Final = re.compile(r"//[^/\s]*@")
_QUERY: Final = re.compile(r"(\w://[^?#]*[?#]).+", re.DOTALL)
_short = _Shortened()
_short.maxstring = _short.maxother = _short.maxlong = 60
_short.maxlevel = 2


def without_credentials(text: str) -> str:
    """Redact user and password of URLs, for errors and logs."""
    return _CREDENTIALS.sub("//...@", text)


def without_query(text: str) -> str:
    """Redact the queries of URLs, which may contain tokens, for errors and logs."""
    return _QUERY.sub(r"\1...", text)


def without_secrets_in_urls(text: str) -> str:
    """Redact users, passwords and queries of URLs that commas separate, for errors and logs."""
    return ",".join(without_query(without_credentials(url)) for url in text.split(","))


def display(value: object) -> str:
    """Return a value as its author wrote it, shortened to about 60 characters."""
    if value is None:
        return "null"
    if value is HIDDEN:
        return "(hidden)"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _short.repr(value)


def json_kind(value: object) -> str:
    """Return the JSON type of a value, with its article."""
    return value.kind if isinstance(value, Written) else _KINDS.get(type(value), "null")


def matching(pattern: str, problem: str, remedy: str) -> Check:
    """Return a check that the pattern matches a whole text."""
    compiled = re.compile(pattern)
    return lambda text: None if compiled.fullmatch(text) else (problem, remedy)


def _bounded(problem: str) -> str:
    """Shorten a problem. Some problems quote their value, which may be as long as the whole input."""
    return problem if len(problem) <= MAX_PROBLEM else f"{problem[: MAX_PROBLEM // 2]}...{problem[-MAX_PROBLEM // 2 :]}"


@dataclass(frozen=True, slots=True)
class FieldError:
    """A field error: field, value, problem and fix."""

    field: str
    value: object
    problem: str
    remedy: str

    @property
    def place(self) -> str:
        return self.field if self.value is MISSING else f"{self.field} = {display(self.value)}"

    @property
    def line(self) -> str:
        """Return the error and its fix."""
        return f"{self}: {self.remedy}"

    def __str__(self) -> str:
        return f"{self.place} {self.problem}"


@dataclass(slots=True)
class FieldErrors:
    """The field errors of one input; `subject` begins the message."""

    subject: str
    code: Code
    found: list[FieldError] = field(default_factory=list)

    def add(self, where: str, value: object, problem: str, remedy: str) -> None:
        self.found.append(FieldError(where, value, _bounded(problem), remedy))

    def check(self, where: str, value: object, finding: Finding | None) -> bool:
        """Add the finding of a check. Return True if the value is valid."""
        if finding:
            self.add(where, value, *finding)
        return not finding

    def missing(self, where: str, remedy: str, problem: str = "is missing") -> None:
        self.found.append(FieldError(where, MISSING, problem, remedy))

    def raise_if_any(self) -> None:
        """Raise CallerError. Its message has the only field error or their number, its details each field and its fix."""
        if not self.found:
            return
        if len(self.found) == 1:
            only = self.found[0]
            error = CallerError(f"{self.subject}: {only}", details=f"{only.place}: {only.remedy}", code=self.code)
        else:
            listed = [each.line for each in self.found[:MAX_LISTED]]
            if len(self.found) > MAX_LISTED:
                listed.append(f"and {len(self.found) - MAX_LISTED} more")
            error = CallerError(f"{self.subject}: {len(self.found)} errors", details="; ".join(listed), code=self.code)
        error.subject, error.errors = self.subject, tuple(each.line for each in self.found)
        raise error
