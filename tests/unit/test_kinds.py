"""The table of kinds, and the rules for their documents."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.calico import CALICO_NAMES
from svc.admin import kinds
from svc.datastore.embedded import EmbeddedStore
from svc.deploy.crds import definitions
from svc.model.errors import CallerError
from svc.model.keys import PLURALS
from svc.model.resource import Resource
from svc.names import DEFAULT, Names

DOCUMENT = Path(__file__).parents[2] / "docs/reference/kinds.md"
TABLE = kinds.table(DEFAULT, "embedded")


def test_every_word_selects_one_kind() -> None:
    words = Counter(word for kind in TABLE for word in {*kind.names, *map(str.lower, kind.aliases)})
    assert [word for word, count in words.items() if count > 1] == []
    for kind in TABLE:
        assert {kinds.find(TABLE, word).name for word in (kind.name, *kind.names)} == {kind.name}
    with pytest.raises(CallerError, match="kind 'zebra' is not known"):
        kinds.find(TABLE, "zebra")


@pytest.mark.parametrize("names", [DEFAULT, CALICO_NAMES])
def test_every_kind_of_a_datastore_is_in_the_table(names: Names) -> None:
    """Each resource definition has one, too."""
    known = {word for kind in kinds.table(names, "orch") for word in (kind.name, *kind.aliases)}
    assert set(PLURALS) <= known
    for version in (names.api_version, names.crd_api_version):
        defined = {each["spec"]["names"]["kind"]: each["spec"]["names"]["plural"] for each in definitions(names, version)}
        assert set(defined) - known == set()
        plurals = {kind.name: kind.plural for kind in TABLE}
        assert all(plurals[kind] == plural for kind, plural in defined.items() if kind in plurals)


def test_kinds_differ_between_datastores() -> None:
    """Kubernetes has nodes and profiles of its own."""
    found = {kind.name: kind for kind in kinds.table(DEFAULT, "orch")}
    assert [name for name, kind in found.items() if kind.absence] == ["Profile"]
    changed = [name for name, kind in found.items() if kind.is_writable]
    assert changed == [
        "IPPool", "IPReservation", "HostEndpoint", "NetworkPolicy", "GlobalNetworkPolicy", "KubeControllersConfiguration",
        "IPAMConfiguration", "ClusterInformation", "Installation",
    ]  # fmt: skip
    assert [kind.name for kind in TABLE if kind.absence] == ["Installation"]
    assert [kind.name for kind in TABLE if kind.is_writable] == [
        "IPPool", "IPReservation", "Node", "HostEndpoint", "NetworkPolicy", "GlobalNetworkPolicy",
        "KubeControllersConfiguration", "IPAMConfiguration", "ClusterInformation", "Profile",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "spec", "errors"),
    [
        ("hep", {"node": "n", "interfaceName": "*"}, []),
        ("hep", {"node": "n", "expectedIPs": ["192.0.2.1", "2001:db8::1"], "ports": []}, []),
        ("hep", {"node": "n", "interfaceName": "e", "ports": [{"name": "a", "port": 1, "protocol": 6}]}, []),
        ("hep", {}, ["spec.node is missing", "spec.interfaceName is missing"]),
        ("hep", {"node": "", "interfaceName": "x" * 16}, ["spec.node = '' is empty", "is not the name of an interface"]),
        ("hep", {"node": "n", "expectedIPs": "192.0.2.1"}, ["spec.expectedIPs = '192.0.2.1' is a string: give an array"]),
        ("hep", {"node": "n", "expectedIPs": ["x", 3]}, ["spec.expectedIPs[0] = 'x' is not", "spec.expectedIPs[1] = 3 is not"]),
        (
            "hep",
            {"node": "n", "interfaceName": "e", "ports": [{"name": "a", "port": 70000, "protocol": "x"}, {}, 3]},
            [
                "spec.ports[0].port = 70000",
                "spec.ports[0].protocol = 'x'",
                "spec.ports[1].name is missing",
                "spec.ports[1].port is missing",
                "spec.ports[1].protocol is missing",
                "spec.ports[2] = 3 is a number",
            ],
        ),
        ("hep", {"node": "n", "interfaceName": "e", "color": 1}, ["spec.color = 1 is not known"]),
        ("np", {}, []),
        (
            "np",
            {
                "order": 100.5,
                "selector": "app == 'web'",
                "types": ["Ingress", "Egress"],
                "ingress": [{"action": "Allow"}],
                "egress": [
                    {
                        "action": "Pass",
                        "protocol": "TCP",
                        "ipVersion": 4,
                        "metadata": {},
                        "destination": {"nets": ["10.0.0.0/8", "::/0"], "ports": [80, "8000:8080", "http"], "domains": []},
                    }
                ],
            },
            [],
        ),
        ("np", {"namespaceSelector": "all()"}, ["spec.namespaceSelector = 'all()' is not known"]),
        ("gnp", {"namespaceSelector": "has(team)", "applyOnForward": True, "order": 1}, []),
        (
            "gnp",
            {"order": "1", "selector": "app = 'web'", "types": ["Both"], "preDNAT": "yes", "tier": 3, "color": 1},
            [
                "spec.order = '1' is not a number: give one such as 100",
                "spec.selector = \"app = 'web'\" is not a selector: selector",
                "spec.types[0] = 'Both' is not known: give one of Ingress, Egress",
                "spec.preDNAT = 'yes' is a string",
                "spec.tier = 3 is a number",
                "spec.color = 1 is not known",
            ],
        ),
        (
            "np",
            {
                "ingress": [
                    {"protocol": "XTP", "ipVersion": 5},
                    {"action": "Allow", "source": {"nets": ["10.0.0.0/33"], "notSelector": "(", "notPorts": [-1, "9:8", ""]}},
                ],
                "egress": {},
            },
            [
                "spec.ingress[0].action is missing",
                "spec.ingress[0].protocol = 'XTP' is not a protocol",
                "spec.ingress[0].ipVersion = 5 is not known: give one of 4, 6",
                "spec.ingress[1].source.nets[0] = '10.0.0.0/33' is not a CIDR",
                "spec.ingress[1].source.notSelector = '(' is not a selector",
                "spec.ingress[1].source.notPorts[0] = -1 is not a port",
                "spec.ingress[1].source.notPorts[1] = '9:8' is not a port",
                "spec.ingress[1].source.notPorts[2] = '' is not a port",
                "spec.egress = {} is an object",
            ],
        ),
        ("kcc", {}, []),
        ("kcc", {"controllers": {"node": {"hostEndpoint": {"autoCreate": "Enabled"}}}, "logSeverityScreen": "Debug"}, []),
        (
            "kccs",
            {"healthChecks": "on", "controllers": {"policy": {"reconcilerPeriod": 5}, "zebra": {}}, "color": 1},
            [
                "spec.healthChecks = 'on' is not known: give one of Enabled, Disabled",
                "spec.controllers.policy.reconcilerPeriod = 5 is a number: give a string",
                "spec.controllers.zebra = {} is not known: leave it out, or use one of node, policy",
                "spec.color = 1 is not known",
            ],
        ),
        ("installation", {}, []),
        ("installation", {"cni": {"ipam": {"type": "Zebra"}}, "other": 1}, ["spec.cni.ipam.type = 'Zebra'"]),
        ("profile", {"ingress": [{"action": "Allow", "source": {"selector": "all()"}}], "egress": []}, []),
        ("profile", {"ingress": [{}], "egress": {}}, ["spec.ingress[0].action is missing", "spec.egress = {} is an object"]),
        ("profile", {"labelsToApply": {"a": 1}}, ["spec.labelsToApply.a = 1 is a number"]),
        ("node", {"bgp": {"ipv4Address": "x"}, "addresses": []}, []),
        ("node", {"bgp": "x", "color": 1}, ["spec.bgp = 'x' is a string", "spec.color = 1 is not known"]),
        ("settings", {}, []),
        ("settings", {"maxBlocksPerHost": "4"}, ["spec.maxBlocksPerHost = '4' is a string"]),
        (
            "settings",
            {"maxBlocksPerHost": 4},
            ["spec.maxBlocksPerHost = 4 needs strictAffinity: set spec.strictAffinity to true"],
        ),
        ("settings", {"autoAllocateBlocks": False, "ipCooldownSeconds": -1}, ["needs strictAffinity", "is negative"]),
        ("clusterinfo", {"clusterGUID": "0" * 32, "datastoreReady": "yes"}, ["spec.datastoreReady = 'yes' is a string"]),
        ("clusterinfo", {}, ["spec.clusterGUID is missing"]),
        ("clusterinfo", {"clusterGUID": "x", "calicoVersion": "v"}, ["is not a GUID", "spec.calicoVersion = 'v' is not known"]),
    ],
    ids=str,
)
def test_fields_are_checked(word: str, spec: dict[str, Any], errors: list[str], tmp_path: Any) -> None:
    """Each error names the field, the value and the fix."""
    kind = kinds.find(TABLE, word)
    resource = Resource(kind.name, {"name": kind.singleton or "x"}, spec)
    store = EmbeddedStore(tmp_path / "store.db")
    found = list(kind.checker(store, [resource])(resource, None))
    store.close()
    assert [error in line for error, line in zip(errors, found, strict=True)] == [True] * len(errors), found


def test_documented_kinds_are_those_of_the_table() -> None:
    """docs/reference/kinds.md has each kind with its names and fields."""
    rows = {cells[1].strip(): cells for line in DOCUMENT.read_text().splitlines() if len(cells := line.split("|")) == 6}
    found = {name: re.findall(r"`([^`]+)`", cells[2]) for name, cells in rows.items() if name not in ("kind", "---")}
    assert found == {kind.name: list(dict.fromkeys((kind.plural, *kind.words))) for kind in TABLE}
    for kind in TABLE:
        if kind.own:
            assert set(re.findall(r"`([^`]+)`", rows[kind.name][4])) == set(kind.own)
        assert rows[kind.name][3].strip().startswith("no") == bool(kind.read_only or kind.read_only_in or kind.absent_in)
