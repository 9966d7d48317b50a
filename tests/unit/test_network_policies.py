"""Translation of NetworkPolicies, and a twin that applies Kubernetes' own rules to the same traffic."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc._core.cidr import Address, Cidr
from svc.controllers.copies.copied_kind import Untranslatable
from svc.controllers.copies.network_policies import NetworkPolicies
from svc.model import selector
from svc.model.keys import ResourceKey
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile

Json = dict[str, Any]

PODS = "svc.internal/orchestrator == 'k8s'"
KIND = NetworkPolicies(DEFAULT)


def policy(**spec: Any) -> Json:
    return {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"podSelector": {}, **spec}}


def translated(**spec: Any) -> Json:
    found = KIND.translate(policy(**spec))
    assert found.left_out == ()
    return found.spec


def ingress(*rules: Json) -> Any:
    return translated(ingress=list(rules))["ingress"]


def test_policy_without_rules() -> None:
    assert translated() == {"tier": "default", "order": 1000, "selector": PODS, "types": ["Ingress"]}
    assert translated(policyTypes=["Ingress", "Egress"])["types"] == ["Ingress", "Egress"]


def test_names_profile_of_calico() -> None:
    found = NetworkPolicies(load_profile("calico")).translate(policy()).spec
    assert found["selector"] == "projectcalico.org/orchestrator == 'k8s'"


def test_terms_of_pod_selectors() -> None:
    expressions = [
        {"key": "x", "operator": "In", "values": ["b", "a"]},
        {"key": "y", "operator": "NotIn", "values": ["c"]},
        {"key": "z", "operator": "Exists"},
        {"key": "q", "operator": "DoesNotExist"},
    ]
    found = translated(podSelector={"matchLabels": {"b": "2", "a": "1", "e": ""}, "matchExpressions": expressions})
    terms = ["a == '1'", "b == '2'", "e == ''", "x in { 'b', 'a' }", "y not in { 'c' }", "has(z)", "! has(q)"]
    assert found["selector"] == " && ".join([PODS, *terms])
    selector.parse(found["selector"])


@pytest.mark.parametrize(
    ("peer", "end"),
    [
        ({"podSelector": {}}, {"selector": PODS}),
        ({"podSelector": {"matchLabels": {"a": "1"}}}, {"selector": f"{PODS} && a == '1'"}),
        ({"namespaceSelector": {}}, {"selector": PODS, "namespaceSelector": "all()"}),
        (
            {"namespaceSelector": {"matchLabels": {"n": "1"}}, "podSelector": {"matchLabels": {"a": "1"}}},
            {"selector": f"{PODS} && a == '1'", "namespaceSelector": "n == '1'"},
        ),
        ({"ipBlock": {"cidr": "10.0.0.0/8"}}, {"nets": ["10.0.0.0/8"]}),
        (
            {"ipBlock": {"cidr": "10.1.2.3/8", "except": ["10.1.0.0/16", "10.2.0.0/16"]}},
            {"nets": ["10.0.0.0/8"], "notNets": ["10.1.0.0/16", "10.2.0.0/16"]},
        ),
        ({"ipBlock": {"cidr": "fd00::/8"}}, {"nets": ["fd00::/8"]}),
    ],
)
def test_peer_is_the_other_end(peer: Json, end: Json) -> None:
    assert ingress({"from": [peer]}) == [{"action": "Allow", "source": end, "destination": {}}]
    found = translated(egress=[{"to": [peer], "ports": [{"port": 53, "protocol": "UDP"}]}], policyTypes=["Egress"])
    assert found["egress"] == [{"action": "Allow", "protocol": "UDP", "source": {}, "destination": end | {"ports": [53]}}]


def test_rule_without_peers_and_ports_allows_all() -> None:
    assert ingress({}) == ingress({"from": [], "ports": []}) == [{"action": "Allow", "source": {}, "destination": {}}]


@pytest.mark.parametrize(
    ("ports", "found"),
    [
        ([{"port": 80}], [("TCP", [80])]),
        ([{"port": 81}, {"port": 80}, {"port": 80}], [("TCP", ["80:81"])]),
        ([{"port": 90, "endPort": 100}, {"port": 101}, {"port": 95, "endPort": 97}, {"port": 1}], [("TCP", [1, "90:101"])]),
        ([{"port": "web"}, {"port": 80}, {"port": "web"}], [("TCP", [80, "web"])]),
        ([{"port": 80}, {"port": 53, "protocol": "UDP"}, {"protocol": "SCTP"}], [("SCTP", None), ("TCP", [80]), ("UDP", [53])]),
        ([{"port": 80}, {"protocol": "TCP"}, {"port": "web"}], [("TCP", None)]),
        ([{}], [("TCP", None)]),
    ],
)
def test_ports_are_merged_by_protocol(ports: list[Json], found: list[tuple[str, Any]]) -> None:
    rules = ingress({"ports": ports})
    assert [(rule["protocol"], rule["destination"].get("ports")) for rule in rules] == found


def test_each_pair_of_protocol_and_peer_has_a_rule() -> None:
    peers = [{"podSelector": {"matchLabels": {"a": value}}} for value in "xy"]
    rules = ingress({"from": peers, "ports": [{"port": 1}, {"port": 2, "protocol": "UDP"}]})
    assert [(rule["protocol"], rule["source"]["selector"][-3:]) for rule in rules] == [
        ("TCP", "'x'"), ("TCP", "'y'"), ("UDP", "'x'"), ("UDP", "'y'"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"from": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}, "'10.0.0.0/33' is not a CIDR"),
        ({"from": [{"ipBlock": {}}]}, "null is not a CIDR"),
        ({"from": [{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}}]}, "'x' is not a CIDR"),
        ({"from": [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}]}, "operator 'Gt' of label a"),
        ({"from": [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]}, "operator 'In' of label a"),
        ({"from": [{"podSelector": {"matchLabels": {"a": "x' || 'y"}}}]}, "is not of a label"),
        ({"ports": [{"protocol": "ICMP"}]}, "protocol 'ICMP' is not one of TCP, UDP, SCTP"),
        ({"ports": [{"port": 9, "endPort": 8}]}, "9 to 8 are not ports"),
        ({"ports": [{"port": 65536}]}, "65536 to 65536 are not ports"),
        ({"ports": [{"port": True}]}, "true to true are not ports"),
    ],
)
def test_rule_without_equivalent_is_left_out(rule: Json, reason: str) -> None:
    """It would allow more or less than the user wants. The other rules stay."""
    found = KIND.translate(policy(ingress=[{"ports": [{"port": 1}]}, rule]))
    (left_out,) = found.left_out
    assert left_out.startswith("ingress[1]: ")
    assert reason in left_out
    assert [each["destination"]["ports"] for each in found.spec["ingress"]] == [[1]]


def test_policy_without_usable_pod_selector_is_refused() -> None:
    with pytest.raises(Untranslatable):
        KIND.translate(policy(podSelector={"matchExpressions": [{"key": "a", "operator": "Lt"}]}))


def test_key_leads_back_to_the_original() -> None:
    key = KIND.key(policy())
    assert key == ResourceKey("NetworkPolicy", "knp.default.p", "ns")
    assert KIND.original_path(key) == "/apis/networking.k8s.io/v1/namespaces/ns/networkpolicies/p"
    assert KIND.owns(key)
    for name in ("p", "knp.default.", "knp.other.p", "default.knp.default.p"):
        assert not KIND.owns(ResourceKey("NetworkPolicy", name, "ns"))


# the twin

KEYS, VALUES = ("a", "b", "c/d"), ("", "1", "x-y")
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
expressions = st.one_of(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(KEYS),
            "operator": st.sampled_from(("In", "NotIn")),
            "values": st.lists(st.sampled_from(VALUES), min_size=1),
        }
    ),
    st.fixed_dictionaries({"key": st.sampled_from(KEYS), "operator": st.sampled_from(("Exists", "DoesNotExist"))}),
)
selectors = st.fixed_dictionaries({}, optional={"matchLabels": labels, "matchExpressions": st.lists(expressions, max_size=3)})
blocks = st.fixed_dictionaries(
    {"cidr": st.sampled_from(("10.0.0.0/8", "0.0.0.0/0"))},
    optional={"except": st.lists(st.sampled_from(("10.1.0.0/16", "10.2.0.0/16")))},
)
peers = st.one_of(
    st.fixed_dictionaries({"ipBlock": blocks}),
    st.fixed_dictionaries({"podSelector": selectors}, optional={"namespaceSelector": selectors}),
    st.fixed_dictionaries({"namespaceSelector": selectors}),
)
protocols = st.sampled_from(("TCP", "UDP", "SCTP"))
ports = st.one_of(
    st.fixed_dictionaries({}, optional={"protocol": protocols, "port": st.one_of(st.integers(1, 9), st.just("web"))}),
    st.fixed_dictionaries({"port": st.integers(1, 4), "endPort": st.integers(4, 9)}, optional={"protocol": protocols}),
)
rules = st.fixed_dictionaries({}, optional={"from": st.lists(peers, max_size=3), "ports": st.lists(ports, max_size=4)})
traffic = st.fixed_dictionaries(
    {
        "labels": labels,
        "namespace": labels,
        "address": st.sampled_from(("10.1.0.1", "10.3.0.1", "192.0.2.1")),
        "is_pod": st.booleans(),
        "is_same_namespace": st.booleans(),
        "protocol": protocols,
        "port": st.integers(1, 10),
        "is_web": st.booleans(),
    }
)


def selects(given: Json, found: Json) -> bool:
    if any(found.get(key) != value for key, value in (given.get("matchLabels") or {}).items()):
        return False
    return all(holds(each, found) for each in given.get("matchExpressions") or ())


def holds(each: Json, found: Json) -> bool:
    match each["operator"]:
        case "In":
            return found.get(each["key"]) in each["values"]
        case "NotIn":
            return found.get(each["key"]) not in each["values"]
        case "Exists":
            return each["key"] in found
    return each["key"] not in found


def inside(address: str, cidr: str) -> bool:
    return Address(address) in Cidr(cidr)


def kubernetes_allows(rule: Json, packet: Json) -> bool:
    """Apply the meaning of a NetworkPolicy's rule in the API reference of Kubernetes."""
    return peers_allow(rule.get("from"), packet) and ports_allow(rule.get("ports"), packet)


