"""Custom resources: objects of Calico are read, and written back field for field."""

import json
from typing import Any

import pytest

from harness.calico import CALICO_NAMES, captured, without_server_metadata
from svc._core.cidr import Cidr
from svc.model.custom_resources import CustomResourceCodec, affinity_name, block_name, host_hash, is_marked, kind_plural
from svc.model.ipam import Affinity, Block, Handle, IpamConfig
from svc.model.keys import AffinityKey, AffinityQuery, BlockKey, HandleKey, IpamConfigKey, ResourceKey
from svc.model.object_metadata import ApiGroup, bit_reversed_uid
from svc.model.resource import Resource
from svc.names import DEFAULT

BACKING = CustomResourceCodec(ApiGroup(CALICO_NAMES, CALICO_NAMES.crd_api_version))
PLAIN = CustomResourceCodec(ApiGroup(CALICO_NAMES, CALICO_NAMES.api_version))

Json = dict[str, Any]


@pytest.mark.parametrize("data", list(captured()), ids=lambda data: f"{data['kind']} {data['metadata']['name']}")
def test_captured_objects_are_written_back_unchanged(data: Json) -> None:
    """A given revision becomes the resource version."""
    key, value = BACKING.decode(data["kind"], data)
    assert BACKING.kind(key) == data["kind"]
    assert BACKING.name(key) == data["metadata"]["name"]
    assert BACKING.encode(key, value) == without_server_metadata(data)
    assert BACKING.encode(key, value, "7")["metadata"]["resourceVersion"] == "7"


def test_plain_group_has_neither_annotation_nor_text_for_a_boolean() -> None:
    """The two groups differ only in these and in the kind of the settings."""
    key = AffinityKey("node1", Cidr("10.77.0.128/26"))
    data = PLAIN.encode(key, Affinity("pending"))
    assert data["apiVersion"] == "projectcalico.org/v3"
    assert data["spec"] == {"state": "pending", "node": "node1", "type": "host", "cidr": "10.77.0.128/26", "deleted": False}
    assert "annotations" not in data["metadata"]
    assert data["metadata"]["labels"] == BACKING.encode(key, Affinity())["metadata"]["labels"]
    assert PLAIN.decode("BlockAffinity", data) == (key, Affinity("pending"))
    assert (PLAIN.kind(IpamConfigKey()), BACKING.kind(IpamConfigKey())) == ("IPAMConfiguration", "IPAMConfig")


@pytest.mark.parametrize("objects", [PLAIN, BACKING])
def test_settings_include_false(objects: CustomResourceCodec) -> None:
    """Zero and the empty text are omitted."""
    data = objects.encode(IpamConfigKey(), IpamConfig(auto_allocate_blocks=False, cooldown_seconds=5))
    assert data["spec"] == {"strictAffinity": False, "autoAllocateBlocks": False, "ipCooldownSeconds": 5}
    assert data["metadata"]["name"] == "default"
    value = IpamConfig(True, True, 3, "Disabled", 0)
    assert objects.decode(data["kind"], objects.encode(IpamConfigKey(), value)) == (IpamConfigKey(), value)


@pytest.mark.parametrize(
    ("cidr", "name"),
    [
        ("10.65.0.64/26", "10-65-0-64-26"),
        ("fd80:24e2:f998:72d6::/122", "fd80-24e2-f998-72d6---122"),
        ("fd00:10:244::40/122", "fd00-10-244--40-122"),
    ],
)
def test_blocks_are_named_after_their_cidr(cidr: str, name: str) -> None:
    """Characters that a name cannot have are replaced."""
    assert block_name(Cidr(cidr)) == name


def test_affinities_are_named_after_host_and_block() -> None:
    """A long host name is cut, and a hash keeps the names different."""
    cidr = Cidr("10.65.0.64/26")
    assert affinity_name("node1", cidr) == "node1-10-65-0-64-26"
    longest = "n" * (252 - len("-10-65-0-64-26"))
    assert affinity_name(longest, cidr) == f"{longest}-10-65-0-64-26"
    first, second = affinity_name(longest + "n", cidr), affinity_name(longest + "x", cidr)
    assert first != second
    assert len(first) == len(second) == 252
    assert first.startswith("n" * (252 - 13 - 13) + "-10-65-0-64-26-")


def test_host_hash_equals_that_of_calico() -> None:
    assert host_hash("node-a") == "PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA"


def test_queries_for_a_host_select_by_label() -> None:
    """Other queries have no selector."""
    selector = BACKING.selector(AffinityQuery("node-a", 6))
    assert selector == (
        f"projectcalico.org/affinity-type=host,projectcalico.org/hostname-hash={host_hash('node-a')},projectcalico.org/ip-version=6"
    )
    assert BACKING.selector(AffinityQuery()) == ""


def test_bit_reversal_of_a_uid_is_symmetric() -> None:
    """The pair was captured from Calico. Any other text is unchanged."""
    assert bit_reversed_uid("30316465-6365-4463-ad63-3564622d3638") == "0c8c26a6-c6a6-44c6-adc6-ac2646b46c1c"
    assert bit_reversed_uid("0c8c26a6-c6a6-44c6-adc6-ac2646b46c1c") == "30316465-6365-4463-ad63-3564622d3638"
    assert bit_reversed_uid("pool") == "pool"
    assert bit_reversed_uid("") == ""


