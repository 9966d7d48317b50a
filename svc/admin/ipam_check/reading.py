"""Reading of a datastore: the blocks, then everything else, then the blocks again.

Lists are read in parts and kept in short forms, because a cluster has tens of thousands of pods, handles and addresses.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from sys import intern
from typing import TYPE_CHECKING, Any, Final, TypeVar

from svc._core.cidr import Cidr
from svc.admin.ipam_check.observation import Earlier, Observation, ObservedAffinity, ObservedBlock, ObservedHandle, Place
from svc.admin.resources import CLUSTER
from svc.datastore.api import Backend, Entries, StoreError, UndecodableEntry
from svc.ipam.pools import read_pools, read_reserved
from svc.ipam.settings import cooldown_of, read_settings
from svc.model.endpoint import KIND as ENDPOINT_KIND
from svc.model.ipam import IpamConfig
from svc.model.keys import (
    HOST_KINDS,
    PLURALS,
    AffinityQuery,
    BlockQuery,
    HandleKey,
    HandleQuery,
    Query,
    ResourceKey,
    ResourceQuery,
)
from svc.model.kv_codec import Codec
from svc.model.pod_endpoint import endpoints_of

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

Json = dict[str, Any]
Page = TypeVar("Page")

_PODS, _SERVICES, _NODES = "/api/v1/pods", "/api/v1/services", "/api/v1/nodes"
_OBJECTS: Final = 200  # of a page: a pod takes up to 100 KiB


def observe(place: Place) -> Observation:
    """Read the datastore once. Raise StoreError if it fails: then nothing can be said."""
    earlier = _read_earlier(place.backend)
    found = Observation(place)
    _read_settings(found)
    _read_affinities(found)
    _read_handles(found)
    _read_nodes(found)
    _read_uses(found)
    _read_blocks(found, earlier)
    found.now = datetime.now(timezone.utc)
    return found


def _read_earlier(backend: Backend) -> dict[Cidr, Earlier]:
    """Return what the first reading shows of the blocks."""
    earlier = {}
    for page in backend.pages(BlockQuery()):
        for entry in page:
            block = entry.value
            earlier[block.cidr] = Earlier(block.sequence, block.affinity, block.ordinal_sequences)
        page.clear()
    return earlier


def _read_settings(found: Observation) -> None:
    backend = found.place.backend
    found.pools, found.reserved = read_pools(backend), read_reserved(backend)
    found.undecodable |= {f"IP pool {name}": error for name, error in found.pools.unreadable.items()}
    found.undecodable |= {f"IP reservation {name}": error for name, error in found.reserved.unreadable.items()}
    try:
        settings = read_settings(backend)
    except UndecodableEntry as error:
        settings = IpamConfig()
        found.undecodable["IPAM settings"] = str(error)
    found.cooldown_seconds = cooldown_of(settings).seconds
    _read_cluster(found)


def _read_cluster(found: Observation) -> None:
    """Read the identity of the datastore, only to report whether it can be decoded. A reader of pods may lack the right."""
    try:
        found.place.backend.find(CLUSTER)
    except UndecodableEntry as error:
        found.undecodable["cluster information"] = str(error)
    except StoreError as error:
        if not error.lacks_right:
            raise


def _each(found: Observation, query: Query, add: Callable[[Any, Any, str], None]) -> None:
    for page in _ahead(found.place.backend.pages(query)):
        _note(found, page)
        for entry in page:
            add(entry.key, entry.value, entry.revision)
        page.clear()


def _read_affinities(found: Observation) -> None:
    for kind in HOST_KINDS:
        _each(found, AffinityQuery(kind=kind), lambda *affinity: found.affinities.append(ObservedAffinity(*affinity)))


def _read_handles(found: Observation) -> None:
    def add(key: HandleKey, handle: Any, revision: str) -> None:
        found.handles[key.handle] = ObservedHandle(revision, tuple((intern(cidr), n) for cidr, n in handle.blocks.items()))

    _each(found, HandleQuery(), add)


def _read_nodes(found: Observation) -> None:
    """Read the nodes. One that cannot be decoded exists."""

    codec = Codec(found.place.names)

    def add(key: ResourceKey, node: Any, _revision: str) -> None:
        found.nodes.add(key.name)
        found.uses.add_node(f"{_NODES}/{key.name}" if found.place.pods_are_endpoints else codec.path(key), key, node)

    known = len(found.undecodable)
    _each(found, ResourceQuery("Node"), add)
    lost = {path.rpartition("/")[2] for path in [*found.undecodable][known:]}
    found.uses.unreadable_nodes |= lost
    found.nodes |= lost


def _read_uses(found: Observation) -> None:
    """Read the endpoints before the pods, so that a pod which has ended since has at least one of them."""
    place, codec = found.place, Codec(found.place.names)
    if not place.pods_are_endpoints:
        _each(
            found,
            ResourceQuery(ENDPOINT_KIND),
            lambda key, resource, _revision: found.uses.add_endpoint(codec.path(key), key, resource),
        )
        marker = f"/{PLURALS[ENDPOINT_KIND]}/"
        lost = [path.partition(marker)[2] for path in found.undecodable if marker in path]
        found.uses.unreadable |= {rest.partition("/")[0] for rest in lost}
    if place.client is not None:
        _read_pods(found, place.client)
        _read_services(found, place.client)
    found.undecodable |= found.uses.invalid


def _read_pods(found: Observation, client: "Client") -> None:
    found.uses.knows_pods = True
    for pod in _objects(client, _PODS):
        if found.place.pods_are_endpoints:
            _add_endpoints_of(found, pod)
        found.uses.add_pod(found.place.names, pod)


def _read_services(found: Observation, client: "Client") -> None:
    """Read the services. Without the right to do so, their addresses are unverifiable."""
    try:
        for service in _objects(client, _SERVICES):
            found.uses.add_service(service)
    except StoreError as error:
        if not error.lacks_right:
            raise
    else:
        found.uses.knows_services = True


def _objects(client: "Client", path: str) -> Iterator[Json]:
    """Yield the objects of a collection, and hold only one page of them."""
    for page in _ahead(client.pages(path, limit=str(_OBJECTS))):
        yield from page.items
        page.items.clear()


def _ahead(pages: Iterator[Page]) -> Iterator[Page]:
    """Yield the pages. A thread reads the next page while the caller works on one."""
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(next, pages, None)
        while (page := reading.result()) is not None:
            reading = pool.submit(next, pages, None)
            yield page


def _add_endpoints_of(found: Observation, pod: Json) -> None:
    path = f"{_PODS}/{pod['metadata'].get('namespace')}/{pod['metadata'].get('name')}"
    try:
        for key, resource in endpoints_of(found.place.names, pod):
            found.uses.add_endpoint(path, key, resource)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found.undecodable[path] = str(error)
        found.uses.unreadable.add(str(pod["metadata"].get("namespace")))


def _read_blocks(found: Observation, earlier: dict[Cidr, Earlier]) -> None:
    for page in found.place.backend.pages(BlockQuery()):
        _note(found, page)
        found.unreadable += [cidr for path in page.skipped if (cidr := block_at(path))]
        for entry in page:
            cidr = entry.value.cidr
            found.blocks[cidr] = ObservedBlock(entry.value, entry.revision, earlier.pop(cidr, None))
            found.index.insert(cidr, cidr)
        page.clear()


def _note(found: Observation, page: Entries) -> None:
    """Record the documents of a list that cannot be decoded."""
    for path, error in page.skipped.items():
        if path in page.inconsistent:
            found.inconsistent[str(block_at(path) or path)] = error
        else:
            found.undecodable[path] = error


def block_at(path: str) -> Cidr | None:
    """Return the CIDR in the path of a block's document or object: `10.0.0.0-26`, `10-0-0-0-26`, `fd00---122`.

    Bits right of the length are cleared: the block may have the addresses of such a CIDR.
    """
    network, _, length = path.rpartition("/")[2].rpartition("-")
    spellings = (network, network.replace("-", "."), network.replace("-", ":"))
    for spelling in spellings:
        with suppress(ValueError):
            return Cidr.masked(f"{spelling}/{length}")
    return None
