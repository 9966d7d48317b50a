"""Labels of block affinities. Lists of a host's affinities select by them, but older programs wrote none."""

import logging
import threading

from svc.datastore.api import KeyedError, NotFound, Update
from svc.datastore.orch.client import Client
from svc.datastore.orch.crd_store import CrdStore
from svc.model.keys import AffinityKey, ResourceKey
from svc.model.resource import Resource

_INFORMATION = ResourceKey("ClusterInformation", "default")

_log = logging.getLogger(__name__)


class AffinityLabels:
    """Completion of missing labels, once per host in a session. Thread-safe."""

    def __init__(self, client: Client, crds: CrdStore) -> None:
        self._client = client
        self._crds = crds
        self._lock = threading.Lock()
        self._complete: set[str] = set()

    def complete(self, host: str) -> None:
        """Write the missing labels of this host's affinities, once in a session. Change nothing in a locked datastore.

        Raise StoreError if that fails.
        """
        with self._lock:
            if host in self._complete:
                return
        if self._is_ready():
            self._write_missing(host)
            with self._lock:
                self._complete.add(host)

    def _is_ready(self) -> bool:
        try:
            information = self._crds.get(_INFORMATION).value
        except NotFound:
            return False
        return isinstance(information, Resource) and information.spec.get("datastoreReady") is True

    def _write_missing(self, host: str) -> None:
        source = self._crds.unlabelled_affinities()
        for entry in source.entries(self._client.list(source.path, **source.params).items):
            if not isinstance(entry.key, AffinityKey) or entry.key.host != host:
                continue
            try:
                self._crds.update(Update(entry.key, entry.value, entry.revision))
                _log.info("affinity of %r to %s has its labels now", host, entry.key.cidr)
            except KeyedError:
                _log.info("affinity of %r to %s was changed by another program", host, entry.key.cidr)
