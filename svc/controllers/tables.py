"""The tables that several controllers read. Each is created with its first reader, so that no watch runs without one."""

import time
from collections.abc import Callable, Collection
from functools import cached_property, partial
from typing import Any

from svc.controllers.compact_rows import compact_block, compact_handle
from svc.controllers.gone_nodes import GoneNodes
from svc.controllers.nodes import KubeNode, read_node
from svc.controllers.pods import PodRow, read_pod
from svc.controllers.stored_endpoints import EndpointRow, read_endpoint
from svc.controllers.table import ApiTable, Fail, StoreTable, Table
from svc.datastore.api import Backend, Entry
from svc.datastore.orch.client import Client
from svc.ipam.pools import RESERVATION
from svc.model.controllers_configuration import KIND as CONFIGURATION
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.ipam import Affinity, Block, Handle
from svc.model.keys import HOST_KINDS, AffinityQuery, BlockQuery, HandleQuery, Query, ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT, Names


class Tables:
    """The tables of a process, and their life. `clock` measures how long the claims of nodes were observed."""

    def __init__(
        self,
        client: Client,
        store: Backend,
        fail: Fail,
        names: Names = DEFAULT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._store = store
        self._fail = fail
        self._names = names
        self._clock = clock
        self._made: list[Table[Any, Any]] = []

    def start(self) -> None:
        """Start the tables that were created."""
        for table in self._made:
            table.start()

    def stop(self) -> None:
        for table in self._made:
            table.stop()

    @property
    def troubles(self) -> list[str]:
        """What is wrong with the threads of the tables."""
        return [trouble for table in self._made if (trouble := table.trouble)]

    def keep(self, table: Table[Any, Any]) -> None:
        """Start and stop a table with the others."""
        self._made.append(table)

    @cached_property
    def pods(self) -> ApiTable[str, PodRow]:
        """The pods by NAMESPACE/NAME."""
        table = ApiTable(self._client, "/api/v1/pods", partial(read_pod, self._names), self._fail)
        self.keep(table)
        return table

    @cached_property
    def kube_nodes(self) -> ApiTable[str, KubeNode]:
        """The nodes of Kubernetes by name."""
        table = ApiTable(self._client, "/api/v1/nodes", read_node, self._fail)
        self.keep(table)
        return table

    @cached_property
    def gone_nodes(self) -> GoneNodes:
        """What this process has observed of nodes that Kubernetes lacks. A node that exists again ends its observation."""
        gone, nodes = GoneNodes(self._client, self._store, self._names, self._clock), self.kube_nodes

        def note(names: Collection[str]) -> None:
            gone.note_present({name for name in names if nodes.get(name) is not None})

        nodes.on_change(note)
        return gone

    @cached_property
    def nodes(self) -> StoreTable[Entry[Resource]]:
        """The Nodes of the datastore."""
        return self._entries(ResourceQuery("Node"), "Nodes")

    @cached_property
    def endpoints(self) -> StoreTable[EndpointRow]:
        """The endpoints of workloads, where the datastore has them."""
        read = partial(read_endpoint, self._names)
        return self._kept(StoreTable(self._store, ResourceQuery(ENDPOINT), read, self._fail, "endpoints"))

    @cached_property
    def host_endpoints(self) -> StoreTable[Entry[Resource]]:
        return self._entries(ResourceQuery("HostEndpoint"), "HostEndpoints")

    @cached_property
    def configurations(self) -> StoreTable[Entry[Resource]]:
        return self._entries(ResourceQuery(CONFIGURATION), f"{CONFIGURATION}s")

    @cached_property
    def pools(self) -> StoreTable[Entry[Resource]]:
        return self._entries(ResourceQuery("IPPool"), "IP pools")

    @cached_property
    def reservations(self) -> StoreTable[Entry[Resource]]:
        return self._entries(ResourceQuery(RESERVATION), "IP reservations")

    @cached_property
    def blocks(self) -> StoreTable[Entry[Block]]:
        return self._kept(StoreTable(self._store, BlockQuery(), compact_block, self._fail, "blocks"))

    @cached_property
    def handles(self) -> StoreTable[Entry[Handle]]:
        return self._kept(StoreTable(self._store, HandleQuery(), compact_handle, self._fail, "handles"))

    @cached_property
    def affinities(self) -> tuple[StoreTable[Entry[Affinity]], ...]:
        """The affinities of nodes, and those of virtual hosts."""
        return tuple(self._entries(AffinityQuery(kind=kind), f"affinities ({kind})") for kind in HOST_KINDS)

    def _entries(self, query: Query, what: str) -> StoreTable[Any]:
        """Create a table of whole entries. Its readers must not modify them."""
        return self._kept(StoreTable(self._store, query, lambda entry: entry, self._fail, what))

    def _kept(self, table: StoreTable[Any]) -> StoreTable[Any]:
        self.keep(table)
        return table