def test_annotation_has_the_metadata_of_a_resource() -> None:
    """Labels in the profile's domains are also native labels. An owner gets the API version and UID of the server."""
    owner = {"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "uid": "0c8c26a6-c6a6-44c6-adc6-ac2646b46c1c"}
    labels = {"rack": "a", "projectcalico.org/created-by": "x", "operator.tigera.io/y": "z"}
    metadata: Json = {
        "name": "p",
        "uid": "0c8c26a6-c6a6-44c6-adc6-ac2646b46c1c",
        "creationTimestamp": "2026-11-20T18:03:22Z",
        "labels": labels,
        "annotations": {"note": "mine"},
        "ownerReferences": [owner],
        "finalizers": ["f"],
    }
    pool = Resource("IPPool", metadata, {"cidr": "10.0.0.0/24", "unknown": 1})
    data = BACKING.encode(ResourceKey("IPPool", "p"), pool)
    native = data["metadata"]
    assert native["labels"] == {"projectcalico.org/created-by": "x", "operator.tigera.io/y": "z"}
    assert native["ownerReferences"] == [
        owner | {"apiVersion": "crd.projectcalico.org/v1", "uid": "30316465-6365-4463-ad63-3564622d3638"}
    ]
    assert "uid" not in native
    stored = json.loads(native["annotations"]["projectcalico.org/metadata"])
    assert stored == {"creationTimestamp": "2026-11-20T18:03:22Z", "labels": labels, "annotations": {"note": "mine"}}
    native["uid"] = "30316465-6365-4463-ad63-3564622d3638"
    assert BACKING.decode("IPPool", data) == (ResourceKey("IPPool", "p"), pool)


def test_resources_without_the_annotation_are_read() -> None:
    """kubectl writes such resources, with native labels."""
    data = {"metadata": {"name": "p", "resourceVersion": "1", "generation": 3, "labels": {"a": "b"}}, "spec": {"cidr": "x"}}
    _, value = BACKING.decode("IPPool", data)
    assert value == Resource("IPPool", {"name": "p", "labels": {"a": "b"}}, {"cidr": "x"})


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("IPAMBlock", {"metadata": {"name": "b"}}),
        (
            "IPAMBlock",
            {"metadata": {}, "spec": {"cidr": "10.0.0.0/30", "allocations": [None], "unallocated": [0], "attributes": []}},
        ),
        ("BlockAffinity", {"metadata": {}, "spec": {"cidr": "10.0.0.0/30"}}),
        ("IPAMHandle", {"metadata": {}, "spec": {"handleID": "h", "block": {"x": 1}}}),
        ("IPPool", {"metadata": {"name": "p", "annotations": {"projectcalico.org/metadata": "{"}}, "spec": {}}),
        ("IPPool", {"metadata": {"name": "p", "annotations": {"projectcalico.org/metadata": "[]"}}, "spec": {}}),
        ("IPPool", {"metadata": {"name": "p"}, "spec": ["x"]}),
    ],
)
def test_damaged_objects_are_value_errors(kind: str, data: Json) -> None:
    with pytest.raises(ValueError, match=r"."):
        BACKING.decode(kind, data)


def test_tombstones_are_marked_in_every_group() -> None:
    """They have all fields that the schema requires."""
    for objects in (BACKING, PLAIN):
        for key in (HandleKey("H.c1"), AffinityKey("n", Cidr("10.0.0.0/30"))):
            data = objects.tombstone(key, "9")
            assert is_marked(data)
            assert data["metadata"]["resourceVersion"] == "9"
            assert objects.decode(data["kind"], data)[0] == key
    assert not is_marked(BACKING.encode(HandleKey("h"), Handle({})))


def test_handles_keep_their_case_in_the_object() -> None:
    """The name of the object is in lower case."""
    data = BACKING.encode(HandleKey("Net.C1"), Handle({"10.0.0.0/30": 1}))
    assert data["metadata"]["name"] == "net.c1"
    assert BACKING.decode("IPAMHandle", data) == (HandleKey("Net.C1"), Handle({"10.0.0.0/30": 1}))


def test_unclaimed_block_has_no_affinity_field() -> None:
    """Its list of attributes is empty, not null."""
    block = Block.from_json({"cidr": "10.0.0.0/31", "allocations": [None, None], "unallocated": [0, 1], "sequenceNumber": 5})
    spec = BACKING.encode(BlockKey(block.cidr), block)["spec"]
    assert "affinity" not in spec
    assert spec["attributes"] == []
    assert spec["strictAffinity"] is False


def test_plurals_are_those_of_the_api() -> None:
    """The plurals occur in the paths of the API."""
    kinds = ("IPAMBlock", "BlockAffinity", "IPAMHandle", "IPAMConfig", "IPAMConfiguration", "IPPool")
    plurals = ["ipamblocks", "blockaffinities", "ipamhandles", "ipamconfigs", "ipamconfigurations", "ippools"]
    assert [kind_plural(kind) for kind in kinds] == plurals
    assert CustomResourceCodec(ApiGroup(DEFAULT, DEFAULT.crd_api_version)).group.root == "/apis/crd.svc.internal/v1"
