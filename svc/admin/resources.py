"""Stored resources: those of any kind, and what is specific to nodes, reservations and the cluster's information."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, TypeVar

from svc.admin import block_release
from svc.datastore.api import Backend, Conflict, Delete, Entry, NotFound, StoreError, entry_of
from svc.datastore.expired_pages import repeated
from svc.ipam.cache import read_blocks
from svc.ipam.errors import shortened
from svc.ipam.pools import RESERVATION, read_entries
from svc.model.errors import CallerError, Code
from svc.model.field_errors import MISSING, FieldError
from svc.model.keys import NODE as NODE_HOST
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.resource import Resource, name_error, new_uid, set_identity
from svc.names import Names
from svc.retry import attempts
from svc.values import replace

CREATED, UPDATED, UNCHANGED = "created", "updated", "unchanged"
POOL, NODE = "IPPool", "Node"
NOUNS: Final = {POOL: "IP pool", RESERVATION: "IP reservation", NODE: "node"}
CIDRS: Final = "reservedCIDRs"  # the only field of a reservation
CLUSTER: Final = ResourceKey("ClusterInformation", "default")
READY: Final = "datastoreReady"
_MAX_LISTED: Final = 20

Problem = tuple[str, str]
"""The name of a resource, and a problem of it with its fix."""

T = TypeVar("T")


def retry(what: str, step: Callable[[], T]) -> T:
    """Return the result of `step`, which reads, decides and writes several keys. Repeat it if they are changed first.

    Raise StoreError if that happens every time."""
    for _ in attempts():
        try:
            return step()
        except (Conflict, NotFound):
            continue
    raise StoreError(f"{what} keeps changing", details="stop what else changes it, or try again")


def require(backend: Backend, kind: str, name: str) -> Entry[Resource]:
    """Return the entry of a resource. Raise CallerError, with the existing names, if it does not exist."""
    if entry := backend.find(ResourceKey(kind, name)):
        return entry
    raise missing(NOUNS[kind], [name], [resource.name for resource in get(backend, kind)], _code_of(kind))


def missing(noun: str, names: Sequence[str], known: Sequence[str], code: Code) -> CallerError:
    """Return the error about objects that do not exist."""
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    listed = f"known: {', '.join(known[:_MAX_LISTED])}{more}" if known else "the datastore has none"
    what = f"{noun} {names[0]!r} does" if len(names) == 1 else f"{noun}s {', '.join(map(repr, names))} do"
    return CallerError(f"{what} not exist", details=listed, code=code)


def get(backend: Backend, kind: str, name: str = "") -> list[Resource]:
    """Return all resources of a kind in the order of their names, or the one of this name. Raise as `require`."""
    entries = [require(backend, kind, name)] if name else backend.list(ResourceQuery(kind))
    return [entry.value for entry in entries]


def update(
    backend: Backend, key: ResourceKey, changed: Callable[[Resource | None], Resource | None], now: datetime | None = None
) -> str:
    """Change one resource durably, as `Backend.update`, and return what was done. `now` is the creation time of a new one."""
    outcome = UNCHANGED

    def observed(present: Resource | None) -> Resource | None:
        nonlocal outcome
        wanted = changed(present)
        if present is None and wanted is not None and now is not None:
            set_identity(wanted, now, new_uid())
        outcome = UNCHANGED if wanted is present else UPDATED if present else CREATED
        return wanted

    backend.update(key, observed, durable=True)
    return outcome


def delete(backend: Backend, kind: str, name: str) -> None:
    """Delete a resource durably. Raise as `require`."""
    require(backend, kind, name)
    backend.write([Delete(ResourceKey(kind, name))], durable=True)


def check(kind: str, resources: Sequence[Resource], problems: Callable[[Resource], Iterable[str]]) -> None:
    """Raise CallerError if resources have problems, or if several have the same name."""
    counts = Counter(resource.name for resource in resources)
    found = [(name, f"given {count} times: keep one of them") for name, count in counts.items() if count > 1]
    refuse(kind, [*found, *((resource.name, line) for resource in resources for line in problems(resource))])


def refuse(kind: str, found: Iterable[Problem]) -> None:
    """Raise CallerError if there are problems, naming each once."""
    lines = tuple(dict.fromkeys(f"{NOUNS[kind]} {name!r}: {line}" for name, line in found))
    if not lines:
        return
    subject = "nothing was changed"
    error = CallerError(
        f"{len(lines)} error{'s' if len(lines) > 1 else ''}, {subject}", details="; ".join(lines), code=_code_of(kind)
    )
    error.subject, error.errors = subject, lines
    raise error


def _code_of(kind: str) -> Code:
    return Code.INVALID_NETCONF if kind == NODE else Code.POOL


# Reservations


def check_reservation(reservation: Resource, _present: Resource | None) -> Iterator[str]:
    """Yield the problems of a reservation."""
    yield from (error.line for error in _reservation_errors(reservation))


def _reservation_errors(reservation: Resource) -> Iterator[FieldError]:
    yield from name_error(reservation)
    for name, value in reservation.spec.items():
        if name != CIDRS:
            yield FieldError(f"spec.{name}", value, "is not a field of an IP reservation", f"leave it out, or use {CIDRS}")
    if reservation.spec.get(CIDRS):
        yield from read_entries(reservation)[1]
    else:
        yield FieldError(f"spec.{CIDRS}", MISSING, "is missing or empty", 'give the ranges, such as ["10.65.0.0/28"]')


def ranges_of(reservation: Resource) -> list[str]:
    """Return the ranges as they are written."""
    given = reservation.spec.get(CIDRS) or ()
    return list(map(str, given)) if isinstance(given, list) else [str(given)]


# Nodes


def delete_node(backend: Backend, name: str) -> None:
    """Release the node's blocks, then delete the node. Raise CallerError while its workloads hold addresses.

    In a store that needs no registered nodes, it may be a node that only has blocks."""
    get_nodes(backend, name)
    require_unused_node(backend, name)
    # A store whose nodes belong to Kubernetes refuses to write even an unchanged one, before a block is released.
    backend.update(ResourceKey(NODE, name), lambda node: node and replace(node))
    for key in block_release.affinities(backend):
        if (key.kind, key.host) == (NODE_HOST, name):
            block_release.end_affinity(backend, key)
    block_release.remove_host_entries(backend, name)
    with suppress(NotFound):
        backend.write([Delete(ResourceKey(NODE, name))], durable=True)


def require_unused_node(backend: Backend, name: str) -> None:
    """Raise CallerError if workloads of the node hold addresses."""
    used = repeated(
        lambda: [address for block in read_blocks(backend) for address in block_release.addresses_of_node(block, name)]
    )
    if used:
        details = f"delete the workloads of {', '.join(shortened(used))} first"
        raise CallerError(f"node {name!r} is in use: {len(used)} addresses are held there", details=details)


def get_nodes(backend: Backend, name: str, own: str = "") -> list[Resource]:
    """Return all nodes in the order of their names, or the one of this name.

    A store that needs no registered nodes also has the node `own` and those with blocks. Raise as `require`."""
    if backend.requires_node:
        return get(backend, NODE, name)
    known = {node.name: node for node in (*implied_nodes(backend, own), *get(backend, NODE))}
    if name and name not in known:
        raise missing(NOUNS[NODE], [name], sorted(known), _code_of(NODE))
    return [known[each] for each in sorted(known) if name in ("", each)]


def implied_nodes(backend: Backend, own: str) -> list[Resource]:
    """Return the node `own` and those with blocks, in a store that needs no registered nodes; else none."""
    if backend.requires_node:
        return []
    hosts = {key.host for key in block_release.affinities(backend) if key.kind == NODE_HOST} | {own} - {""}
    return [Resource(NODE, {"name": host}) for host in sorted(hosts)]


def require_known_node(backend: Backend, name: str) -> None:
    """Raise CallerError if the node neither exists nor has blocks."""
    if any(key.kind == NODE_HOST and key.host == name for key in block_release.affinities(backend)):
        return
    if entry_of(backend.get_all([ResourceKey(NODE, name)])[0]) is None:
        raise CallerError(f"node {name!r} does not exist, and has no blocks", details="`svcctl get nodes` lists the nodes")


# The cluster's information: its identity, and whether calls may change the datastore


def initialise(backend: Backend, names: Names, types: Sequence[str], version: str, now: datetime) -> str:
    """Create or complete the resource: identity, readiness unless it is locked, further types, the version if given."""

    return update(backend, CLUSTER, lambda info: completed(names, info, types, version), now)


def completed(names: Names, info: Resource | None, types: Sequence[str], version: str) -> Resource:
    """Return the resource with what `initialise` completes; the same object if nothing is missing."""
    present = info or Resource(CLUSTER.kind, {"name": CLUSTER.name})
    spec = _completed(names, present.spec, types, version)
    return present if spec == present.spec else replace(present, spec=spec)


def get_cluster_information(backend: Backend) -> Resource:
    """Return the resource. Raise CallerError if it does not exist."""
    entry = backend.find(CLUSTER)
    return _initialised(entry.value if entry else None)


def readiness(info: Resource) -> str:
    """Say whether the datastore is ready."""
    ready = info.spec.get(READY)
    return "yes" if ready is True else "no, locked" if ready is False else "no"


def set_ready(backend: Backend, *, ready: bool) -> str:
    """Lock or unlock the datastore; return what was done. Raise CallerError if it was never initialised, StoreError."""

    def changed(stored: Resource | None) -> Resource:
        info = _initialised(stored)
        return info if info.spec.get(READY) == ready else replace(info, spec=info.spec | {READY: ready})

    return update(backend, CLUSTER, changed)


def _initialised(info: Resource | None) -> Resource:
    if info is None:
        details = "`svcctl clusterinfo init` does that"
        raise CallerError("the datastore is not initialised", details=details, code=Code.DATASTORE_LOCKED)
    return info


def _completed(names: Names, spec: Mapping[str, Any], types: Sequence[str], version: str) -> dict[str, Any]:
    """Return the spec in the order in which it is written."""
    known = dict.fromkeys([*filter(None, str(spec.get("clusterType", "")).split(",")), *types])
    ready = spec.get(READY)
    wanted = {
        "clusterGUID": spec.get("clusterGUID") or uuid.uuid4().hex,
        "clusterType": ",".join(known),
        names.version_field: version or spec.get(names.version_field),
        READY: True if ready is None else ready,
    }
    fields = {name: value for name, value in wanted.items() if value not in ("", None)}
    return fields | {name: value for name, value in spec.items() if name not in fields}
