"""IP pools: defaults, stored form, and errors with field, value and fix."""

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from svc._core.cidr import Cidr
from svc.model.pool import Pool, check_pool, with_defaults
from svc.model.resource import Resource, set_identity

FIXTURE = Path(__file__).parent / "fixtures" / "etcd-0-empty.jsonl"
NOW = datetime(2026, 11, 20, 18, 2, 53, 999_999, timezone.utc)


def resource(name: str = "p", **spec: Any) -> Resource:
    return Resource("IPPool", {"name": name}, {"cidr": "10.0.0.0/16"} | spec)


def pool(name: str = "p", **spec: Any) -> Pool:
    return Pool.from_resource(resource(name, **spec))


def test_defaults_are_filled_in() -> None:
    """Only the CIDR of a pool is required."""
    found = pool()
    assert (found.name, found.cidr, found.block_size) == ("p", Cidr("10.0.0.0/16"), 26)
    assert found.allowed_uses == ("Workload", "Tunnel")
    assert found.assignment_mode == "Automatic"
    assert (str(found.node_selector), str(found.namespace_selector)) == ("all()", "all()")
    assert (found.disabled, found.usable) == (False, True)
    assert pool(cidr="fd00::/64").block_size == 122


def test_null_counts_as_missing() -> None:
    """A key without a value is null in YAML."""
    assert pool(blockSize=None, nodeSelector=None, allowedUses=None) == pool()


def test_given_fields_are_kept() -> None:
    """The object has the values of the resource."""
    found = pool(
        blockSize=28,
        nodeSelector="zone == 'a'",
        namespaceSelector="has(team)",
        allowedUses=["Workload"],
        assignmentMode="Manual",
        vxlanMode="CrossSubnet",
        natOutgoing=True,
        disabled=True,
    )
    assert (found.block_size, found.allowed_uses, found.assignment_mode) == (28, ("Workload",), "Manual")
    assert found.disabled
    assert found.node_selector.matches({"zone": "a"})
    assert not found.namespace_selector.matches({})


@pytest.mark.parametrize(
    ("metadata", "spec", "status"),
    [
        ({}, {"disabled": True}, None),
        ({"deletionTimestamp": "2026-11-20T18:02:53Z"}, {}, None),
        ({}, {}, {"conditions": [{"type": "Other", "status": "True"}, {"type": "Allocatable", "status": "False"}]}),
    ],
    ids=["disabled", "deleted", "not allocatable"],
)
def test_disabled_and_deleted_pools_are_not_usable(
    metadata: dict[str, Any], spec: dict[str, Any], status: dict[str, Any] | None
) -> None:
    """They can still be read."""
    found = Pool.from_resource(Resource("IPPool", {"name": "p"} | metadata, {"cidr": "10.0.0.0/16"} | spec, status))
    assert not found.usable


def test_allocatable_pools_are_usable() -> None:
    """Only the status "False" of the condition makes a pool unusable."""
    status = {"conditions": [{"type": "Allocatable", "status": "True"}]}
    assert Pool.from_resource(Resource("IPPool", {"name": "p"}, {"cidr": "10.0.0.0/16"}, status)).usable


@pytest.mark.parametrize(
    "spec",
    [
        {"cidr": None},
        {"cidr": "10.0.0.1/16"},
        {"cidr": "10.0.0.0/28"},
        {"cidr": 7},
        {"blockSize": 12},
        {"blockSize": "26"},
        {"nodeSelector": "zone =="},
        {"nodeSelector": "global()"},
    ],
    ids=str,
)
def test_invalid_pools_cannot_be_read(spec: dict[str, Any]) -> None:
    """The ValueError has the name of the pool."""
    with pytest.raises(ValueError, match="IP pool 'p': spec"):
        pool(**spec)


def test_stored_pools_equal_captured_ones() -> None:
    """This includes defaults, order of fields and omitted fields."""
    captured = [json.loads(json.loads(line)["value"]) for line in FIXTURE.read_text().splitlines() if "/ippools/" in line]
    given = [
        resource("pool4", cidr="10.77.0.0/24", natOutgoing=True, ipipMode="Always"),
        resource("pool6", cidr="FD77:0::/112", natOutgoing=False, disabled=False),
    ]
    for document, pool_given in zip(captured, given, strict=True):
        made = with_defaults(pool_given)
        set_identity(made, NOW, document["metadata"]["uid"])
        assert json.dumps(made.to_json("projectcalico.org/v3")) == json.dumps(document)


