"""Kubernetes API as a datastore: custom resources for IPAM, annotations of pods for endpoints, and nodes, read only.

The API has no transactions. The writes of a call are applied one after the other, in their order. Only consecutive creations
or consecutive deletions of handles run in parallel. If one of them fails, the store deletes the handles that it created after
the failed one. Handles that it deleted after the failed one stay deleted, as if another writer had deleted them.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

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
    StoreError,
    Update,
    Write,
    found_by,
    require_checks,
)
from svc.datastore.generations import Generations
from svc.datastore.orch.auth import ApiAuth
from svc.datastore.orch.client import SMALL_PAGE, Client
from svc.datastore.orch.crd_store import CrdStore
from svc.datastore.orch.leases import LeaseStore
from svc.datastore.orch.nodes import KIND as NODE
from svc.datastore.orch.nodes import NodeStore
from svc.datastore.orch.parallel import ParallelWriter
from svc.datastore.orch.pods import PodEndpointStore
from svc.datastore.orch.resource_store import ResourceStore
from svc.datastore.orch.watch import LISTED, KindWatch, QueryWatch
from svc.datastore.watching import EventStream, OpenWatches
from svc.model import endpoint, keys
from svc.model.custom_resources import CORE
from svc.model.keys import IPAM_CONFIG, BlockQuery, HandleKey, IpamConfigKey, Key, Query, ResourceKey, ResourceQuery
from svc.model.kv_codec import Codec, matches
from svc.model.object_metadata import ApiGroup
from svc.names import Names

MAX_PARALLEL = 8  # parallel writes

_log = logging.getLogger(__name__)


class OrchStore(Backend):
    """Session with an API server. Raise CallerError if the settings are invalid. The first call sends the first request.

    Settings, all optional: kubeconfig, orch_api_root, api_group, k8s_auth_token, k8s_client_certificate, k8s_client_key,
    k8s_certificate_authority.
    """

    atomic = False
    requires_node = True

    def __init__(self, settings: Mapping[str, str], names: Names, right_remedy: str = "") -> None:
        self.client = Client(ApiAuth(settings), right_remedy)
        self.meter = self.client.meter
        self._spelling = Codec(names)
        self._crds = CrdStore(self.client, names, settings.get("api_group", ""))
        self._operated = CrdStore(self.client, names, ApiGroup(names, names.operator_api_version))
        self._leases = LeaseStore(self.client, names)
        self._core: dict[str, ResourceStore] = {
            NODE: NodeStore(self.client, names),
            endpoint.KIND: PodEndpointStore(self.client, names),
        }
        self._generations = Generations(self._kind_watch)
        self._watches: OpenWatches[EventStream] = OpenWatches()
        self._parallel = ParallelWriter(MAX_PARALLEL, "orch store")

    @property
    def place(self) -> str:
        return self.client.place

    @property
    def has_plain_objects(self) -> bool:
        return self._crds.is_plain

    def get(self, key: Key) -> Entry:
        return self._store(key).get(key)

    def get_all(self, keys: Sequence[Key]) -> Sequence[Found]:
        return self._parallel.map(lambda key: found_by(self.get, key), keys)

    def list(self, query: Query) -> Entries:
        found = _matching(query, self._store(query).list(query))
        found.sort(key=lambda each: self._spelling.path(each.key))
        return found

    def pages(self, query: Query) -> Iterator[Entries]:
        for page in self._store(query).pages(query):
            yield _matching(query, page)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:  # noqa: ARG002 always durable
        """Apply the writes in order; they are always durable. Raise PartialWrite if one fails after others were applied."""
        for write in writes:  # what cannot be encoded is an error of the caller: do not let it cause a partial write
            self._spelling.path(write.key).encode()
            if isinstance(write, Create | Update):
                self._spelling.encode(write.value)
        require_checks(self.find, writes)
        done: list[Entry | None] = []
        for batch in _batches(writes):
            outcomes = self._parallel.map(self._attempt, batch)
            for number, outcome in enumerate(outcomes):
                if isinstance(outcome, StoreError):
                    self._delete_created(outcomes[number + 1 :])
                    raise PartialWrite(done, outcome) if done else outcome
                done.append(outcome)
        return done

    def check_writable(self) -> None:
        """Do nothing: each kind has its own rights and quotas, which cannot be tested without a change."""

    def generations(self, kinds: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self._generations.current, kinds))

    def token_expires(self) -> float | None:
        return self.client.token_expires()

    def watch(self, query: Query, listed: Callable[[], None] | None = None) -> EventStream:
        store = self._store(query)
        page_objects = SMALL_PAGE if isinstance(query, BlockQuery) else store.page_objects  # blocks are the largest documents
        watch = QueryWatch(self.client, query, store.collection(query), page_objects)
        return self._watches.add(EventStream(watch, watch.events, lambda step: step[0] == LISTED, listed))

    def close(self) -> None:
        """Close the session and wait for its threads. An open watch ends in the thread that iterates."""
        self.client.close()
        self._watches.close()
        self._generations.close()
        self._parallel.close()

    def _store(self, key: Key | Query) -> ResourceStore:
        if isinstance(key, keys.LegacyHostKey | keys.NodeFenceKey):  # of old programs, or for transactions: in other datastores
            raise NotFound(key)
        if isinstance(key, keys.NodeClaimKey | keys.NodeClaimQuery):
            return self._leases
        if isinstance(key, ResourceKey | ResourceQuery) and key.kind in keys.OPERATED:
            return self._operated
        if not isinstance(key, ResourceKey | ResourceQuery) or key.kind not in CORE:
            return self._crds
        if key.kind not in self._core:
            raise StoreError(f"{key.kind} is not kept in this datastore", details="it follows from objects of Kubernetes")
        return self._core[key.kind]

    def _kind_watch(self, kind: str) -> KindWatch:
        query: Key | Query = IpamConfigKey() if kind == IPAM_CONFIG else ResourceQuery(kind)
        return KindWatch(self.client, kind, lambda: self._store(query).collection(query))

    def _attempt(self, write: Write) -> Entry | StoreError | None:
        if isinstance(write, Check):  # `require_checks` made it before the first write
            return None
        try:
            return self._store(write.key).write(write)
        except StoreError as error:
            return error

    def _delete_created(self, outcomes: Sequence[Entry | StoreError | None]) -> None:
        """Delete the objects that were created after the failed write. The caller cannot: it does not get them."""
        for entry in outcomes:
            if isinstance(entry, Entry) and (failure := self._attempt(Delete(entry.key, entry.revision))):
                _log.warning("%s was created and could not be taken back: %s", entry.key, str(failure))


def _matching(query: Query, found: Entries) -> Entries:
    entries = Entries((each for each in found if matches(query, each.key)), found.skipped)
    entries.inconsistent = found.inconsistent
    return entries


def _batches(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """Yield groups of writes that may run in parallel: consecutive creations, or deletions, of handles; or a single write."""
    for (kind, is_handle), run in groupby(writes, lambda write: (type(write), isinstance(write.key, HandleKey))):
        batch = list(run)
        if is_handle and kind is not Update and len({write.key for write in batch}) == len(batch):
            yield batch
        else:
            yield from ([write] for write in batch)
