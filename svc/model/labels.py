"""Validation of labels by the rules of Kubernetes, in every datastore, because selectors must be able to name them."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from svc.model.field_errors import FieldError
from svc.model.resource import MAX_NAME

_WORD: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_RULE: Final = "up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last"
_FIELD: Final = "metadata.labels"


def label_faults(labels: Mapping[str, object]) -> Iterator[FieldError]:
    """Yield a field error for each invalid key, and for each invalid value that is a string."""
    for key, value in labels.items():
        if not _is_key(key):
            yield FieldError(f"{_FIELD} key", key, "is not a label key", f"give [DOMAIN/]NAME, NAME of {_RULE}")
        elif isinstance(value, str) and value and not _WORD.fullmatch(value):
            yield FieldError(f"{_FIELD}.{key}", value, "is not a label value", f"give {_RULE}; or nothing")


def _is_key(key: str) -> bool:
    prefix, slash, word = key.rpartition("/")
    if not _WORD.fullmatch(word):
        return False
    return not slash or bool(len(prefix) <= MAX_NAME and _PREFIX.fullmatch(prefix))
