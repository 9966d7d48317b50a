"""Datastores of nodes, with the names of one deployment.

Several nodes share etcd or the custom resources of an API server. A single node can use a file.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

from harness.etcd import Cluster
from harness.ipam import EVERYTHING, put, put_node, put_pool
from harness.ipam import wipe as wipe_all
from harness.kube import NODES, Kube
from harness.node import POOL4, POOL6
from harness.orch import AdministratorStore, install, put_core_node, put_pod, wipe
from svc.attach.datastore_ready import KEY as READY
from svc.datastore.api import Backend, Delete, NotFound
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.etcd.store import EtcdStore
from svc.datastore.open import EMBEDDED_FILE
from svc.model.keys import IpamConfigKey, NodeClaimKey, NodeFenceKey, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT, Names

Json = dict[str, Any]


class Site(Protocol):
    """A datastore.

    `config` is its part of a network configuration, and `port` is its server's port on the test's loopback, if any.
    """

    names: Names
    config: Json
    port: int

    @property
    def administration(self) -> Json:
        """The same as `config`, with all rights."""

    def open(self) -> Backend:
        """Open a session with all rights. The caller closes it."""

    def add_node(self, name: str, **labels: str) -> None:
        """Register a node, as the component that registers nodes does."""

    def add_pod(self, name: str, node: str = "node1", **spec: Any) -> str:
        """Create a pod and return its uid. Outside the Kubernetes API, do nothing and return an empty uid."""

    def clear(self) -> None:
        """Delete everything, including nodes and pods."""


class EmbeddedSite:
    """The file of the node with this state directory. It has no server."""

    port = 0

    def __init__(self, state_dir: Path, names: Names = DEFAULT) -> None:
        self.names = names
        self.file = state_dir / EMBEDDED_FILE
        self.config: Json = {"datastore_type": "embedded"}

    @property
    def administration(self) -> Json:
        return self.config

    def open(self) -> Backend:
        return EmbeddedStore(self.file, self.names)

    def add_node(self, name: str, **labels: str) -> None:
        with session(self) as store:
            put_node(store, name, **labels)

    def add_pod(self, name: str, node: str = "node1", **spec: Any) -> str:
        return ""

    def clear(self) -> None:
        with session(self) as store:
            wipe_all(store, *EVERYTHING, *map(ResourceQuery, (READY.kind, "WorkloadEndpoint")))
            with suppress(NotFound):
                store.write([Delete(IpamConfigKey())])


class EtcdSite:
    """The keys of etcd below the key root of the names."""

    def __init__(self, running: Cluster, names: Names = DEFAULT) -> None:
        self.names = names
        self.running = running
        self.config: Json = {"datastore_type": "etcdv3", "etcd_endpoints": running.endpoints}
        self.port = running.members[0].ports[0]

    @property
    def administration(self) -> Json:
        return self.config

    def open(self) -> Backend:
        return EtcdStore({"kind": "etcdv3", "etcd_endpoints": self.running.endpoints}, self.names)

    def add_node(self, name: str, **labels: str) -> None:
        with session(self) as store:
            put_node(store, name, **labels)

    def add_pod(self, name: str, node: str = "node1", **spec: Any) -> str:
        return ""

    def clear(self) -> None:
        self.running.erase(f"{self.names.key_root}/")


class OrchSite:
    """The custom resources in the API group of the names."""

    def __init__(self, kube: Kube, folder: Path, names: Names = DEFAULT) -> None:
        self.names = names
        self.kube = kube
        self._folder = folder
        self.kubeconfig = kube.kubeconfig(folder / "kubeconfig", f"token-of-{NODES}")
        self.config = self._config(self.kubeconfig)
        self.administrator = kube.kubeconfig(folder / "administrator")
        self.administration = self._config(self.administrator)
        self.port = kube.port
        install(kube, names)

    def _config(self, kubeconfig: Path) -> Json:
        return {"datastore_type": self.names.orch_datastore, self.names.orch_section: {"kubeconfig": str(kubeconfig)}}

    def open(self) -> Backend:
        return AdministratorStore(self.kube, self._folder, self.names)

    def add_node(self, name: str, **labels: str) -> None:
        put_core_node(self.kube, name, labels)

    def add_pod(self, name: str, node: str = "node1", **spec: Any) -> str:
        return str(put_pod(self.kube, name, node, **spec)["metadata"]["uid"])

    def clear(self) -> None:
        wipe(self.kube, self.names)


def site_called(request: pytest.FixtureRequest, home: Path) -> Site:
    """Return the site that the fixture's parameter names. `home` is the directory of a node with its own store."""
    if request.param == "embedded":
        return EmbeddedSite(home / "state")
    found: Site = request.getfixturevalue({"etcdv3": "etcd_site", "orch": "orch_site"}[request.param])
    return found


@contextmanager
def session(site: Site) -> Iterator[Backend]:
    with closing(site.open()) as store:
        yield store


def discard_claim(site: Site, node: str) -> None:
    """Delete the claim on a node's name, because the previous machine of this name does not exist any more."""
    with session(site) as store:
        for key in (NodeClaimKey(node), NodeFenceKey(node)):
            with suppress(NotFound):
                store.write([Delete(key)])


def furnish(site: Site, *nodes: str) -> None:
    """Set up a ready datastore with these nodes and a pool of each family."""
    with session(site) as store:
        set_ready(store)
        put_pool(store, "pool4", POOL4)
        put_pool(store, "pool6", POOL6)
    for node in nodes:
        site.add_node(node)


def set_ready(store: Backend, *, ready: bool = True) -> None:
    """Set the ready flag, as `svcctl clusterinfo` does."""
    put(store, READY, Resource(READY.kind, {"name": READY.name, "uid": READY.name}, {"datastoreReady": ready}))
