"""Split an IP pool into pools of equal size. Blocks, addresses and affinities stay as they are."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from svc._core.cidr import Cidr
from svc.admin.resources import CLUSTER, POOL, READY, get_cluster_information, require
from svc.datastore.api import MAX_WRITES, Backend, Check, Create, Delete, Entry, NotFound, Write
from svc.model.errors import CallerError, Code, SvcError
from svc.model.keys import ResourceKey
from svc.model.pool import Pool, with_defaults
from svc.model.resource import Resource, new_uid, set_identity
from svc.values import dataclass

MAX_PARTS: Final = 1024
_LONGEST_NAME: Final = 253  # of an object of Kubernetes
_ROOM_FOR_NUMBER: Final = 8
_KEPT: Final = ("labels", "annotations")
_AGAIN: Final = "repeat the split when the datastore answers"


@dataclass(frozen=True, slots=True)
class SplitPool:
    """The pool that was split, and the pools in its place, in the order of their addresses."""

    name: str
    parts: tuple[Resource, ...]


def split(backend: Backend, name: str, number: int, now: datetime) -> SplitPool:
    """Replace a pool by `number` pools with its settings and labels, or change nothing. A repetition completes a killed split.

    Raise CallerError if the datastore is not locked, if the pool cannot be split so, or if another pool has a name that is
    needed. Raise StoreError if the datastore fails; what was created is deleted then, as far as it answers."""
    guard = _require_locked(backend)
    entry = require(backend, POOL, name)
    parts = [_part(entry.value, cidr, index) for index, cidr in enumerate(_ranges(name, entry.value, number))]
    missing = [part for part in parts if not _is_there(backend, part)]
    for part in missing:
        set_identity(part, now, new_uid())
    _write(backend, guard, missing, Delete(entry.key, entry.revision))
    return SplitPool(name, tuple(parts))


def _require_locked(backend: Backend) -> Entry[Resource]:
    """Return the ClusterInformation of a locked datastore. Raise CallerError: ADDs would meet two pools with one range."""
    if get_cluster_information(backend).spec.get(READY) is not False:
        raise CallerError(
            "the datastore is not locked",
            details="`svcctl clusterinfo lock` first, so that no ADD meets a half of the change; `unlock` it afterwards",
            code=Code.POOL,
        )
    return backend.get(CLUSTER)


def _ranges(name: str, resource: Resource, number: int) -> list[Cidr]:
    try:
        pool = Pool.from_resource(resource)
    except ValueError as error:
        raise CallerError(f"IP pool {name!r} cannot be read: {error}", details="put it right first", code=Code.POOL) from None
    blocks = pool.cidr.block_count(pool.block_size)
    problem = ""
    if number < 2 or number & (number - 1):
        problem = "is not a power of two from 2 on"
    elif number > min(blocks, MAX_PARTS):
        limit = f"{blocks} blocks of /{pool.block_size}" if blocks < MAX_PARTS else f"the limit of {MAX_PARTS} pools"
        problem = f"is more than {limit}"
    if problem:
        most = 1 << (min(blocks, MAX_PARTS).bit_length() - 1)
        remedy = f"give a power of two, from 2 to {most}" if most > 1 else "the pool has a single block"
        raise CallerError(f"NUMBER = {number} {problem}: IP pool {name!r} has {pool.cidr}", details=remedy, code=Code.POOL)
    length = pool.cidr.length + number.bit_length() - 1
    return [pool.cidr.block(index, length) for index in range(number)]


def _part(pool: Resource, cidr: Cidr, index: int) -> Resource:
    name = f"split-{pool.name}-{index}"
    if len(name) > _LONGEST_NAME:
        name = f"split-{pool.name}"[: _LONGEST_NAME - _ROOM_FOR_NUMBER].rstrip("-.") + f"-{index}"
    metadata = {"name": name} | {field: dict(pool.metadata[field]) for field in _KEPT if pool.metadata.get(field)}
    return with_defaults(Resource(POOL, metadata, pool.spec | {"cidr": str(cidr)}))


def _is_there(backend: Backend, part: Resource) -> bool:
    """Return whether a killed split has created this pool. Raise CallerError if another pool has its name."""
    present = backend.find(ResourceKey(POOL, part.name))
    if present is None:
        return False
    if present.value.spec != part.spec:
        raise CallerError(
            f"IP pool {part.name!r} exists already, with other settings",
            details="delete it, or give it another name: the split needs the name",
            code=Code.POOL,
        )
    return True


def _write(backend: Backend, guard: Entry[Resource], created: Sequence[Resource], deletion: Delete) -> None:
    """Write all, in one transaction if it has room; else in several, and undo the first ones if a later one fails."""
    lock = Check(guard.key, guard.revision)
    writes: list[Write] = [*(Create(ResourceKey(POOL, part.name), part) for part in created), deletion]
    room = MAX_WRITES - 1 if backend.atomic else 1
    try:
        for start in range(0, len(writes), room):
            backend.write([lock, *writes[start : start + room]], durable=True)
    except SvcError as failure:
        if not _is_done(backend, created, deletion, failure):
            _undo(backend, created, failure)
            raise


def _is_done(backend: Backend, created: Sequence[Resource], deletion: Delete, failure: SvcError) -> bool:
    """Return whether all is written although a write failed, because an answer was lost. Raise `failure` if unknown."""
    try:
        return backend.find(deletion.key) is None and all(_is_there(backend, part) for part in created)
    except SvcError:
        failure.details = f"{failure.details}; whether the pool is split is not known: {_AGAIN}".lstrip("; ")
        raise failure from None


def _undo(backend: Backend, created: Sequence[Resource], failure: SvcError) -> None:
    """Delete the pools that are there, also those whose creation seemed to fail because its answer was lost."""
    left = []
    for part in created:
        try:
            with suppress(NotFound):
                entry = backend.get(ResourceKey(POOL, part.name))
                if entry.value.spec == part.spec:
                    backend.write([Delete(entry.key, entry.revision)], durable=True)
        except SvcError:
            left.append(part.name)
    if left:
        failure.details = f"{failure.details}; {', '.join(left)} could not be deleted again: {_AGAIN}".lstrip("; ")
