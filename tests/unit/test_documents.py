"""Stored documents of other programs: unknown fields are kept, and errors name the malformed field."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from svc._core.cidr import Cidr
from svc.model.custom_resources import CustomResourceCodec
from svc.model.ipam import CONFIRMED, Affinity, Block, Handle
from svc.model.keys import AffinityKey, BlockKey, HandleKey, IpamConfigKey, Key, ResourceKey
from svc.model.kv_codec import Codec
from svc.model.object_metadata import ApiGroup
from svc.model.resource import Resource
from svc.names import DEFAULT

Json = dict[str, Any]

BLOCK, AFFINITY = BlockKey(Cidr("10.0.0.0/30")), AffinityKey("n", Cidr("10.0.0.0/30"))
HANDLE, CONFIG, POOL = HandleKey("h"), IpamConfigKey(), ResourceKey("IPPool", "p")

VALID: dict[Key, Json] = {
    BLOCK: {
        "cidr": "10.0.0.0/30",
        "affinity": "host:n",
        "allocations": [0, None, None, None],
        "unallocated": [1, 2, 3],
        "attributes": [{"handle_id": "h", "secondary": {"pod": "p"}}],
        "sequenceNumber": 5,
        "sequenceNumberForAllocation": {"0": 4},
        "deleted": False,
    },
    AFFINITY: {"state": "confirmed", "deleted": False},
    HANDLE: {"block": {"10.0.0.0/30": 1}, "deleted": False},
    CONFIG: {"strict_affinity": True},
    POOL: {"kind": "IPPool", "apiVersion": DEFAULT.api_version, "metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/24"}},
}
UNKNOWN = {"hostAffinity": "n", "novel": {"deep": [1, None]}}

ERRORS: list[tuple[Key, Json, str]] = [
    (BLOCK, {"cidr": None}, "cidr is missing"),
    (BLOCK, {"cidr": 7}, "cidr = 7 is a number, not a string"),
    (BLOCK, {"cidr": "10.0.0.4/30"}, "holds the document of block 10.0.0.4/30"),
    (BLOCK, {"affinity": 5}, "affinity = 5 is a number, not a string"),
    (BLOCK, {"allocations": None}, "allocations is missing"),
    (BLOCK, {"allocations": "none"}, "allocations = 'none' is a string, not an array"),
    (BLOCK, {"allocations": [0, None], "unallocated": [1]}, "lists 2 addresses, not 4"),
    (BLOCK, {"allocations": [2**64 - 1, None, None, None]}, r"allocations\[0\] is 18446744073709551615"),
    (BLOCK, {"unallocated": [1, 2, 2**64 - 1]}, r"unallocated\[2\] is 18446744073709551615"),
    (BLOCK, {"allocations": ["0", None, None, None]}, r"allocations\[0\] is '0'"),
    (BLOCK, {"allocations": [-1, None, None, None]}, r"allocations\[0\] is -1"),
    (BLOCK, {"allocations": [1, None, None, None]}, "allocations name attribute 1 of 1"),
    (BLOCK, {"attributes": None}, "allocations name attribute 0 of 0"),
    (BLOCK, {"unallocated": [1, 2, 3, 3]}, "occurs twice"),
    (BLOCK, {"unallocated": [0, 1, 2, 3]}, "0, which is allocated"),
    (BLOCK, {"unallocated": [1, 2]}, "ordinal 3 is neither allocated nor in unallocated"),
    (BLOCK, {"unallocated": [1, 2, 9]}, "not an ordinal of 0..3"),
    (BLOCK, {"attributes": {"0": {}}}, "attributes = .* is an object, not an array"),
    (BLOCK, {"attributes": [5]}, r"attributes\[0\] = 5 is a number, not an object"),
    (BLOCK, {"attributes": [{"handle_id": 5}]}, r"attributes\[0\].handle_id = 5 is a number, not a string"),
    (BLOCK, {"attributes": [{"secondary": {"pod": 5}}]}, r"attributes\[0\].secondary.pod = 5 is a number, not a string"),
    (BLOCK, {"attributes": [{"alternateOwnerAttrs": [1]}]}, r"attributes\[0\].alternateOwnerAttrs = .* is an array"),
    (BLOCK, {"sequenceNumber": "5"}, "sequenceNumber = '5' is a string, not a whole number"),
    (BLOCK, {"sequenceNumber": True}, "sequenceNumber = true is a boolean"),
    (BLOCK, {"sequenceNumberForAllocation": {"4": 1}}, "sequenceNumberForAllocation names ordinal '4', none of 0..3"),
    (BLOCK, {"sequenceNumberForAllocation": {"0": -1}}, "sequenceNumberForAllocation.0 = -1"),
    (BLOCK, {"deleted": "false"}, "deleted = 'false' is a string, not a boolean"),
    (AFFINITY, {"state": 5}, "state = 5 is a number, not a string"),
    (AFFINITY, {"deleted": "true"}, "deleted = 'true' is a string"),
    (HANDLE, {"block": 7}, "block = 7 is a number, not an object"),
    (HANDLE, {"block": {"10.0.0.0/30": "many"}}, "block.10.0.0.0/30 = 'many' is a string"),
    (HANDLE, {"block": {"10.0.0.0/30": -1}}, "block.10.0.0.0/30 = -1 is a number, not a whole number of 0 or more"),
    (HANDLE, {"block": {"10.0.0.1/30": 1}}, "has bits right of its length"),
    (CONFIG, {"strict_affinity": "false"}, "strict_affinity = 'false' is a string, not a boolean"),
    (CONFIG, {"maxBlocksPerHost": "3"}, "maxBlocksPerHost = '3' is a string"),
    (CONFIG, {"ipCooldownSeconds": 1.5}, "ipCooldownSeconds = 1.5 is"),
    (CONFIG, {"kubeVirtVMAddressPersistence": 1}, "kubeVirtVMAddressPersistence = 1 is a number"),
    (POOL, {"kind": None}, "kind is missing"),
    (POOL, {"kind": "Node"}, "kind = 'Node' is not IPPool"),
    (POOL, {"metadata": [1]}, "metadata = .* is an array, not an object"),
    (POOL, {"metadata": {"labels": [1]}}, "metadata.labels = .* is an array, not an object"),
    (POOL, {"metadata": {"annotations": {"a": 5}}}, "metadata.annotations.a = 5 is a number, not a string"),
    (POOL, {"spec": "x"}, "spec = 'x' is a string, not an object"),
    (POOL, {"status": [1]}, "status = .* is an array, not an object"),
]


def decoded(key: Key, document: Json) -> Any:
    return Codec(DEFAULT).decode(key, json.dumps(document).encode())


def encoded(value: Any) -> Json:
    found: Json = json.loads(Codec(DEFAULT).encode(value))
    return found


@pytest.mark.parametrize(("key", "change", "expected"), ERRORS, ids=[f"{key} {change}" for key, change, _ in ERRORS])
def test_error_names_the_field(key: Key, change: Json, expected: str) -> None:
    """The error has the value, and what is expected."""
    with pytest.raises(ValueError, match=expected):
        decoded(key, VALID[key] | change)


@pytest.mark.parametrize("key", VALID, ids=str)
@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"[]", "it is an array, not an object"), (b"nonsense", "it is not JSON"), (b"\xff", "it is not JSON")],
)
def test_error_says_that_the_document_is_not_an_object(key: Key, data: bytes, expected: str) -> None:
    """This holds for every kind of key."""
    with pytest.raises(ValueError, match=expected):
        Codec(DEFAULT).decode(key, data)


@pytest.mark.parametrize("key", VALID, ids=str)
def test_unknown_fields_are_written_back(key: Key) -> None:
    """They follow the known fields, and null is a value."""
    document = VALID[key] | UNKNOWN
    assert encoded(decoded(key, document)) == document


@pytest.mark.parametrize("api_version", [DEFAULT.crd_api_version, DEFAULT.api_version])
@pytest.mark.parametrize("key", [key for key in VALID if key != POOL], ids=str)
def test_unknown_fields_of_objects_are_written_back(key: Key, api_version: str) -> None:
    """This holds for each API group."""
    objects = CustomResourceCodec(ApiGroup(DEFAULT, api_version))
    before = objects.encode(key, decoded(key, VALID[key] | UNKNOWN))
    assert before["spec"].items() >= UNKNOWN.items()
    found, value = objects.decode(objects.kind(key), before)
    assert (found, encoded(value)) == (key, VALID[key] | UNKNOWN)
    assert objects.encode(key, value) == before


CHANGES: list[tuple[Key, Callable[[Any], Any]]] = [
    (BLOCK, Block.copy),
    (AFFINITY, lambda value: value.with_state("pending").with_state(CONFIRMED)),
    (HANDLE, lambda value: value.changed("10.0.0.4/30", 2).changed("10.0.0.4/30", -2)),
    (HANDLE, lambda value: value.counting(dict(value.blocks))),
    (POOL, lambda value: replace(value, spec=dict(value.spec))),
]


@pytest.mark.parametrize(("key", "change"), CHANGES)
def test_unknown_fields_remain_after_changes(key: Key, change: Callable[[Any], Any]) -> None:
    """They remain after any change of the value."""
    document = VALID[key] | UNKNOWN
    assert encoded(change(decoded(key, document))) == document


def test_attributes_differ_by_unknown_fields() -> None:
    """Otherwise the unknown fields of one address would apply to another one."""
    attributes = [{"handle_id": "h", "novel": 1}, {"handle_id": "h"}]
    block = decoded(BLOCK, VALID[BLOCK] | {"attributes": attributes, "allocations": [0, 1, None, None], "unallocated": [2, 3]})
    assert encoded(block)["attributes"] == attributes
    assert block.attributes[0] != block.attributes[1]


def test_changed_owner_is_written() -> None:
    """The original attribute was encoded before the change."""
    attribute = decoded(BLOCK, VALID[BLOCK]).attributes[0]
    attribute.encoded()
    changed = replace(attribute, secondary={"pod": "q"})
    assert orjson.dumps(changed.encoded()) == b'{"handle_id":"h","secondary":{"pod":"q"}}'


def test_status_is_a_separate_field_of_an_object() -> None:
    """It would be lost in any other part of the object."""
    objects = CustomResourceCodec(ApiGroup(DEFAULT, DEFAULT.crd_api_version))
    pool = Resource("IPPool", {"name": "p"}, {"cidr": "10.0.0.0/24"}, {"conditions": []})
    assert objects.encode(POOL, pool)["status"] == {"conditions": []}


def test_null_equals_an_absent_field() -> None:
    """Other programs write null for a missing value."""
    nothing = dict.fromkeys(("affinity", "affinity_claim_time", "sequenceNumber", "sequenceNumberForAllocation", "deleted"))
    present = {name: value for name, value in VALID[BLOCK].items() if name not in nothing}
    assert decoded(BLOCK, present | nothing) == decoded(BLOCK, present)
    assert decoded(AFFINITY, {"state": None}) == Affinity(CONFIRMED)
    assert decoded(HANDLE, {}) == Handle({})
