"""Sample values of every kind, and helpers that write them."""

from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.datastore.api import Backend, Create, Entry
from svc.model.ipam import Attribute, Block, Handle
from svc.model.keys import Key
from svc.model.kv_codec import Value
from svc.model.resource import Resource

TIMEOUT_SECONDS = 20.0  # for actions of other threads; a remote store may be slow
COUNTED = "10.0.0.0/26"  # the block whose addresses the sample handles count


def block(cidr: str = "10.0.0.0/30", holder: str = "net1.c1") -> Block:
    """Return a block with numbers that need 63 bits.

    A floating-point number cannot hold them, and some servers accept no larger ones.
    """
    ordinals = Ordinals(2)
    ordinals.allocate(0)
    attribute = Attribute(holder, {"node": "node1"})
    return Block(Cidr(cidr), "host:node1", ordinals, 2**62 + 1, "2026-11-20T18:03:21Z", [attribute], {0: 2**62})


def without_server_fields(value: Value) -> Value:
    """Return the value without the uid and creation time, which a datastore may assign itself."""
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
