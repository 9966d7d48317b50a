"""Violations that are known: why they are there. The list is to become empty."""

import re

_LATE_HANDLE = (
    "without transactions, a write that arrives after its release leaves a handle that counts no address of any block"
)

KNOWN: dict[str, str] = {
    r"at rest handle _ counts _ addresses, its blocks differ": _LATE_HANDLE,
}
"""By a regular expression over the kind of violation (see `kind_of`): the reason."""

_VARIABLE = re.compile(r"svc[0-9a-f]{11}|\d+(\.\d+){3}|\b[ab]\d\b|\b\d+\b")


def kind_of(violation: str) -> str:
    """Return the violation without names and numbers."""
    return _VARIABLE.sub("_", violation)


def reason_of(violation: str) -> str:
    """Why the violation is known; empty when it is not."""
    kind = kind_of(violation)
    return next((reason for pattern, reason in KNOWN.items() if re.search(pattern, kind)), "")
