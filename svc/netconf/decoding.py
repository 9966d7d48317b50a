"""Decoding of a network configuration into a JSON object."""

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeVar

import orjson

from svc.model.errors import CallerError, Code
from svc.model.field_errors import json_kind

Json = dict[str, Any]
Answer = TypeVar("Answer")

MAX_BYTES: Final = 1 << 20
REMEMBERED_BYTES: Final = 8 << 10  # what is found in a longer one is not kept
_LONG_NUMBER: Final = re.compile(rb"\d{19}")


def decode(data: bytes, file: str = "") -> Json:
    """Return the JSON object, of at most 1 MiB; the last of equal keys counts. Raise CallerError that names the source."""
    subject, place = (f"network configuration {file!r}", "") if file else ("network configuration", "stdin: ")
    if len(data) > MAX_BYTES:
        raise CallerError(f"{subject} has {len(data)} bytes", details=f"{place}give at most {MAX_BYTES} bytes")
    if not data.strip():
        raise _undecodable(f"{subject} is empty", place)
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _undecodable(f"{subject} is not JSON: {error}", place) from None
    if not isinstance(found, dict):
        raise _undecodable(f"{subject} is {json_kind(found)}, not an object", place)
    return found


def declared_version(data: bytes) -> Any:
    """Return the member `cniVersion`, or None. Raise CallerError if the bytes are not a JSON object."""
    return (_declared if len(data) <= REMEMBERED_BYTES else _declared.__wrapped__)(data)


@lru_cache(maxsize=64)
def _declared(data: bytes) -> Any:
    return decode(data).get("cniVersion")


def split_result(data: bytes) -> tuple[bytes, Json | None]:
    """Return the network configuration of a CHECK or DEL without the result of its ADD, and that result if there is one.

    Each container has another result, and the rest is the same for all, so it is parsed once.
    """
    if b'"prevResult"' not in data or _LONG_NUMBER.search(data):
        return data, None
    try:
        found = decode(data)
        result = found.pop("prevResult", None)
        return (orjson.dumps(found), result) if isinstance(result, dict) else (data, None)
    except (CallerError, orjson.JSONEncodeError):  # the second: more levels than orjson writes, which it reads
        return data, None


def check_keys(data: bytes, file: str) -> None:
    """Raise CallerError if an object in a file that `decode` accepts has a duplicate key."""

    def check(pairs: list[tuple[str, Any]]) -> Json:
        found: Json = {}
        for key, value in pairs:
            if key in found:
                msg = f"network configuration {file!r} has the key {key!r} twice in an object"
                raise CallerError(msg, details="keep one of them", code=Code.DECODING_FAILURE)
            found[key] = value
        return found

    try:
        json.loads(data, object_pairs_hook=check)
    except RecursionError:
        raise CallerError(
            f"network configuration {file!r} is nested too deeply",
            details="give it with fewer levels of objects and arrays",
            code=Code.DECODING_FAILURE,
        ) from None


def read_exact(raw: Json, data: bytes, read: Callable[[Json], Answer]) -> Answer:
    """Return the result of `read` for an object that was decoded from `data`.

    If `read` refuses the object, repeat it with exact numbers: orjson changes whole numbers that do not fit in 64 bits.
    """
    try:
        return read(raw)
    except CallerError:
        if not _LONG_NUMBER.search(data):
            raise
        try:
            exact = json.loads(data)
        except RecursionError:
            exact = raw
        return read(exact)


def _undecodable(msg: str, place: str) -> CallerError:
    details = f"{place}give the network configuration as one JSON object"
    return CallerError(msg, details=details, code=Code.DECODING_FAILURE)
