"""svcctl convert: names profiles, API groups and legacy fields of objects."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.calico import captured
from harness.calico_states import etcd_state
from harness.documents import ENDPOINT, EVERY, Json, document, pool, text
from harness.svcctl import Cli
from svc.ctl.commands.convert import INCOMPLETE
from svc.names import DEFAULT


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def converted(cli: Cli, *arguments: str, stdin: str, notes: int = 0) -> list[Json]:
    """Return the result. Check that this number of things has no equivalent, and the exit status that follows from it."""
    done = cli("convert", "-f", "-", *arguments, "-o", "json", stdin=stdin)
    assert done.exit_code == (INCOMPLETE if notes else 0), done.output
    assert len(done.stderr.splitlines()) == notes, done.stderr
    found: list[Json] = json.loads(done.stdout) if done.stdout else []
    return found


def calico_pool(name: str = "p", **spec: Any) -> Json:
    return pool(name, **spec) | {"apiVersion": "projectcalico.org/v3"}


def test_captured_objects_of_calico_can_be_applied(cli: Cli) -> None:
    """Calico wrote them to etcd and to an API server. Those of address management are named, and left out."""
    stored = [json.loads(value) for key, value in etcd_state("etcd-0-empty.jsonl").items() if "/resources/" in key]
    of_server = {(each["kind"], each["metadata"]["name"]): each for each in captured()}
    done = cli("convert", "-f", "-", "--to", "default", stdin=json.dumps([*stored, *of_server.values()]))
    assert done.exit_code == INCOMPLETE, done.output
    notes = done.stderr.splitlines()
    assert len(notes) == len(of_server)
    assert all("address management writes it" in line for line in notes)
    found = list(yaml.safe_load_all(done.stdout))
    assert {each["kind"] for each in found} == {"ClusterInformation", "IPPool", "IPReservation", "Node", "Profile"}
    others = [each for each in found if each["kind"] != "ClusterInformation"]  # the datastore has one already
    applied = cli.changes("apply", "-f", "-", stdin=json.dumps(others))
    assert applied.count(" created\n") == len(others)


def test_conversion_there_and_back_changes_nothing(cli: Cli) -> None:
    """This holds for both groups, with labels, annotations and selectors of the deployment."""
    labels = {f"{DEFAULT.label_prefix}/created-by": DEFAULT.controllers, "rack": "a"}
    annotations = {f"{DEFAULT.annotation_prefix}/ipv4pools": "[]", f"{DEFAULT.qos_prefix}/x": "1", "other.org/x": "svc"}
    spec = {"node": "node1", "interfaceName": "*", "profiles": [DEFAULT.default_allow_profile, "kns.default"]}
    own = [
        *EVERY,
        pool("b", "10.2.0.0/24", nodeSelector="svc.internal/rack == 'a' && !has(other.svc.internal/x)"),
        document("HostEndpoint", "auto", spec, labels=labels, annotations=annotations),
        document("Node", "n", {"addresses": [{"address": "192.0.2.1", "type": DEFAULT.node_address}]}),
        document("ClusterInformation", "default", {DEFAULT.version_field: "v1", "clusterGUID": "0" * 32}),
        document("NetworkPolicy", "p", {"selector": "all()", "egress": [{"action": "Deny"}]}, namespace="shop"),
    ]
    for group in ("plain", "backing"):
        there = converted(cli, "--to", "calico", "--group", group, stdin=text(*own))
        assert {each["apiVersion"] for each in there} == {
            "projectcalico.org/v3" if group == "plain" else "crd.projectcalico.org/v1"
        }
        assert converted(cli, "--to", "default", stdin=json.dumps(there)) == own


def test_names_of_the_deployment_are_replaced(cli: Cli) -> None:
    (found,) = converted(cli, "--to", "calico", "--group", "backing", stdin=text(ENDPOINT | {"spec": {"node": "n"}}))
    assert (found["apiVersion"], found["kind"]) == ("crd.projectcalico.org/v1", "HostEndpoint")
    assert json.loads(found["metadata"]["annotations"]["projectcalico.org/metadata"]) == {"labels": {"rack": "a"}}
    selector = "projectcalico.org/rack == 'projectcalico.org/x' && my.projectcalico.org/x == 'y'"
    (changed,) = converted(cli, "--to", "default", stdin=text(calico_pool(nodeSelector=selector)))
    assert changed["spec"]["nodeSelector"].startswith("svc.internal/rack == ")
    assert "my.projectcalico.org/x" in changed["spec"]["nodeSelector"]


def test_labels_in_rules_of_policies_are_replaced(cli: Cli) -> None:
    """The rules are otherwise as they were."""
    source = {"selector": "projectcalico.org/orchestrator == 'k8s'", "nets": ["10.0.0.0/8"]}
    spec = {"namespaceSelector": "has(projectcalico.org/name)", "ingress": [{"action": "Allow", "source": source}], "order": 1}
    policy = document("GlobalNetworkPolicy", "p", spec) | {"apiVersion": "projectcalico.org/v3"}
    (changed,) = converted(cli, "--to", "default", stdin=text(policy))
    assert changed["spec"] == {
        "namespaceSelector": "has(svc.internal/name)",
        "ingress": [{"action": "Allow", "source": source | {"selector": "svc.internal/orchestrator == 'k8s'"}}],
        "order": 1,
    }


@pytest.mark.parametrize(
    ("legacy", "today"),
    [
        ({"nat-outgoing": True}, {"natOutgoing": True}),
        ({"nat-outgoing": False}, {"natOutgoing": False}),
        ({"ipip": {"enabled": True}}, {"ipipMode": "Always"}),
        ({"ipip": {"enabled": True, "mode": "always"}}, {"ipipMode": "Always"}),
        ({"ipip": {"enabled": True, "mode": "cross-subnet"}}, {"ipipMode": "CrossSubnet"}),
        ({"ipip": {"enabled": False, "mode": "always"}}, {"ipipMode": "Never"}),
        ({"ipip": {}}, {"ipipMode": "Never"}),
        ({"ipip": {"enabled": True}, "ipipMode": "Always", "nat-outgoing": True, "natOutgoing": True}, None),
    ],
    ids=str,
)
def test_legacy_fields_of_pools_get_the_names_of_today(cli: Cli, legacy: Json, today: Json | None) -> None:
    (found,) = converted(cli, "--to", "default", stdin=text(calico_pool(**legacy)))
    assert found["spec"] == {"cidr": "10.65.0.0/24"} | (today or {"ipipMode": "Always", "natOutgoing": True})
    cli.changes("apply", "-f", "-", stdin=json.dumps(found))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"ipip": {"enabled": True}, "ipipMode": "Never"}, "spec.ipip = {'enabled': True} contradicts spec.ipipMode = 'Never'"),
        ({"nat-outgoing": True, "natOutgoing": False}, "spec.nat-outgoing = true contradicts spec.natOutgoing = false"),
        ({"ipip": True}, "spec.ipip = true is not an object"),
        ({"ipip": {"enabled": "yes"}}, "is not an object with enabled and mode"),
        ({"ipip": {"enabled": True, "mode": "often"}}, "spec.ipip.mode = 'often' is not known"),
    ],
    ids=str,
)
def test_contradictions_are_errors(cli: Cli, spec: Json, message: str) -> None:
    """Nothing is printed then, not even the valid documents."""
    error = cli.fails("convert", "-f", "-", "--to", "default", stdin=text(calico_pool(), calico_pool(**spec)))
    assert message in error
    assert error.startswith("Error: <stdin>: document 2: ")


def test_what_has_no_equivalent_is_named(cli: Cli) -> None:
    """The rest is converted, and the exit status says that something is missing."""
    felix = document("FelixConfiguration", "default", {}) | {"apiVersion": "projectcalico.org/v3"}
    block = document("IPAMBlock", "b", {}) | {"apiVersion": "projectcalico.org/v3"}
    given = calico_pool(other=1) | {"metadata": {"name": "p", "ownerReferences": [{"kind": "X"}], "uid": "u"}}
    found = converted(cli, "--to", "default", stdin=text(felix, given, block), notes=4)
    assert found == [pool("p")]
    notes = cli("convert", "-f", "-", "--to", "default", stdin=text(felix, given, block)).stderr.splitlines()
    assert notes == [
        "no equivalent: <stdin>: document 1: kind FelixConfiguration: svc has no such kind",
        "no equivalent: <stdin>: document 2: metadata.ownerReferences: it refers to an object of the other deployment",
        "no equivalent: <stdin>: document 2: spec.other: svc does not read it in objects of kind IPPool",
        "no equivalent: <stdin>: document 3: kind IPAMBlock: address management writes it; "
        "`svcctl ipam show` shows the use of addresses",
    ]
    assert converted(cli, "--to", "default", stdin=text(felix), notes=1) == []


def test_change_of_the_group_alone_keeps_every_kind(cli: Cli) -> None:
    felix = document("FelixConfiguration", "default", {"a": 1}) | {"apiVersion": "projectcalico.org/v3"}
    (found,) = converted(cli, "--to", "calico", "--group", "backing", stdin=text(felix))
    assert (found["apiVersion"], found["kind"], found["spec"]) == ("crd.projectcalico.org/v1", "FelixConfiguration", {"a": 1})


def test_profiles_of_users_are_sources_and_targets(cli: Cli, tmp_path: Path) -> None:
    """A group of an unknown profile is an error, whose fix names the option for it."""
    profile = tmp_path / "mine.toml"
    profile.write_text('api_version = "mine.org/v3"\ncrd_api_version = "crd.mine.org/v1"\nlabel_prefix = "mine.org"\n')
    mine = converted(cli, "--to", str(profile), stdin=text(*EVERY))
    assert {each["apiVersion"] for each in mine} == {"mine.org/v3"}
    assert "name the profile of the file with --names" in cli.fails("convert", "-f", "-", "--to", "default", stdin=text(*mine))
    assert converted(cli, "--to", "default", "--names", str(profile), stdin=text(*mine)) == list(EVERY)
    assert "names profile 'nothing' does not exist" in cli.fails("convert", "-f", "-", "--to", "nothing", stdin=text(*EVERY))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("---\n", ": no document: give at least one"),
        ("words", "<stdin>: document 1 is not an object"),
        ("[1, 2]", "<stdin>: document 1: [0] is not an object"),
        ("a: 1", "apiVersion = null is of no known names profile"),
        ("a: [", "is neither YAML nor JSON"),
        (text(calico_pool()) + "kind: IPPool\n", "key 'kind' is given twice"),
        (text(calico_pool() | {"spec": 1}), "<stdin>: document 1: spec = 1 is a number: give an object"),
        (
            text(calico_pool() | {"metadata": {"name": "p", "labels": ["a"]}}),
            "metadata.labels = ['a'] is an array: give an object",
        ),
        (text(calico_pool()).replace("10.65.0.0/24", "2020-01-01"), "spec.cidr = 2020-01-01 is a date: put it in quotes"),
        (
            text(
                calico_pool()
                | {"apiVersion": "crd.projectcalico.org/v1", "metadata": {"annotations": {"projectcalico.org/metadata": "{"}}}
            ),
            "metadata cannot be read",
        ),
    ],
    ids=str,
)
def test_wrong_documents_are_errors(cli: Cli, content: str, message: str) -> None:
    assert message in cli.fails("convert", "-f", "-", "--to", "default", stdin=content)
