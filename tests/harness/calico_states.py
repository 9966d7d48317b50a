"""States of a datastore as the incumbent left them: read from the fixtures, put into a server, and compared with ours.

What differs from run to run is left out of a comparison or made relative, and nothing else: uids, times, MAC addresses, and
sequence numbers, which count from the time of their block's creation.
"""

import json
import re
from pathlib import Path
from typing import Any

Json = dict[str, Any]

FIXTURES = Path(__file__).parents[1] / "unit" / "fixtures"

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_LONG_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,9})? \+0000 UTC")
_MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OF_THE_SERVER = ("generation", "managedFields", "resourceVersion", "selfLink")
_VOLATILE = {
    "uid": _UID, "creationTimestamp": _TIME, "affinity_claim_time": _TIME, "affinityClaimTime": _TIME,
    "timestamp": _LONG_TIME, "mac": _MAC,
}  # fmt: skip


def etcd_state(name: str) -> dict[str, str]:
    """Keys and documents, as they are in the server."""
    return {line["key"]: line["value"] for line in _lines(name)}


def orch_state(name: str) -> list[Json]:
    """Custom resources, and the pod with nothing but its metadata."""
    return _lines(name)


def result(name: str) -> Json:
    """What an ADD has printed."""
    found: Json = json.loads((FIXTURES / name).read_text())
    return found


def comparable(document: Json) -> Json:
    """In the same order, with a mark in place of what differs from run to run; AssertionError where that has another form."""
    if "sequenceNumber" in document:
        document = document | _relative(document)
    return {name: _mark(name, value) for name, value in document.items() if name not in _OF_THE_SERVER}


def _mark(name: str, value: Any) -> Any:
    if pattern := _VOLATILE.get(name):
        assert pattern.fullmatch(value), f"{name} = {value!r}"
        return f"<{name}>"
    if isinstance(value, dict):
        return comparable(value)
    return [_mark("", item) for item in value] if isinstance(value, list) else value


def _relative(block: Json) -> Json:
    """To the block's sequence number, the next one to be given."""
    now = block["sequenceNumber"]
    given = {ordinal: number - now for ordinal, number in block["sequenceNumberForAllocation"].items()}
    return {"sequenceNumber": "<sequenceNumber>", "sequenceNumberForAllocation": given}


def _lines(name: str) -> list[Json]:
    return [json.loads(line) for line in (FIXTURES / name).read_text().splitlines()[1:]]
