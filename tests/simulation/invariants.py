"""The invariants after every step, and those at rest."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from simulation.cluster import CODEC
from simulation.machine import Link
from simulation.scheduler import Violation
from simulation.world import Container, World
from svc.attach.record import ADDED, DELETING, Record
from svc.ipam.blocks import allocation_of
from svc.model.endpoint import KIND
from svc.model.ipam import Block, Handle
from svc.model.keys import BlockKey, HandleKey, Key, ResourceKey
from svc.model.resource import Resource


@dataclass(frozen=True)
class Store:
    """The contents of a datastore or of a document: addresses by handle, and endpoints by container."""

    allocations: dict[str, str]  # address: handle
    handles: dict[str, int]
    endpoints: dict[str, list[str]]  # container: addresses


class Invariants:
    """Checks files, kernels and stores directly, without a step. Raises Violation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stores: dict[str, tuple[int, Store]] = {}
        self._rows: dict[str, tuple[int, list[Record]]] = {}
        self._seen: object = None
        self._given_away = False  # whether an address got another holder while the agent of its node did not run
        self._journals = {node: world.stage.database(node, "journal.db") for node in world.machines}
        self._files = {} if world.is_shared else {node: world.stage.database(node, "store.db") for node in world.machines}
        self._databases = [*self._journals.values(), *self._files.values()]

    def after_step(self) -> None:
        """Check that no address has two holders, every interface has its records, and deleted containers leave nothing."""
        seen = self._versions()
        if seen == self._seen:
            return
        self._seen = seen
        links = [link for machine in self._world.machines.values() for link in machine.links.values()]
        self._one_holder(links)
        for container in self._world.containers.values():
            mine = [link for link in self._world.machines[container.node].links.values() if link.sandbox == container.sandbox]
            for link in mine:
                self._recorded(container, link)
            if container.gone:
                self._stays_gone(container, mine)

    def at_rest(self, *, counts: bool = True) -> None:
        """Check that nothing is leaked and no release is pending.

        With `counts`, also check that the counts of handles equal the allocations in blocks.
        """
        self._seen = None
        self.after_step()
        if self._given_away:
            return
        for node in self._world.machines:
            for record in self.rows(node):
                container = self._world.containers[record.id.container_id]
                if record.state != ADDED:
                    raise Violation(f"at rest the row of {container.name} is {record.state}")
                if not container.live:
                    raise Violation(f"at rest a row of {container.name} is left")
        live = {each.name: each for each in self._world.containers.values() if each.live}
        by_handle = {each.handle: each for each in self._world.containers.values()}
        for node, store in self._all_stores():
            for address, handle in store.allocations.items():
                if handle not in by_handle or not by_handle[handle].live:
                    raise Violation(f"at rest address {address} is leaked: {handle or 'nobody'} of {node} has it")
            for handle, count in store.handles.items() if counts else ():
                if count != list(store.allocations.values()).count(handle):
                    raise Violation(f"at rest handle {handle} counts {count} addresses, its blocks differ")
            for name in store.endpoints:
                if name not in live:
                    raise Violation(f"at rest the endpoint of {name} is left")
        for container in live.values():
            self._stands(container)
        self._no_stray_links()

    def rows(self, node: str) -> list[Record]:
        """Return the node's journal."""
        connection = self._journals[node]
        version = connection.total_changes
        if node not in self._rows or self._rows[node][0] != version:
            found = connection.execute("SELECT record FROM attachments").fetchall()
            self._rows[node] = version, [_record(row[0]) for row in found]
        return self._rows[node][1]

    def store(self, node: str) -> Store:
        """Return the datastore that the node uses."""
        world = self._world
        if world.is_shared:
            version = world.cluster.changes
            if "" not in self._stores or self._stores[""][0] != version:
                self._stores[""] = version, _joined(_read(key, data) for key, data, _ in world.cluster.data.values())
            return self._stores[""][1]
        connection = self._files[node]
        version = connection.total_changes
        if node not in self._stores or self._stores[node][0] != version:
            rows = connection.execute("SELECT path, value FROM entries").fetchall()
            keys = ((CODEC.key(path), data) for path, data in rows)
            self._stores[node] = version, _joined(_read(key, data) for key, data in keys if key is not None)
        return self._stores[node][1]

    def _versions(self) -> object:
        world = self._world
        changes = world.cluster.changes  # a sum of numbers that only grow
        for connection in self._databases:
            changes += connection.total_changes
        for machine in world.machines.values():
            changes += machine.changes
        return changes, [container.gone for container in world.containers.values()]

    def _all_stores(self) -> Iterator[tuple[str, Store]]:
        nodes = ["a"] if self._world.is_shared else list(self._world.machines)
        return ((node, self.store(node)) for node in nodes)

    def _one_holder(self, links: list[Link]) -> None:
        """Check that no address has two holders.

        If a datastore loses its data, a node without an agent cannot claim its addresses again.
        """
        holders: dict[str, Link] = {}
        for link in links:
            for address in map(str, link.addresses):
                if address in holders and self._world.is_shared:
                    if self._world.cluster.wipes and self._world.killed_agents:
                        self._given_away = True
                        return
                    raise Violation(f"address {address} has two holders: {holders[address].name} and {link.name}")
                holders[address] = link

    def _recorded(self, container: Container, link: Link) -> None:
        row = next((row for row in self.rows(container.node) if row.id == container.id), None)
        if row is None:
            raise Violation(f"interface {link.name} of {container.name} is in no row")
        if row.state == ADDED and row.host_index != link.index:
            raise Violation(f"interface {link.name} of {container.name} has index {link.index}, its row {row.host_index}")
        if self._world.cluster.wipes:
            return  # the datastore has lost it; it is claimed again before the end of the schedule
        for address in map(str, link.addresses):
            owner = self.store(container.node).allocations.get(address)
            if owner != row.handle:
                raise Violation(f"interface {link.name} uses address {address} of {owner or 'nobody'}, not of {row.handle}")

    def _stays_gone(self, container: Container, links: list[Link]) -> None:
        if links:
            raise Violation(f"interface {links[0].name} exists after DEL of {container.name} was answered with 0")
        row = next((row for row in self.rows(container.node) if row.id == container.id), None)
        if row is not None and row.state != DELETING:
            raise Violation(f"a row in state {row.state!r} exists after DEL of {container.name} was answered with 0")
        if row is not None:
            return
        store = self.store(container.node)
        for address, handle in store.allocations.items():
            if handle == container.handle:
                raise Violation(f"address {address} is held after DEL of {container.name} was answered with 0")
        if container.name in store.endpoints:
            raise Violation(f"an endpoint exists after DEL of {container.name} was answered with 0")

    def _stands(self, container: Container) -> None:
        store = self.store(container.node)
        row = next((row for row in self.rows(container.node) if row.id == container.id), None)
        if row is None:
            raise Violation(f"at rest {container.name} is attached without a row")
        for address in row.addresses:
            if store.allocations.get(address) != container.handle:
                raise Violation(f"at rest {container.name} uses {address}, which {store.allocations.get(address)} holds")
        if store.endpoints.get(container.name) != row.addresses:
            raise Violation(f"at rest the endpoint of {container.name} has {store.endpoints.get(container.name)}")
        if row.host_index not in self._world.machines[container.node].links:
            raise Violation(f"at rest {container.name} has lost its interface")

    def _no_stray_links(self) -> None:
        for machine in self._world.machines.values():
            known = {each.sandbox for each in self._world.containers.values() if each.live}
            for link in machine.links.values():
                if link.sandbox not in known:
                    raise Violation(f"at rest interface {link.name} is left")


