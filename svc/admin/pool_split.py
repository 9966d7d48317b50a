"""Split an IP pool into pools of equal size. Blocks, addresses and affinities stay as they are."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from svc._core.cidr import Cidr
from svc.admin.resources import CLUSTER, POOL, READY, get_cluster_information, require
from svc.datastore.api import MAX_WRITES, Backend, Check, Conflict, Contended, Create, Delete, Entry, NotFound
from svc.ipam.errors import shortened
from svc.model.errors import CallerError, Code, SvcError
from svc.model.keys import Key, ResourceKey
from svc.model.pool import Pool, with_defaults
from svc.model.resource import Resource, new_uid, set_identity
from svc.retry import attempts
from svc.values import dataclass

MAX_PARTS: Final = 1024
_ATTEMPTS: Final = 10  # of one write, if another split creates the same pools
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

    Raise CallerError if the datastore is not locked, if the pool cannot be split so, if another pool has a name that is
    needed, or for KeyboardInterrupt. Raise StoreError if the datastore fails. What was created is deleted then, as far as the
    datastore answers."""
    entry = require(backend, POOL, name)
    parts = [_part(entry.value, cidr, index) for index, cidr in enumerate(_ranges(name, entry.value, number))]
    guard = _require_locked(backend)
    entry = require(backend, POOL, name)
    for part in parts:
        set_identity(part, now, new_uid())
    replacement = _Replacement(backend, guard, entry, parts)
    try:
        replacement.write()
    except (SvcError, KeyboardInterrupt) as failure:
        if not _is_done(replacement, failure):
            raise _undone(replacement, failure) from None
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


def _is_done(replacement: "_Replacement", failure: BaseException) -> bool:
    """Return whether the split is complete nevertheless. Raise SvcError if that is not known."""
    try:
        return replacement.is_done()
    except SvcError as reason:
        error = failure if isinstance(failure, SvcError) else reason
        error.details = f"{error.details}; whether the pool is split is not known: {_AGAIN}".lstrip("; ")
        raise error from None


def _undone(replacement: "_Replacement", failure: SvcError | KeyboardInterrupt) -> SvcError:
    """Delete what was created, and return the error to raise."""
    left = replacement.undo()
    if isinstance(failure, KeyboardInterrupt):
        failure = CallerError("interrupted", details="" if left else "this command has changed no pool", code=Code.POOL)
    if earlier := replacement.of_earlier_split:
        stay = f"{', '.join(shortened(earlier))} of an earlier split stay: repeat the split to complete it"
        failure.details = f"{failure.details}; {stay}".lstrip("; ")
    if left:
        failure.details = f"{failure.details}; {', '.join(left)} could not be deleted again: {_AGAIN}".lstrip("; ")
    return failure


class _Replacement:
    """The writes of one split. Another split of the same pool into the same parts may run at the same time."""

    def __init__(self, backend: Backend, guard: Entry[Resource], pool: Entry[Resource], parts: Sequence[Resource]) -> None:
        self._backend = backend
        self._lock = Check(guard.key, guard.revision)
        self._pool = pool
        self._parts = parts
        self._room = MAX_WRITES - 2 if backend.atomic else 1
        self.of_earlier_split: list[str] = []  # parts that were there at the start
        self._created: dict[Key, str] = {}  # by this split, with the revision; it is empty if the outcome is unknown

    def write(self) -> None:
        """Create the parts and delete the pool, in one transaction if it has room. Raise StoreError, KeyboardInterrupt."""
        missing = self._missing()
        self.of_earlier_split = [part.name for part in self._parts if part not in missing]
        for start in range(0, len(missing), self._room):
            self._create(missing[start : start + self._room], with_deletion=self._backend.atomic and len(missing) <= self._room)
        if self._backend.find(self._pool.key) is not None:
            self._backend.write([self._lock, Delete(self._pool.key, self._pool.revision)], durable=True)
        for part in self._missing():  # the rollback of another split has deleted it
            self._create([part], with_deletion=False)

    def is_done(self) -> bool:
        """Return whether the parts have replaced the pool, although this split has failed. Raise SvcError."""
        return self._backend.find(self._pool.key) is None and not self._missing()

    def undo(self) -> list[str]:
        """Delete the parts that this split has created. Return the names of those that could not be deleted."""
        left = []
        for key, revision in self._created.items():
            try:
                self._delete(key, revision)
            except SvcError:
                left.append(key.name if isinstance(key, ResourceKey) else str(key))
        return left

    def _missing(self) -> list[Resource]:
        return [part for part in self._parts if not _is_there(self._backend, part)]

    def _create(self, parts: Sequence[Resource], *, with_deletion: bool) -> None:
        """Create these parts, except those that another split creates at the same time."""
        last = [Delete(self._pool.key, self._pool.revision)] if with_deletion else []
        for _ in attempts(_ATTEMPTS):
            creations = [Create(ResourceKey(POOL, part.name), part) for part in parts]
            if not creations:
                return
            self._created.update(dict.fromkeys((each.key for each in creations), ""))
            try:
                entries = self._backend.write([self._lock, *creations, *last], durable=True)[1:]
            except Conflict as conflict:
                for each in creations:
                    del self._created[each.key]
                if conflict.key not in {each.key for each in creations}:
                    raise
                parts = [part for part in parts if not _is_there(self._backend, part)]
            else:
                self._created.update((entry.key, entry.revision) for entry in entries if entry is not None)
                return
        raise Contended(self._pool.key)

    def _is_own(self, entry: Entry[Resource], revision: str) -> bool:
        """Return whether this split has created the pool. Without its revision, the UID shows that if it is stored."""
        if revision or not self._backend.atomic:
            return revision in ("", entry.revision)
        return any(part.metadata["uid"] == entry.value.metadata.get("uid") for part in self._parts)

    def _delete(self, key: Key, revision: str) -> None:
        entry = self._backend.find(key)
        if entry is None or not self._is_own(entry, revision):
            return
        guard = [Check(self._pool.key, self._pool.revision)] if self._backend.atomic else []
        with suppress(NotFound):
            self._backend.write([*guard, Delete(key, entry.revision)], durable=True)