def test_set_identity_keeps_existing_fields() -> None:
    """It also sorts the metadata."""
    made = Resource("Node", {"labels": {"a": "b"}, "annotations": {}, "novel": 1, "name": "n", "uid": "given"})
    set_identity(made, NOW, "unused")
    assert list(made.metadata.items()) == [
        ("name", "n"),
        ("uid", "given"),
        ("creationTimestamp", "2026-11-20T18:02:53Z"),
        ("labels", {"a": "b"}),
        ("novel", 1),
    ]


def test_unknown_fields_are_stored_after_the_known() -> None:
    """Fields of a newer writer survive an update."""
    assert list(with_defaults(resource(novel=1)).spec)[-1] == "novel"


BALANCER = {"allowedUses": ["LoadBalancer"]}

ERRORS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    (BALANCER, []),
    ({"cidr": "10.0.0.0/28", "disabled": True}, []),
    ({"cidr": "fd00::/48", "blockSize": 116, "vxlanMode": "Always"}, []),
    ({"cidr": None}, ["spec.cidr is missing: give"]),
    ({"cidr": 7}, ["spec.cidr = 7 is a number: give a string"]),
    ({"cidr": "10.0.0.1/16"}, ["'10.0.0.1/16' is not a CIDR (the network is '10.0.0.0/16'): give ADDRESS/LENGTH, such as"]),
    ({"cidr": "ten"}, ["spec.cidr = 'ten' is not a CIDR (a number is missing): give ADDRESS/LENGTH, such as 10.0.0.0/16"]),
    ({"cidr": "169.254.8.0/24"}, ["spec.cidr = '169.254.8.0/24' is link-local"]),
    ({"cidr": "fe80::/64"}, ["spec.cidr = 'fe80::/64' is link-local"]),
    ({"cidr": "127.1.0.0/16"}, ["spec.cidr = '127.1.0.0/16' is loopback (127.0.0.0/8)"]),
    ({"cidr": "239.1.0.0/24"}, ["spec.cidr = '239.1.0.0/24' is multicast (224.0.0.0/4)"]),
    ({"cidr": "ff05::/64"}, ["spec.cidr = 'ff05::/64' is multicast (ff00::/8)"]),
    (
        {"cidr": "::/112"},
        ["spec.cidr = '::/112' has addresses that are unspecified (::/128), loopback (::1/128): choose a range"],
    ),
    (
        {"cidr": "0.0.0.0/0", "blockSize": 20},
        ["are reserved (0.0.0.0/8), reserved (240.0.0.0/4), link-local (169.254.0.0/16), loopback (127.0.0.0/8), multicast"],
    ),
    ({"cidr": "0.0.0.0/8"}, ["spec.cidr = '0.0.0.0/8' is reserved (0.0.0.0/8)"]),
    ({"cidr": "240.0.0.0/4"}, ["spec.cidr = '240.0.0.0/4' is reserved (240.0.0.0/4)"]),
    ({"cidr": "255.255.255.0/24"}, ["spec.cidr = '255.255.255.0/24' is reserved (240.0.0.0/4)"]),
    ({"cidr": "::/128", "blockSize": 128}, ["spec.cidr = '::/128' is unspecified (::/128)"]),
    ({"cidr": "::ffff:0:0/96"}, ["is IPv4-mapped (::ffff:0.0.0.0/96)"]),
    ({"cidr": "::ffff:10.0.0.0/112"}, ["is IPv4-mapped (::ffff:0.0.0.0/96)"]),
    ({"cidr": "10.0.0.0/28"}, ["spec.cidr = '10.0.0.0/28' is smaller than one block of /26: set blockSize to 28"]),
    ({"blockSize": 19}, ["spec.blockSize = 19 is not a prefix length of an IPv4 block: give 20 to 32"]),
    ({"blockSize": 33}, ["spec.blockSize = 33 is not a prefix length"]),
    ({"cidr": "fd00::/64", "blockSize": 115}, ["an IPv6 block: give 116 to 128, or leave it out for 122"]),
    ({"blockSize": "26"}, ["spec.blockSize = '26' is a string: give a number"]),
    ({"blockSize": True}, ["spec.blockSize = true is a boolean: give a number"]),
    ({"natOutgoing": "yes"}, ["spec.natOutgoing = 'yes' is a string: give a boolean"]),
    ({"allowedUses": "Workload"}, ["spec.allowedUses = 'Workload' is a string: give an array"]),
    ({"allowedUses": ["Workload", "Play"]}, ["spec.allowedUses[] = 'Play' is not known: give some of Workload"]),
    ({"ipipMode": "always"}, ["spec.ipipMode = 'always' is not known: give one of Never, Always, CrossSubnet"]),
    ({"assignmentMode": "Auto"}, ["spec.assignmentMode = 'Auto' is not known: give one of Automatic, Manual"]),
    ({"ipipMode": "Always", "vxlanMode": "Always"}, ["spec.ipipMode = 'Always' excludes vxlanMode = 'Always'"]),
    ({"cidr": "fd00::/64", "ipipMode": "Always"}, ["spec.ipipMode = 'Always' is not for IPv6: set it to Never"]),
    ({"nodeSelector": "zone ="}, ["spec.nodeSelector = 'zone =' is not a selector: selector 'zone =' is wrong at character 6"]),
    ({"nodeSelector": "global()"}, ["spec.nodeSelector = 'global()' uses global(): select by labels"]),
    ({"namespaceSelector": "a == 'b'"}, ["spec.namespaceSelector = \"a == 'b'\" is not for use Tunnel"]),
    ({"nodeselector": "all()"}, ["spec.nodeselector = 'all()' is not a field of an IP pool"]),
    (
        BALANCER | {"allowedUses": ["LoadBalancer", "Workload"]},
        ["does not go with use LoadBalancer: set it to ['LoadBalancer']"],
    ),
    (BALANCER | {"vxlanMode": "Always"}, ["spec.vxlanMode = 'Always' does not go with use LoadBalancer: set it to Never"]),
    (
        BALANCER | {"nodeSelector": "has(a)"},
        ["spec.nodeSelector = 'has(a)' does not go with use LoadBalancer: set it to all()"],
    ),
    (BALANCER | {"disableBGPExport": True}, ["spec.disableBGPExport = true does not go with use LoadBalancer"]),
    ({"cidr": "no", "blockSize": "x", "novel": 1, "ipipMode": "On"}, ["a field", "'x' is a string", "'On' is not", "a CIDR"]),
]


