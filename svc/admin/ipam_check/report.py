"""The report of a check: the fields that Calico's tools read, and the findings. A release reads it again.

An allocation that is unverifiable, or a leak that was seen only once, has `inUse` true, so that no program releases it.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from svc import __version__
from svc.admin.ipam_check.check import Result
from svc.admin.ipam_check.observation import Allocation
from svc.admin.ipam_check.verdicts import COOLDOWN, LEAKED, RESERVED, UNVERIFIABLE, since
from svc.admin.output_file import require_replaceable
from svc.admin.resources import CLUSTER, READY
from svc.atomic_file import replace
from svc.datastore.api import Backend
from svc.model.errors import CallerError, reason_of
from svc.model.keys import Host
from svc.timestamps import rfc3339

Json = dict[str, Any]

_MODE: Final = 0o600  # it names every workload of the cluster
_OF_HANDLES: Final = "handle-empty"


def cluster_fields(backend: Backend) -> Json:
    """Return the identity of a datastore, as reports have it. Raise StoreError."""
    entry = backend.find(CLUSTER)
    spec = {} if entry is None else entry.value.spec
    return {
        "version": __version__,
        "clusterGUID": str(spec.get("clusterGUID") or ""),
        "datastoreLocked": spec.get(READY) is False,
        "clusterInformationRevision": "" if entry is None else entry.revision,
        "clusterType": str(spec.get("clusterType") or ""),
    }


def require_writable(path: Path) -> None:
    """Raise CallerError if no report can be written there, before a check that takes long. Only a regular file is replaced."""
    require_replaceable("--report", path)
    folder = path.parent
    if not folder.is_dir():
        raise CallerError(f"--report {str(path)!r}: directory {str(folder)!r} does not exist", details="create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CallerError(f"--report {str(path)!r}: directory {str(folder)!r} is not writable", details="name another one")


def save(path: Path, result: Result) -> None:
    """Write the report atomically, with mode 0600. Raise CallerError if that fails, StoreError if the datastore does."""
    require_replaceable("--report", path)  # once more, because the check took its time
    try:
        replace(path, encode(result), _MODE)
    except OSError as error:
        msg = f"--report {str(path)!r} cannot be written: {reason_of(error)}"
        raise CallerError(msg, details="name another file") from None


def encode(result: Result) -> Iterator[bytes]:
    """Yield the parts of the report, a line for each allocation, so that no part needs much memory. Raise StoreError."""
    found = result.observation
    head = cluster_fields(found.place.backend) | {"time": rfc3339(found.now.timestamp())}
    yield b"{" + b",".join(b"\n  " + orjson.dumps(name) + b": " + orjson.dumps(value) for name, value in head.items())
    yield b',\n  "allocations": {'
    for number, (address, entry) in enumerate(_allocations(result)):
        yield (b"," if number else b"") + b"\n    " + orjson.dumps(address) + b": [" + orjson.dumps(entry) + b"]"
    yield b"\n  }"
    empty = [finding.object for finding in result.findings if finding.id == _OF_HANDLES]
    handles = [{"ID": handle, "UID": None, "Revision": found.handles[handle].revision} for handle in empty]
    yield _list("leakedHandles", handles) if handles else b""
    yield _list("findings", [finding.to_json() for finding in result.findings]) + b"\n}\n"


def _list(name: str, items: Sequence[Json]) -> bytes:
    lines = b",".join(b"\n    " + orjson.dumps(item) for item in items)
    return b",\n  " + orjson.dumps(name) + b": [" + lines + b"\n  ]"


def _allocations(result: Result) -> Iterator[tuple[str, Json]]:
    leaked = {finding.object for finding in result.findings if finding.id == "leaked"}
    for allocation in result.observation.allocations():
        address = str(allocation.address)
        yield address, _allocation(result, allocation, is_leaked=address in leaked)


def _allocation(result: Result, allocation: Allocation, *, is_leaked: bool) -> Json:
    verdict, owner = result.verdicts.of(allocation), allocation.owner
    host = Host.of(allocation.block.block.affinity)
    node = owner.get("node", "")
    is_cooling = verdict.state == COOLDOWN
    members = {
        "ip": str(allocation.address),
        "handle": allocation.attribute.handle_id or "",
        "sequenceNumber": allocation.sequence,
        "pod": owner.get("pod", ""),
        "namespace": owner.get("namespace", ""),
        "node": node,
        "type": owner.get("type", ""),
        "creationTimestamp": since(allocation),
        "inUse": not (is_leaked or is_cooling),
        "borrowed": bool(node) and node != (host.name if host is not None else ""),
        "coolingDown": is_cooling,
        "unverifiable": verdict.state in (UNVERIFIABLE, RESERVED) or (verdict.state == LEAKED and not is_leaked),
        "owners": [str(use) for use in verdict.uses] or None,
    }
    optional = ("creationTimestamp", "coolingDown", "unverifiable")
    return {name: value for name, value in members.items() if value or name not in optional}
