"""What this node tells the others: the addresses of its tunnels, and on etcd its own address."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from svc._core.cidr import Address
from svc.attach.store_identity import StoreIdentity
from svc.datastore.api import Backend, NotFound, StoreError
from svc.ipam.pools import read_pools
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.errors import CallerError, Code, PeerError
from svc.model.keys import ResourceKey
from svc.model.pool import TUNNEL
from svc.model.resource import Json, Resource
from svc.names import Names
from svc.routes.inputs import HANDLES, INTERNAL, TUNNEL_FIELDS, node_facts
from svc.routes.planning import tunnel_mac
from svc.routes.wanted import IPIP, VXLAN_V4, VXLAN_V6
from svc.values import replace

TYPES: Final = {VXLAN_V4: "vxlanTunnelAddress", VXLAN_V6: "vxlanV6TunnelAddress", IPIP: "ipipTunnelAddress"}
_CLUSTER: Final = ResourceKey("ClusterInformation", "default")


class OwnNode:
    """The Node of this machine in the datastore, and the addresses of its tunnels. For one thread at a time.

    `identity` says whether the datastore has lost data. Then the addresses of live pods look free until their nodes have
    claimed them again, and no tunnel gets another address than its former one."""

    def __init__(self, backend: Backend, names: Names, node: str, identity: StoreIdentity | None = None) -> None:
        self._backend = backend
        self._names = names
        self._node = node
        self._key = ResourceKey("Node", node)
        self._ipam = IpamService(backend, node)
        self._identity = identity or StoreIdentity(backend.place)

    def assign(self, kind: str, pools: Iterable[str], former: Address | None = None) -> Address:
        """Return the address of a tunnel, and announce it. It is assigned from these pools unless it has one there.

        The `former` one, which its device has, comes before others. Raise SvcError."""
        self._observe()
        handle, version = f"{HANDLES[kind]}{self._node}", 6 if kind == VXLAN_V6 else 4
        node = self._backend.find(self._key)
        known = read_pools(self._backend)
        usable = [pool for pool in known.all if pool.name in set(pools)]
        held = [address for address in self._ipam.addresses_of(handle) if any(address in pool.cidr for pool in usable)]
        if not held:
            labels = {} if node is None else node.value.labels
            chosen = [pool for pool in known.selected(version, labels, use=TUNNEL) if pool in usable]
            is_usable = former is not None and any(former in pool.cidr for pool in chosen)
            again = self._assigned_again(kind, handle, former) if former is not None and is_usable else None
            held = [again or self._assigned(kind, handle, version, [pool.name for pool in chosen])]
        elif len(self._ipam.addresses_of(handle)) > 1:
            self._ipam.release(Release(handle, keep=frozenset(held[:1])))
        self._announce(kind, held[0])
        return held[0]

    def held(self, kind: str) -> tuple[Address, ...]:
        """Return the addresses that IPAM has assigned to a tunnel of this node. Raise SvcError."""
        return self._ipam.addresses_of(f"{HANDLES[kind]}{self._node}")

    def release(self, kind: str) -> None:
        """Stop announcing the address of a tunnel, then release it. Raise SvcError."""
        handle = f"{HANDLES[kind]}{self._node}"
        if not self._ipam.addresses_of(handle) and not self._is_announced(kind):
            return
        self._require_unlocked()
        self._announce(kind, None)
        self._ipam.release(Release(handle))

    def register(
        self,
        addresses: Mapping[int, Address],
        former: Collection[Address] = (),
        note: Callable[[Collection[Address]], None] = lambda _: None,
    ) -> bool:
        """Write the addresses of this node to its Node, for the IP versions of which it has none, or a `former` one.

        `note` is called with those that are about to be written. Return whether the Node was changed. Raise StoreError."""
        lacking: dict[int, Address] = {}

        def changed(node: Resource | None) -> Resource | None:
            nonlocal lacking
            node = node or Resource("Node", {"name": self._node}, {})
            present = node_facts(node, self._names).addresses
            lacking = {
                version: address
                for version, address in sorted(addresses.items())
                if (held := present.get(version)) is None or (held in former and held != address)
            }
            return _with_addresses(node, lacking, present) if lacking else node

        found = self._backend.find(self._key)
        if found is None or changed(found.value) is not found.value:
            self._require_unlocked()
            note((lacking if found is not None else addresses).values())
            self._backend.update(self._key, changed)
        return bool(lacking)

    def unregister(self, registered: Collection[Address]) -> bool:
        """Remove these addresses from the Node, unless another program has changed their entries.

        Return whether the Node was changed. Raise StoreError."""
        written = [{"address": str(address), "type": INTERNAL} for address in registered]

        def changed(node: Resource | None) -> Resource | None:
            given = None if node is None else node.spec.get("addresses")
            if node is None or not isinstance(given, list) or not any(item in written for item in given):
                return node
            return _with_spec(node, {"addresses": [item for item in given if item not in written]})

        found = self._backend.find(self._key)
        if found is None or changed(found.value) is found.value:
            return False
        self._require_unlocked()
        self._backend.update(self._key, changed)
        return True

    def _assigned(self, kind: str, handle: str, version: int, pools: list[str]) -> Address:
        if not pools:
            msg = f"no pool gives this node an address for its tunnel {kind!r}"
            details = f"allow the use {TUNNEL} in a pool that selects the node and has the tunnel"
            raise PeerError(msg, details=details, code=Code.POOL)
        self._require_unlocked()
        self._require_whole()
        self._ipam.release(Release(handle))  # an address outside of the pools
        request = Assign(handle, self._attributes(kind), (version,), {version: tuple(pools)}, use=TUNNEL, max_per_handle=1)
        return self._ipam.assign(request).addresses[0]

    def _assigned_again(self, kind: str, handle: str, former: Address) -> Address | None:
        """Assign the address of before, of which the datastore knows nothing; None if another one has it. Raise SvcError."""
        self._require_unlocked()
        self._ipam.release(Release(handle))  # an address outside of the pools
        request = Assign(handle, self._attributes(kind), addresses=(former,), use=TUNNEL, restores=True)
        try:
            return self._ipam.assign(request).addresses[0]
        except CallerError:  # another handle has it, or a block of another size does
            return None

    def _attributes(self, kind: str) -> dict[str, str]:
        return {"node": self._node, "type": TYPES[kind]}

    def _observe(self) -> None:
        """Look whether the datastore has lost data. Raise StoreError."""
        cluster = self._backend.find(_CLUSTER)
        self._identity.observe(self._backend, "" if cluster is None else str(cluster.value.spec.get("clusterGUID") or ""))

    def _require_whole(self) -> None:
        """Raise StoreError while nodes claim the addresses of live pods again."""
        if seconds := self._identity.held_seconds(self._ipam.has_pools):
            msg = f"the datastore has lost data, and nodes claim the addresses of live pods again for {seconds:.0f} s more"
            raise StoreError(msg, details="the tunnel gets an address after that", code=Code.TRY_AGAIN)

    def _is_announced(self, kind: str) -> bool:
        found = self._backend.find(self._key)
        return found is not None and kind in node_facts(found.value, self._names).tunnels

    def _announce(self, kind: str, address: Address | None) -> None:
        """Write the address of a tunnel, or that it does not exist, to the Node. Nothing is removed from a missing Node."""
        section, address_field, mac_field = TUNNEL_FIELDS[kind]
        texts: dict[str, Any] = {address_field: None if address is None else str(address)}
        if mac_field:
            texts[mac_field] = None if address is None else tunnel_mac(self._node, kind).hex(":")
        found = self._backend.find(self._key)
        if found is None and address is None:
            return
        if found is None:
            raise NotFound(self._key, remedy="register the node first: the agent does, or `svcctl node apply`")
        change = _announcing(section, texts)
        if change(found.value) is not found.value:
            self._require_unlocked()
            self._backend.update(self._key, change)

    def _require_unlocked(self) -> None:
        cluster = self._backend.find(_CLUSTER)
        if cluster is not None and cluster.value.spec.get("datastoreReady") is False:
            msg = "the datastore is locked for a migration"
            raise StoreError(msg, details="wait for its end", code=Code.DATASTORE_LOCKED)


def _announcing(section: str, texts: Json) -> Callable[[Resource | None], Resource | None]:
    def changed(node: Resource | None) -> Resource | None:
        if node is None:
            return None
        part = node.spec.get(section) or {} if section else node.spec
        if all(part.get(name) == text for name, text in texts.items()):
            return node
        kept = {name: value for name, value in {**part, **texts}.items() if value is not None}
        if not section:
            return replace(node, spec=kept)
        return _with_spec(node, {section: kept})

    return changed


def _with_addresses(node: Resource, wanted: Mapping[int, Address], present: Mapping[int, Address]) -> Resource:
    """Return a Node with these InternalIPs, in place of the present ones of the same IP versions."""
    given = node.spec.get("addresses")
    items = given if isinstance(given, list) else []
    outdated = {str(present[version]) for version in wanted if version in present}
    kept = [item for item in items if not (_is_internal(item) and item.get("address") in outdated)]
    return _with_spec(node, {"addresses": [*kept, *({"address": str(each), "type": INTERNAL} for each in wanted.values())]})


def _is_internal(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") == INTERNAL


def _with_spec(node: Resource, fields: Json) -> Resource:
    return replace(node, spec={name: value for name, value in {**node.spec, **fields}.items() if value})
