"""The Installation that stands for a deployment by manifests, worked out without a cluster."""

import json
from typing import Any

import pytest

from svc.admin.installation_resource import rules
from svc.admin.installation_resource.wanted import listing, wanted
from svc.deploy.manifests.network import network_list
from svc.deploy.manifests.settings import FLAVOURS, OPERATOR, ORCH, Settings
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.upgrade.derived_installation import Comparison, compare, derive, network_of, without_field

Json = dict[str, Any]

IPIP = {"cidr": "10.65.0.0/16", "ipipMode": "Always", "natOutgoing": True}
VXLAN = {"cidr": "10.66.0.0/16", "vxlanMode": "CrossSubnet"}


def network(flavour: str = "networking", **fields: Any) -> Json:
    found = network_list(Settings(flavour, ORCH, "svc:1"))
    found["plugins"][0] |= fields
    return found


def pool(**spec: Any) -> Resource:
    return Resource("IPPool", {"name": "p"}, spec)


def moved(live: Json, *pools: Resource) -> tuple[Json, Comparison]:
    """Return the derived spec, and how what the operator makes of it differs."""
    spec = derive(live, pools, {"CLUSTER_TYPE": "k8s"}, DEFAULT)
    assert not [*rules.check(spec, DEFAULT)]
    listed = listing(spec, (), DEFAULT)
    made = wanted(spec, listed, listed.pools, pools, {"kind": "orch"}, DEFAULT)
    return spec, compare(live, network_of(made.network, DEFAULT), DEFAULT)


@pytest.mark.parametrize("flavour", [each for each in FLAVOURS if each != OPERATOR])
def test_each_flavour_has_an_installation(flavour: str) -> None:
    """Nothing that a network list of svc says is lost."""
    _, found = moved(network(flavour), pool(**IPIP))
    assert found.changed == ()


@pytest.mark.parametrize(
    ("fields", "section", "value"),
    [
        ({"mtu": 1400}, "mtu", 1400),
        ({"policy_setup_timeout_seconds": 7}, "linuxPolicySetupTimeoutSeconds", 7),
        ({"container_settings": {"allow_ip_forwarding": True}}, "containerIPForwarding", "Enabled"),
    ],
)
def test_settings_become_fields(fields: Json, section: str, value: Any) -> None:
    spec, found = moved(network(**fields), pool(**IPIP))
    assert spec["svcNetwork"][section] == value
    assert found.changed == ()


@pytest.mark.parametrize("field", [{"feature_control": {"floating_ips": True}}, {"log_file_path": "/elsewhere"}])
def test_fields_without_an_equivalent_are_named(field: Json) -> None:
    _, found = moved(network(**field), pool(**IPIP))
    (text,) = found.changed
    assert next(iter(field)) in text


@pytest.mark.parametrize("field", [{"disableCheck": True}, {"cniVersion": "1.1.0"}])
def test_fields_of_the_list_itself_are_named(field: Json) -> None:
    _, found = moved(network() | field, pool(**IPIP))
    (text,) = found.changed
    assert next(iter(field)) in text


def test_bgp_is_on_where_pools_need_it() -> None:
    assert moved(network(), pool(**VXLAN))[0]["svcNetwork"]["bgp"] == "Disabled"
    assert moved(network(), pool(**IPIP))[0]["svcNetwork"]["bgp"] == "Enabled"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"plugins": [{"type": "other"}]}',
        '{"plugins": [{"type": "svc"}, "portmap"]}',
        '{"plugins": [{"type": "svc", "ipam": "svc-ipam"}]}',
        '{"plugins": [{"type": "svc"}, {"type": "tuning", "sysctl": ["net.core.somaxconn"]}]}',
    ],
)
def test_unreadable_network_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        network_of(text, DEFAULT)


def test_edits_are_named_by_their_paths() -> None:
    before = {"template": {"spec": {"containers": [{"name": "agent", "env": [{"name": "A", "value": "1"}]}]}}}
    after = json.loads(json.dumps(before).replace('"1"', '"2"'))
    (text,) = without_field("DaemonSet/x", before, after)
    assert "template.spec.containers[agent].env[A].value is '2', the manifest says '1'" in text
