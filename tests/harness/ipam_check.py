"""Checks of the IPAM documents, as tests call them, and workloads with endpoints that they show in use."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress

from harness.datastores import EmbeddedSite, EtcdSite, OrchSite, Site, session, set_ready
from harness.ipam import put, put_pool
from harness.orch import PODS
from svc._core.cidr import Address
from svc.admin.ipam_check.check import Result, check
from svc.admin.ipam_check.observation import Place
from svc.datastore.api import Backend, Create, Delete, NotFound
from svc.datastore.orch.store import OrchStore
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.custom_resources import CustomResourceCodec, kind_plural
from svc.model.endpoint import PodFacts, Workload, endpoint, endpoint_key
from svc.model.keys import HandleKey, Key, ResourceKey
from svc.model.kv_codec import Codec
from svc.model.object_metadata import ApiGroup
from svc.model.resource import Resource

NODE, NETWORK = "node1", "net"
OLD = "2026-01-02 03:04:05 +0000 UTC"  # of an ADD that has ended


WEB, POOL = "10.65.0.0", "10.65.0.0/28"


@contextmanager
def web_in_pool(site: Site, *others: str) -> Iterator[Backend]:
    """Give the pod `web` its address and an endpoint, in a pool of four blocks, beside other nodes. Delete everything later."""
    with session(site) as store:
        set_ready(store)
        put_pool(store, "pool4", POOL, blockSize=30)
        for node in (NODE, *others):
            site.add_node(node)
        site.add_pod("web")
        assert add(site, store, IpamService(store, NODE), "web", "c1") == WEB
        yield store
    clear(site)


def place(site: Site, store: Backend) -> Place:
    """Return the datastore as svcctl checks it, for the main plugin of `NETWORK`."""
    networks = frozenset({NETWORK})
    if isinstance(store, OrchStore):
        return Place(store, site.names, store.client, pods_are_endpoints=True, wired_networks=networks)
    return Place(store, site.names, wired_networks=networks)


def at_once(_seconds: float, _counts: Mapping[str, int]) -> bool:
    """Make the second observation at once."""
    return True


def ids(place: Place) -> list[tuple[str, str]]:
    """Return the ID and the object of each finding."""
    return [(finding.id, finding.object) for finding in result(place).findings]


def result(place: Place) -> Result:
    return check(place, at_once)


def attributes(pod: str, node: str = NODE) -> dict[str, str]:
    """Return the attributes of a pod's address."""
    return {"node": node, "timestamp": OLD, "pod": pod, "namespace": "default"}


def key_of(site: Site, pod: str, node: str = NODE, ifname: str = "eth0") -> ResourceKey:
    return endpoint_key(site.names, node, Workload("", pod, "default"), ifname)


def resource_of(
    site: Site, pod: str, container: str, addresses: tuple[Address, ...], ifname: str = "eth0", node: str = NODE
) -> Resource:
    """Return the endpoint of an interface of a pod."""
    workload, key = Workload(container, pod, "default"), key_of(site, pod, node, ifname)
    spec = {"ipNetworks": [str(address.host()) for address in addresses], "interfaceName": f"svc{pod}", "mac": "x"}
    return endpoint(site.names, key, node, workload, ifname, spec=spec, facts=PodFacts())


def put_endpoint(
    site: Site, store: Backend, pod: str, container: str, *addresses: str, ifname: str = "eth0", node: str = NODE
) -> None:
    """Write the endpoint of a pod that exists. The pod need not have these addresses."""
    resource = resource_of(site, pod, container, tuple(map(Address, addresses)), ifname, node)
    put(store, key_of(site, pod, node, ifname), resource)


def add(site: Site, store: Backend, ipam: IpamService, pod: str, container: str) -> str:
    """Assign an address to a pod that exists, and write its endpoint, as an ADD does. Return the address."""

    def creation(addresses: tuple[Address, ...]) -> Create:
        return Create(key_of(site, pod), resource_of(site, pod, container, addresses))

    extra = creation if store.atomic else None
    assigned = ipam.assign(Assign(f"{NETWORK}.{container}", attributes(pod), extra_write=extra))
    if extra is None:
        store.write([creation(assigned.addresses)])
    return str(assigned.addresses[0])


