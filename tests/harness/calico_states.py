"""Datastore states that Calico wrote: read from the fixtures, put into a server, and compared with those of svc.

A comparison ignores uids, times and MAC addresses, which differ from run to run. It makes sequence numbers relative, because
they count from the creation time of their block.
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
    """Return the stored documents by key."""
    return {line["key"]: line["value"] for line in _lines(name)}


def orch_state(name: str) -> list[Json]:
    """Return the custom resources, and the pod with its metadata only."""
    return _lines(name)


def result(name: str) -> Json:
    """Return the printed result of an ADD."""
    found: Json = json.loads((FIXTURES / name).read_text())
    return found


def comparable(document: Json) -> Json:
    """Replace the values that differ from run to run. Raise AssertionError if one does not have the expected form."""
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
    """Return the sequence numbers relative to the next one of the block."""
    now = block["sequenceNumber"]
    given = {ordinal: number - now for ordinal, number in block["sequenceNumberForAllocation"].items()}
    return {"sequenceNumber": "<sequenceNumber>", "sequenceNumberForAllocation": given}


def _lines(name: str) -> list[Json]:
    return [json.loads(line) for line in (FIXTURES / name).read_text().splitlines()[1:]]
