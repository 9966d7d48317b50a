"""Known violations, with their reasons."""

import re

KNOWN: dict[str, str] = {}
"""By a regular expression over the kind of violation (see `kind_of`): the reason."""

_VARIABLE = re.compile(r"svc[0-9a-f]{11}|\d+(\.\d+){3}|\b[ab]\d\b|\b\d+\b")


def kind_of(violation: str) -> str:
    """Return the violation without names and numbers."""
    return _VARIABLE.sub("_", violation)


def reason_of(violation: str) -> str:
    """Return why the violation is known, or an empty text if it is not."""
    kind = kind_of(violation)
    return next((reason for pattern, reason in KNOWN.items() if re.search(pattern, kind)), "")