def delete(site: Site, store: Backend, ipam: IpamService, pod: str, container: str) -> None:
    """Delete the endpoint and release the address, as a DEL does."""
    deletion = Delete(key_of(site, pod))
    if store.atomic:
        ipam.release(Release(f"{NETWORK}.{container}", extra_write=deletion))
        return
    with suppress(NotFound):
        store.write([deletion])
    ipam.release(Release(f"{NETWORK}.{container}"))


def spoil(site: Site, key: Key, fields: Mapping[str, object] | None) -> None:
    """Replace fields of a stored document, as a defective program does. None makes it undecodable."""
    if isinstance(site, OrchSite):
        _spoil_object(site, key, fields)
        return
    path = Codec(site.names).path(key)
    if isinstance(site, EtcdSite):
        present = site.running.get(path)
        site.running.put(path, _spoiled(present, fields))
    elif isinstance(site, EmbeddedSite):
        with closing(sqlite3.connect(site.file)) as file, file:
            (present,) = file.execute("SELECT value FROM entries WHERE path = ?", (path,)).fetchone()
            file.execute("UPDATE entries SET value = ? WHERE path = ?", (_spoiled(present, fields).encode(), path))


def backup(site: Site, key: Key) -> Callable[[], object]:
    """Return what restores a stored document as it is now, in place of any other."""
    if isinstance(site, OrchSite):
        return _backup_of_object(site, key)
    path = Codec(site.names).path(key)
    if isinstance(site, EtcdSite):
        present = site.running.get(path)
        return lambda: site.running.put(path, present)
    assert isinstance(site, EmbeddedSite)
    with closing(sqlite3.connect(site.file)) as file:
        (value,) = file.execute("SELECT value FROM entries WHERE path = ?", (path,)).fetchone()

    def restore() -> None:
        with closing(sqlite3.connect(site.file)) as file, file:
            file.execute("UPDATE entries SET value = ? WHERE path = ?", (value, path))

    return restore


def put_document(site: Site, path: str, document: str) -> None:
    """Write a document below the key root of a key-value store, also at a path that is not a key."""
    full = f"{site.names.key_root}/{path}"
    if isinstance(site, EtcdSite):
        site.running.put(full, document)
    elif isinstance(site, EmbeddedSite):
        with closing(sqlite3.connect(site.file)) as file, file:
            file.execute("INSERT INTO entries (path, value, revision) VALUES (?, ?, 1)", (full, document.encode()))


def clear(site: Site) -> None:
    """Delete everything, also documents that cannot be read."""
    if isinstance(site, EmbeddedSite):
        with closing(sqlite3.connect(site.file)) as file, file:
            file.execute("DELETE FROM entries")
    else:
        site.clear()


def _spoiled(present: str | bytes, fields: Mapping[str, object] | None) -> str:
    return "{" if fields is None else json.dumps(json.loads(present) | dict(fields))


def _backup_of_object(site: OrchSite, key: Key) -> Callable[[], object]:
    path = _object_path(site, key)
    spec = site.kube.call("GET", path)["spec"]
    return lambda: site.kube.call("PUT", path, site.kube.call("GET", path) | {"spec": spec})


def _object_path(site: OrchSite, key: Key) -> str:
    group = ApiGroup(site.names, site.names.crd_api_version)
    objects = CustomResourceCodec(group)
    return f"{group.root}/{kind_plural(objects.kind(key))}/{objects.name(key)}"


def _spoil_object(site: OrchSite, key: Key, fields: Mapping[str, object] | None) -> None:
    merge = "application/merge-patch+json"
    if isinstance(key, ResourceKey):
        note = {f"{site.names.annotation_prefix}/podIPs": "nonsense"}
        site.kube.call("PATCH", f"{PODS}/{key.name.split('-')[2]}/status", {"metadata": {"annotations": note}}, merge)
        return
    path = _object_path(site, key)
    broken = {"block": {"nonsense": 1}} if isinstance(key, HandleKey) else {"cidr": "nonsense"}
    site.kube.call("PATCH", path, {"spec": broken if fields is None else dict(fields)}, merge)