def peers_allow(given: list[Json] | None, packet: Json) -> bool:
    return not given or any(peer_allows(peer, packet) for peer in given)


def peer_allows(peer: Json, packet: Json) -> bool:
    if block := peer.get("ipBlock"):
        excluded = any(inside(packet["address"], cidr) for cidr in block.get("except") or ())
        return inside(packet["address"], block["cidr"]) and not excluded
    namespaces = peer.get("namespaceSelector")
    in_namespace = packet["is_same_namespace"] if namespaces is None else selects(namespaces, packet["namespace"])
    return bool(packet["is_pod"] and in_namespace and selects(peer.get("podSelector") or {}, packet["labels"]))


def ports_allow(given: list[Json] | None, packet: Json) -> bool:
    return not given or any(port_allows(port, packet) for port in given)


def port_allows(given: Json, packet: Json) -> bool:
    if given.get("protocol", "TCP") != packet["protocol"]:
        return False
    port = given.get("port")
    if port == "web":
        return bool(packet["is_web"])
    return port is None or bool(port <= packet["port"] <= given.get("endPort", port))


def policy_allows(rule: Json, packet: Json) -> bool:
    """Apply the meaning of a policy's rule: without `namespaceSelector`, a selector selects in the policy's namespace."""
    if rule.get("protocol", packet["protocol"]) != packet["protocol"]:
        return False
    end = rule["source"]
    if "nets" in end:
        address = packet["address"]
        if not any(inside(address, net) for net in end["nets"]) or any(inside(address, net) for net in end.get("notNets", ())):
            return False
    if "selector" in end:
        found = packet["labels"] | ({"svc.internal/orchestrator": "k8s"} if packet["is_pod"] else {})
        if not selector.parse(end["selector"]).matches(found):
            return False
        if "namespaceSelector" not in end and not packet["is_same_namespace"]:
            return False
    if "namespaceSelector" in end and not selector.parse(end["namespaceSelector"]).matches(packet["namespace"]):
        return False
    wanted = rule["destination"].get("ports")
    return wanted is None or any(is_port(each, packet) for each in wanted)


def is_port(wanted: int | str, packet: Json) -> bool:
    if wanted == "web":
        return bool(packet["is_web"])
    first, _, last = str(wanted).partition(":")
    return bool(int(first) <= packet["port"] <= int(last or first))


@given(rules, traffic)
def test_translation_allows_the_same_traffic(rule: Json, packet: Json) -> None:
    found = ingress(rule)
    assert any(policy_allows(each, packet) for each in found) == kubernetes_allows(rule, packet)