_record = lru_cache(1000)(Record.from_bytes)  # cached, because most documents have not changed since the last step


@lru_cache(1000)
def _read(key: Key, data: bytes) -> Store:
    store, value = Store({}, {}, {}), CODEC.decode(key, data)
    if isinstance(key, BlockKey) and isinstance(value, Block):
        store.allocations.update(_held(value))
    elif isinstance(key, HandleKey) and isinstance(value, Handle):
        store.handles[key.handle] = sum(value.blocks.values())
    elif isinstance(key, ResourceKey) and key.kind == KIND and isinstance(value, Resource):
        networks = [str(text).partition("/")[0] for text in value.spec.get("ipNetworks") or ()]
        store.endpoints[str(value.spec.get("containerID"))] = networks
    return store


def _joined(documents: Iterator[Store]) -> Store:
    store = Store({}, {}, {})
    for each in documents:
        store.allocations.update(each.allocations)
        store.handles.update(each.handles)
        store.endpoints.update(each.endpoints)
    return store


def _held(block: Block) -> Iterator[tuple[str, str]]:
    for ordinal, tag in enumerate(block.ordinals.allocations()):
        if tag is not None:
            address = block.cidr.address(ordinal)
            owner = allocation_of(block, address)
            if owner is None or not owner.released_at:
                yield str(address), (owner.handle_id if owner else None) or ""
