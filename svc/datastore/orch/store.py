"""The orchestrator's API as a datastore: custom resources for what IPAM keeps, pods for endpoints, nodes as they are.

Writes of one call are made one after the other, in their order: there is no transaction. Only handles that are created, or
deleted, next to each other are written side by side. What was created past one that failed is taken back; what was deleted
past it is gone, as if somebody else had done it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from svc.datastore.api import (
    Backend,
    Check,
    Create,
    Delete,
    Entries,
    Entry,
    Found,
    NotFound,
    PartialWrite,
    Position,
    StoreError,
    Update,
    Write,
    demand_checks,
    found_by,
)
from svc.datastore.generations import Generations
from svc.datastore.orch.access import Access
from svc.datastore.orch.affinity_labels import AffinityLabels
from svc.datastore.orch.client import Client
from svc.datastore.orch.collection import Collection
from svc.datastore.orch.custom import Customs
from svc.datastore.orch.hands import Hands
from svc.datastore.orch.leases import Leases
from svc.datastore.orch.nodes import Nodes
from svc.datastore.orch.pods import Pods
from svc.datastore.orch.shelf import Shelf
from svc.datastore.orch.watch import Change, ChangeFilter, CollectionWatch, EventReader, ObjectWatch
from svc.datastore.watching import EventStream, OpenWatches
from svc.model import custom_resources, endpoint, kubernetes_node
from svc.model.keys import (
    IPAM_CONFIG,
    AffinityQuery,
    HandleKey,
    Key,
    LegacyHostKey,
    NodeClaimKey,
    NodeClaimQuery,
    NodeFenceKey,
    Query,
    ResourceKey,
    ResourceQuery,
)
from svc.model.kv_codec import Codec, matches
from svc.names import Names

SIDE_BY_SIDE = 8  # writes at a time

_log = logging.getLogger(__name__)

_APPLY: dict[type, Callable[[Shelf, Any], Entry | None]] = {
    Check: lambda _shelf, _write: None,  # they were made before the first write
    Create: lambda shelf, write: shelf.create(write),
    Update: lambda shelf, write: shelf.update(write),
    Delete: lambda shelf, write: shelf.delete(write),
}


class OrchStore(Backend):
    """A session. Settings, all optional: kubeconfig, orch_api_root, api_group, k8s_auth_token, k8s_client_certificate,
    k8s_client_key, k8s_certificate_authority. CallerError when they lead to no server; nothing is asked of it yet."""

    atomic = False
    needs_node = True

    def __init__(self, settings: Mapping[str, str], names: Names) -> None:
        self.client = Client(Access(settings))
        self._spelling = Codec(names)
        self._customs = Customs(self.client, names, settings.get("api_group", ""))
        self._labels = AffinityLabels(self.client, self._customs)
        self._pods = Pods(self.client, names)
        self._core: dict[str, Shelf] = {kubernetes_node.KIND: Nodes(self.client, names), endpoint.KIND: self._pods}
        self._leases = Leases(self.client, names)
        self._generations = Generations(self._counter)
        self._watches: OpenWatches[EventStream] = OpenWatches()
        self._hands = Hands(SIDE_BY_SIDE, "orch store")

    @property
    def place(self) -> str:
        return self.client.place

    def is_current(self) -> bool:
        """Changed credentials are read again by the session itself."""
        return True

    def get(self, key: Key) -> Entry:
        return self._shelf(key).get(key)

    def get_all(self, keys: Sequence[Key]) -> Sequence[Found]:
        return self._hands.map(lambda key: found_by(self.get, key), keys)

    def list(self, query: Query) -> Entries:
        if isinstance(query, AffinityQuery) and query.host:
            self._labels.complete(query.host)
        found = self._leases.of(query.node) if isinstance(query, NodeClaimQuery) else self._pods.one(query)
        if found is None:
            source = self._source(query)
            found = source.entries(self.client.list(source.path, **source.params).items)
        answers = (entry for entry in found if matches(query, entry.key))
        return Entries(sorted(answers, key=lambda entry: self._spelling.path(entry.key)), found.left_out)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:  # noqa: ARG002 always durable
        """In order; PartialWrite once something was done."""
        self._demand_storable(writes)
        demand_checks(self.get, writes)
        done: list[Entry | None] = []
        for batch in _batches(writes):
            outcomes = self._hands.map(self._attempt, batch) if len(batch) > 1 else [self._attempt(batch[0])]
            failed = next((number for number, outcome in enumerate(outcomes) if isinstance(outcome, StoreError)), len(batch))
            done += [outcome for outcome in outcomes[:failed] if not isinstance(outcome, StoreError)]
            if failed < len(batch):
                self._take_back(outcomes[failed + 1 :])
                cause = outcomes[failed]
                assert isinstance(cause, StoreError)
                raise PartialWrite(done, cause) if done else cause
        return done

    def check_writable(self) -> None:
        """Nothing can be told: rights and quotas are those of each kind."""

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self._generations.current, kinds))

    def position(self) -> Position:
        """The API's revisions must not be compared."""
        return Position()

    def watch(self, query: Query) -> EventStream:
        collection = self._source(query)
        watch = ObjectWatch(self.client, collection.path, lambda: collection, raises_refusals=True)
        return self._watches.add(EventStream(watch, EventReader(collection, lambda key: matches(query, key)).events))

    def close(self) -> None:
        """Returns when the threads of the session have ended; a watch ends in its own thread."""
        self.client.close()
        self._watches.close()
        self._generations.close()
        self._hands.close()

    def _shelf(self, key: Key | Query) -> Shelf:
        if isinstance(
            key, LegacyHostKey | NodeFenceKey
        ):  # old programs kept it elsewhere; without transactions nothing compares it
            raise NotFound(key)
        if isinstance(key, NodeClaimKey | NodeClaimQuery):
            return self._leases
        if custom_resources.is_custom(key):
            return self._customs
        assert isinstance(key, ResourceKey | ResourceQuery)
        if key.kind not in self._core:
            raise StoreError(f"{key.kind} is not kept in this datastore", details="it follows from namespaces and accounts")
        return self._core[key.kind]

    def _counted(self, kind: str) -> Collection:
        """Where what is counted under this name is kept."""
        return self._customs.settings() if kind == IPAM_CONFIG else self._source(ResourceQuery(kind))

    def _counter(self, kind: str) -> tuple[CollectionWatch, Callable[[Change], bool]]:
        collection = partial(self._counted, kind)
        return CollectionWatch(self.client, kind, collection, lists=False), ChangeFilter(collection).is_change

    def _source(self, query: Query) -> Collection:
        return self._shelf(query).source(query)

    def _demand_storable(self, writes: Sequence[Write]) -> None:
        """What cannot be spelled must not stop the writes half-way: ValueError or TypeError before the first."""
        for write in writes:
            self._spelling.path(write.key).encode()
            if isinstance(write, Create | Update):
                self._spelling.encode(write.value)

    def _attempt(self, write: Write) -> Entry | StoreError | None:
        try:
            return _APPLY[type(write)](self._shelf(write.key), write)
        except StoreError as error:
            return error

    def _take_back(self, outcomes: Sequence[Entry | StoreError | None]) -> None:
        """What was created past the write that failed: nobody is told of it, so nobody else would."""
        for entry in outcomes:
            if isinstance(entry, Entry):
                failure = self._attempt(Delete(entry.key, entry.revision))
                if failure is not None:
                    _log.warning("%s was created and could not be taken back: %s", entry.key, str(failure))


def _batches(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """Writes that may be made together: different handles created, or deleted, in a row. Any other write is alone."""
    for (kind, is_handle), run in groupby(writes, lambda write: (type(write), isinstance(write.key, HandleKey))):
        batch = list(run)
        if is_handle and kind is not Update and len({write.key for write in batch}) == len(batch):
            yield batch
        else:
            yield from ([write] for write in batch)
