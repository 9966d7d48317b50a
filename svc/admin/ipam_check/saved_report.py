"""Reports of earlier checks, as files that a user may have edited."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from svc._core.cidr import Address
from svc.ipam.requests import ReleaseTarget
from svc.model import json_fields
from svc.model.errors import CallerError, reason_of
from svc.model.field_errors import display, json_kind
from svc.model.mapped import ipv4_of
from svc.values import dataclass

Json = dict[str, Any]
Handles = frozenset[tuple[str, str]]  # ID and revision

_HEAD: Final = ("clusterGUID", "version", "clusterInformationRevision")
STDIN: Final = Path("-")
MAX_BYTES: Final = 64 * 2**20  # five times the report of 30,000 addresses


@dataclass(frozen=True, slots=True)
class SavedReport:
    """The parts of a report that a release needs: what was unused, and the state of the datastore."""

    path: Path
    cluster: str
    version: str
    revision: str
    addresses: frozenset[ReleaseTarget]
    handles: Handles


def read(path: Path) -> SavedReport:
    """Read a report. Raise CallerError that names the field if it is not one."""
    try:
        data = orjson.loads(_content(path))
        if not isinstance(data, dict):
            raise _invalid(path, f"is {json_kind(data)}, not an object")
        return _parsed(path, data)
    except OSError as error:
        raise CallerError(f"report {str(path)!r} cannot be read: {reason_of(error)}", details="name a readable file") from None
    except orjson.JSONDecodeError as error:
        raise _invalid(path, f"is not JSON: {error}") from None
    except ValueError as error:
        raise _invalid(path, f"is not a report: {error}") from None


def require_same_cluster(reports: Sequence[SavedReport], present: Json) -> None:
    """Raise CallerError if a report is of another datastore, or if the datastore has no identity to compare."""
    cluster = present["clusterGUID"]
    if not cluster:
        msg = "the datastore has no cluster ID, so no report can be its own"
        raise CallerError(msg, details="`svcctl clusterinfo init` gives it one; then repeat the check")
    for report in reports:
        if report.cluster != cluster:
            msg = f"report {str(report.path)!r} is of cluster {report.cluster!r}, and the datastore is of {cluster!r}"
            raise CallerError(msg, details="make a report of this datastore with svcctl ipam check --report FILE")


def objections(reports: Sequence[SavedReport], present: Json) -> Iterator[str]:
    """Yield what a user can override: another version, a datastore that is not locked or was changed since the reports."""
    for report in reports:
        if report.version != present["version"]:
            made = f"report {str(report.path)!r} was made by version {report.version!r}"
            yield f"{made}, and this is {present['version']!r}: repeat the check"
    if not present["datastoreLocked"]:
        yield "the datastore is not locked: svcctl clusterinfo lock, repeat the check, release, svcctl clusterinfo unlock"
    elif all(report.revision != present["clusterInformationRevision"] for report in reports):
        yield "the datastore was unlocked since every report: repeat the check while it is locked"


def common(reports: Sequence[SavedReport]) -> tuple[list[ReleaseTarget], list[tuple[str, str]]]:
    """Return the addresses and the handles that all reports show unused, with the same sequence numbers and revisions."""
    addresses = frozenset.intersection(*(report.addresses for report in reports))
    handles = frozenset.intersection(*(report.handles for report in reports))
    return sorted(addresses, key=lambda target: target.address), sorted(handles)


def _content(path: Path) -> bytes:
    """Return the content; of `-`, that of standard input. Raise CallerError if it is too long, OSError.

    A pipe or device has a size of 0, so that the limit is read.
    """
    if path == STDIN:
        return _limited(path, sys.stdin.buffer) if sys.stdin else b""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise _invalid(path, f"has {size} bytes, more than {MAX_BYTES}")
    with path.open("rb") as file:
        return _limited(path, file)


def _limited(path: Path, file: BinaryIO) -> bytes:
    content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _invalid(path, f"has more than {MAX_BYTES} bytes")
    return content


def _invalid(path: Path, problem: str) -> CallerError:
    name = "on standard input" if path == STDIN else repr(str(path))
    return CallerError(f"report {name} {problem}", details="make another one with svcctl ipam check --report FILE")


def _parsed(path: Path, data: Json) -> SavedReport:
    if "allocations" not in data:
        raise ValueError("allocations is missing")
    cluster, version, revision = (json_fields.text(data, name) or "" for name in _HEAD)
    allocations = json_fields.pairs(data, "allocations")
    unused = frozenset(target for name in allocations for target in _unused(name, json_fields.items(allocations, name)))
    items = enumerate(json_fields.items(data, "leakedHandles"))
    handles = frozenset(_handle(f"leakedHandles[{index}]", item) for index, item in items)
    return SavedReport(path, cluster, version, revision, unused, handles)


def _unused(name: str, items: Sequence[Any]) -> Iterator[ReleaseTarget]:
    for index, item in enumerate(items):
        entry = _object(f"allocations.{name}[{index}]", item)
        try:
            address = Address(json_fields.required_text(entry, "ip"))
            if str(address) != name:
                raise ValueError(f"ip = {display(str(address))} is not the address of this entry")
            if (mapped := ipv4_of(address)) is not None:
                raise ValueError(f"ip = {display(str(address))} is IPv4-mapped: give {mapped}")
            in_use, cooling = _required_flag(entry, "inUse"), json_fields.flag(entry, "coolingDown")
            sequence = None if entry.get("sequenceNumber") is None else json_fields.number(entry, "sequenceNumber")
            handle = json_fields.text(entry, "handle") or ""
        except ValueError as error:
            raise ValueError(f"allocations.{name}[{index}].{error}") from None
        if not in_use and not cooling:
            yield ReleaseTarget(address, handle, sequence)


def _required_flag(entry: Mapping[str, Any], name: str) -> bool:
    if name not in entry:
        raise ValueError(f"{name} is missing")
    return json_fields.flag(dict(entry), name)


def _handle(place: str, item: Any) -> tuple[str, str]:
    entry = _object(place, item)
    try:
        return json_fields.required_text(entry, "ID"), json_fields.required_text(entry, "Revision")
    except ValueError as error:
        raise ValueError(f"{place}.{error}") from None


def _object(place: str, item: Any) -> Json:
    if not isinstance(item, dict):
        raise ValueError(f"{place} is {json_kind(item)}, not an object")
    return item
