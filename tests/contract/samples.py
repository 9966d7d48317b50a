"""What the contract's tests write: a value of every kind."""

from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Create, Entry
from svc.model.ipam import Attribute, Block, Handle
from svc.model.keys import Key
from svc.model.kv_codec import Value
from svc.model.resource import Resource

TIMEOUT_SECONDS = 20.0  # seconds for what happens on another thread; a remote store may take its time
COUNTED = "10.0.0.0/26"  # a block in the handles that tests count with


def block(cidr: str = "10.0.0.0/30", holder: str = "net1.c1") -> Block:
    """Its numbers are those that do not fit into a floating-point number, and still into 63 bits, as some servers demand."""
    ordinals = Ordinals(2)
    ordinals.allocate(0)
    attribute = Attribute(holder, {"node": "node1"})
    return Block(Cidr(cidr), "host:node1", ordinals, 2**62 + 1, "2026-11-20T18:03:21Z", [attribute], {0: 2**62})


def bare(value: Value) -> Value:
    """Without what a datastore may give a resource itself: its uid and the time of its creation."""
    if not isinstance(value, Resource):
        return value
    metadata = {name: item for name, item in value.metadata.items() if name not in ("uid", "creationTimestamp")}
    return Resource(value.kind, metadata, value.spec, value.status)


def pool(name: str, cidr: str = "10.0.0.0/24") -> Resource:
    return Resource("IPPool", {"name": name, "uid": name, "creationTimestamp": "2026-11-20T18:03:21Z"}, {"cidr": cidr})


def handle(count: int) -> Handle:
    return Handle({COUNTED: count})


def create(backend: Backend, key: Key, value: Value) -> Entry:
    (entry,) = backend.write([Create(key, value)])
    assert entry is not None
    return entry
