"""Kubernetes API as a datastore: custom resources for IPAM, annotations of pods for endpoints, and nodes, read only.

The API has no transactions. The writes of a call are applied one after the other, in their order. Only consecutive creations
or consecutive deletions of handles run in parallel. If one of them fails, the store deletes the handles that it created after
the failed one. Handles that it deleted after the failed one stay deleted, as if another writer had deleted them.
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
from svc.datastore.orch.affinity_labels import AffinityLabels
from svc.datastore.orch.auth import ApiAuth
from svc.datastore.orch.client import Client
from svc.datastore.orch.collection import Collection
from svc.datastore.orch.crd_store import CrdStore
from svc.datastore.orch.leases import LeaseStore
from svc.datastore.orch.nodes import NodeStore
from svc.datastore.orch.parallel import ParallelWriter
from svc.datastore.orch.pods import PodEndpointStore
from svc.datastore.orch.resource_store import ResourceStore
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

SIDE_BY_SIDE = 8  # parallel writes

_log = logging.getLogger(__name__)

_APPLY: dict[type, Callable[[ResourceStore, Any], Entry | None]] = {
    Check: lambda _store, _write: None,  # `demand_checks` made it before the first write
    Create: lambda store, write: store.create(write),
    Update: lambda store, write: store.update(write),
    Delete: lambda store, write: store.delete(write),
}


class OrchStore(Backend):
    """Session with an API server. Raise CallerError if the settings are invalid. The first call sends the first request.

    Settings, all optional: kubeconfig, orch_api_root, api_group, k8s_auth_token, k8s_client_certificate, k8s_client_key,
    k8s_certificate_authority.
    """

    atomic = False
    requires_node = True

    def __init__(self, settings: Mapping[str, str], names: Names) -> None:
        self.client = Client(ApiAuth(settings))
        self._spelling = Codec(names)
        self._crds = CrdStore(self.client, names, settings.get("api_group", ""))
        self._labels = AffinityLabels(self.client, self._crds)
        self._pods = PodEndpointStore(self.client, names)
        self._core: dict[str, ResourceStore] = {kubernetes_node.KIND: NodeStore(self.client, names), endpoint.KIND: self._pods}
        self._leases = LeaseStore(self.client, names)
        self._generations = Generations(self._counter)
        self._watches: OpenWatches[EventStream] = OpenWatches()
        self._parallel = ParallelWriter(SIDE_BY_SIDE, "orch store")

    @property
    def place(self) -> str:
        return self.client.place

    def is_current(self) -> bool:
        """Return True, because the session itself reloads changed credentials."""
        return True

    def get(self, key: Key) -> Entry:
        return self._store(key).get(key)

    def get_all(self, keys: Sequence[Key]) -> Sequence[Found]:
        return self._parallel.map(lambda key: found_by(self.get, key), keys)

    def list(self, query: Query) -> Entries:
        if isinstance(query, AffinityQuery) and query.host:
            self._labels.complete(query.host)
        found = self._leases.of(query.node) if isinstance(query, NodeClaimQuery) else self._pods.one(query)
        if found is None:
            source = self._source(query)
            found = source.entries(self.client.list(source.path, **source.params).items)
        answers = (entry for entry in found if matches(query, entry.key))
        return Entries(sorted(answers, key=lambda entry: self._spelling.path(entry.key)), found.skipped)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:  # noqa: ARG002 always durable
        """Apply the writes in order; they are always durable. Raise PartialWrite if one fails after others were applied."""
        self._demand_storable(writes)
        demand_checks(self.get, writes)
        done: list[Entry | None] = []
        for batch in _batches(writes):
            outcomes = self._parallel.map(self._attempt, batch) if len(batch) > 1 else [self._attempt(batch[0])]
            failed = next((number for number, outcome in enumerate(outcomes) if isinstance(outcome, StoreError)), len(batch))
            done += [outcome for outcome in outcomes[:failed] if not isinstance(outcome, StoreError)]
            if failed < len(batch):
                self._take_back(outcomes[failed + 1 :])
                cause = outcomes[failed]
                assert isinstance(cause, StoreError)
                raise PartialWrite(done, cause) if done else cause
        return done

    def check_writable(self) -> None:
        """Do nothing: each kind has its own rights and quotas, which cannot be tested without a change."""

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self._generations.current, kinds))

    def position(self) -> Position:
        """Return an empty position, because clients must not compare the revisions of the API."""
        return Position()

    def watch(self, query: Query) -> EventStream:
        collection = self._source(query)
        watch = ObjectWatch(self.client, collection.path, lambda: collection, raises_refusals=True)
        return self._watches.add(EventStream(watch, EventReader(collection, lambda key: matches(query, key)).events))

    def close(self) -> None:
        """Close the session and wait for its threads. An open watch ends in the thread that iterates."""
        self.client.close()
        self._watches.close()
        self._generations.close()
        self._parallel.close()

    def _store(self, key: Key | Query) -> ResourceStore:
        if isinstance(key, LegacyHostKey | NodeFenceKey):  # kept by other datastores only: by old programs, or for transactions
            raise NotFound(key)
        if isinstance(key, NodeClaimKey | NodeClaimQuery):
            return self._leases
        if custom_resources.is_custom(key):
            return self._crds
        assert isinstance(key, ResourceKey | ResourceQuery)
        if key.kind not in self._core:
            raise StoreError(f"{key.kind} is not kept in this datastore", details="it follows from namespaces and accounts")
        return self._core[key.kind]

    def _counted(self, kind: str) -> Collection:
        """Return the collection whose changes advance the generation of this kind."""
        return self._crds.settings() if kind == IPAM_CONFIG else self._source(ResourceQuery(kind))

    def _counter(self, kind: str) -> tuple[CollectionWatch, Callable[[Change], bool]]:
        collection = partial(self._counted, kind)
        return CollectionWatch(self.client, kind, collection, lists=False), ChangeFilter(collection).is_change

    def _source(self, query: Query) -> Collection:
        return self._store(query).source(query)

    def _demand_storable(self, writes: Sequence[Write]) -> None:
        """Raise ValueError or TypeError if a key or value cannot be encoded, which would later cause a partial write."""
        for write in writes:
            self._spelling.path(write.key).encode()
            if isinstance(write, Create | Update):
                self._spelling.encode(write.value)

    def _attempt(self, write: Write) -> Entry | StoreError | None:
        try:
            return _APPLY[type(write)](self._store(write.key), write)
        except StoreError as error:
            return error

    def _take_back(self, outcomes: Sequence[Entry | StoreError | None]) -> None:
        """Delete the objects that were created after the failed write. The caller cannot: it does not get them."""
        for entry in outcomes:
            if isinstance(entry, Entry):
                failure = self._attempt(Delete(entry.key, entry.revision))
                if failure is not None:
                    _log.warning("%s was created and could not be taken back: %s", entry.key, str(failure))


def _batches(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """Yield groups of writes that may run in parallel: consecutive creations, or deletions, of different handles.

    Any other write is a group of its own.
    """
    for (kind, is_handle), run in groupby(writes, lambda write: (type(write), isinstance(write.key, HandleKey))):
        batch = list(run)
        if is_handle and kind is not Update and len({write.key for write in batch}) == len(batch):
            yield batch
        else:
            yield from ([write] for write in batch)