@pytest.mark.parametrize(("spec", "expected"), ERRORS, ids=[str(spec) for spec, _ in ERRORS])
def test_errors_name_field_value_and_fix(spec: dict[str, Any], expected: list[str]) -> None:
    """All errors of a pool are returned at once."""
    found = check_pool(resource(**spec), [], [], None)
    assert len(found) == len(expected), found
    assert all(part in line for part, line in zip(expected, found, strict=True)), found


@pytest.mark.parametrize("name", [None, "", "A", "a_b", "-a", "a-", "a..b", "a/b", "x" * 254, 7])
def test_names_must_be_valid_object_names(name: object) -> None:
    """Kubernetes would refuse other names."""
    (line,) = check_pool(Resource("IPPool", {"name": name}, {"cidr": "10.0.0.0/16"}), [], [], None)
    assert line.startswith("metadata.name = ")


def test_missing_name_is_an_error() -> None:
    """It does not count as an empty name."""
    (line,) = check_pool(Resource("IPPool", {}, {"cidr": "10.0.0.0/16"}), [], [], None)
    assert line.startswith("metadata.name is missing")


def test_pools_must_not_overlap() -> None:
    """A pool may overlap the one that it replaces."""
    others = [pool("p"), pool("q", cidr="10.0.128.0/17"), pool("r", cidr="fd00::/64")]
    (line,) = check_pool(resource("p"), others, [], others[0])
    assert (
        line
        == "spec.cidr = '10.0.0.0/16' overlaps IP pool 'q' (10.0.128.0/17): choose another range, or delete that pool first"
    )


def test_block_size_must_match_existing_blocks() -> None:
    """An earlier pool of the same range may have left blocks."""
    blocks = [Cidr("10.0.0.0/26"), Cidr("10.0.1.0/28"), Cidr("10.0.2.0/28"), Cidr("10.1.0.0/28")]
    (line,) = check_pool(resource(), [], blocks, None)
    assert line.startswith(
        "spec.blockSize = 26 differs from 2 existing blocks in the range (such as 10.0.1.0/28): set blockSize to 28"
    )


def test_updates_cannot_move_a_pool() -> None:
    """CIDR and block size of a pool cannot change."""
    found = check_pool(resource(cidr="10.0.0.0/17", blockSize=27), [], [], pool())
    assert [line.partition(":")[0] for line in found] == [
        "spec.cidr = '10.0.0.0/17' cannot replace '10.0.0.0/16'",
        "spec.blockSize = 27 cannot replace 26",
    ]


def test_updates_may_spell_the_range_differently() -> None:
    """The same network is not a change."""
    assert check_pool(resource(cidr="FD00:0::/64"), [], [], pool(cidr="fd00::/64")) == []


def test_use_of_load_balancer_pools_cannot_change() -> None:
    """Their blocks have no affinity to a node."""
    (line,) = check_pool(resource(), [], [], pool(allowedUses=["LoadBalancer"]))
    assert line.startswith("spec.allowedUses = ['Workload', 'Tunnel'] cannot replace ['LoadBalancer']")
