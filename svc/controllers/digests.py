"""Digests of JSON, which tables have in place of the objects."""

import hashlib
from typing import Any

import orjson


def digest(content: Any, size: int = 16) -> bytes:
    """Return the digest of a JSON value, with so many bytes. The order of the fields does not matter."""
    return hashlib.blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=size).digest()
