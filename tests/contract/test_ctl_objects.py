"""svcctl get, apply, create, delete and label on every datastore."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.datastores import Site, session, set_ready
from harness.documents import ENDPOINT, EVERY, RESERVATION, SETTINGS, document, pool, references, shown, text, without_revision
from harness.ipam import put
from harness.site_fixtures import ON_EACH_DATASTORE
from harness.svcctl import Cli, cli_on
from svc.attach.datastore_ready import KEY as READY
from svc.datastore.api import Backend
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService
from svc.model.endpoint import PodFacts, Workload, endpoint, endpoint_key
from svc.model.keys import IpamConfigKey, ResourceKey
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = ON_EACH_DATASTORE


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    with session(site) as store:
        set_ready(store)
        site.add_node("node1", rack="a")
        yield store
        for key in (IpamConfigKey(), ResourceKey("HostEndpoint", "node1-eth0")):
            store.update(key, lambda _: None)
    site.clear()


@pytest.fixture
def cli(site: Site, home: Path, store: Backend) -> Cli:
    return cli_on(site, home)


def is_orch(site: Site) -> bool:
    return bool(site.config["datastore_type"] == "orch")


def test_documents_of_several_kinds_are_applied_and_shown(cli: Cli) -> None:
    """What `get` prints can be applied again, in YAML and JSON."""
    created = "ippool/pods created\nipreservation/gateways created\nipamconfiguration/default created\n"
    created += "hostendpoint/node1-eth0 created\n"
    assert cli.changes("apply", "-f", "-", stdin=text(*EVERY)) == created
    assert cli.changes("apply", "-f", "-", stdin=text(*EVERY)) == created.replace("created", "unchanged")
    for form in ("yaml", "json"):
        printed = cli.prints("get", "pools,reservations,settings,hep", "-o", form)
        assert cli.changes("apply", "-f", "-", stdin=printed) == created.replace("created", "unchanged")
    found = {each["kind"]: each for each in shown(cli, "pools,reservations,settings,hep")}
    assert found["IPPool"]["spec"]["blockSize"] == 26
    assert found["IPAMConfiguration"]["spec"] == SETTINGS["spec"] | {"autoAllocateBlocks": True}
    assert found["HostEndpoint"]["metadata"]["labels"] == {"rack": "a"}
    assert all(each["metadata"]["resourceVersion"] for each in found.values())


def test_existing_commands_show_the_same_objects(cli: Cli) -> None:
    cli.changes("apply", "-f", "-", stdin=text(*EVERY))
    assert "pods" in cli.prints("pool", "get")
    assert "gateways" in cli.prints("reservation", "get")
    assert "strictAffinity                true" in cli.prints("ipam", "show", "--show-configuration")


def test_create_refuses_objects_that_exist(cli: Cli) -> None:
    """Nothing is written then."""
    cli.changes("create", "-f", "-", stdin=text(pool()))
    refused = cli.fails("create", "-f", "-", stdin=text(RESERVATION, pool()))
    assert "<stdin>: document 2: IP pool 'pods': exists: `svcctl apply` changes it" in refused
    assert references(cli) == ["ippool/pods"]


def test_errors_of_all_documents_are_reported_and_nothing_is_written(cli: Cli) -> None:
    """Each error names the file, the document and the field."""
    bad = [pool("one", "10.1.0.0/33"), document("Zebra", "z", {}), RESERVATION, document("HostEndpoint", "h", {"node": ""})]
    lines = cli.fails("apply", "-f", "-", stdin=text(*bad)).splitlines()
    assert lines[0] == "Error: nothing was changed: 4 errors"
    for start in (
        "document 2: kind = 'Zebra'",
        "document 1: IP pool 'one': spec.cidr",
        "document 4: host endpoint 'h': spec.node",
    ):
        assert any(line.startswith(f"  <stdin>: {start}") for line in lines), start
    assert references(cli) == []


def test_dry_run_shows_each_field_and_writes_nothing(cli: Cli) -> None:
    cli.changes("apply", "-f", "-", stdin=text(pool()))
    before = shown(cli, "pools")
    changed = [pool(disabled=True, nodeSelector="has(rack)"), RESERVATION]
    assert cli.prints("apply", "-f", "-", "--dry-run", stdin=text(*changed)).splitlines() == [
        "ippool/pods would be updated",
        "  spec.disabled: (none) -> true",
        '  spec.nodeSelector: "all()" -> "has(rack)"',
        "ipreservation/gateways would be created",
        '  spec.reservedCIDRs: (none) -> ["10.65.0.0/30"]',
    ]
    assert shown(cli, "pools") == before
    assert references(cli) == ["ippool/pods"]


def test_documents_with_an_old_revision_are_refused(cli: Cli, store: Backend) -> None:
    """The other documents are not applied either."""
    cli.changes("apply", "-f", "-", stdin=text(pool()))
    (read,) = shown(cli, "pools")
    cli.changes("apply", "-f", "-", stdin=text(pool(disabled=True)))
    refused = cli.fails("apply", "-f", "-", stdin=text(RESERVATION, read))
    assert f"metadata.resourceVersion = {read['metadata']['resourceVersion']!r} is not current" in refused
    assert references(cli) == ["ippool/pods"]
    (without,) = without_revision([read])
    assert cli.changes("apply", "-f", "-", stdin=text(without)) == "ippool/pods updated\n"
    missing = pool("gone", "10.9.0.0/24") | {"metadata": {"name": "gone", "resourceVersion": "1"}}
    assert "it does not exist any more" in cli.fails("apply", "-f", "-", stdin=text(missing))


def test_locked_datastore_is_not_changed(cli: Cli, store: Backend) -> None:
    """The option for a migration, and the document that unlocks it, are exceptions."""
    cli.changes("apply", "-f", "-", stdin=text(pool()))
    cli.changes("clusterinfo", "lock")
    for command in (("apply", "-f", "-"), ("apply", "-f", "-", "--dry-run")):
        assert "the datastore is locked for a migration" in cli.fails(*command, stdin=text(RESERVATION))
    assert "locked" in cli.fails("delete", "pool", "pods")
    assert "locked" in cli.fails("label", "pool", "pods", "a=b")
    for words in (("pool", "delete", "pods"), ("node", "apply", "n1"), ("reservation", "apply", "-f", "-")):
        assert "give --while-locked if this is a part of it" in cli.fails(*words, stdin=text(RESERVATION))
    assert cli.changes("pool", "apply", "-f", "-", "--while-locked", stdin=text(pool(disabled=True))) == "pods updated\n"
    assert cli.changes("apply", "-f", "-", "--while-locked", stdin=text(RESERVATION)) == "ipreservation/gateways created\n"
    assert cli.changes("delete", "pool", "pods", "--while-locked") == "ippool/pods deleted\n"
    unlocked = document(READY.kind, READY.name, {"datastoreReady": True, "clusterGUID": "0" * 32})
    assert cli.changes("apply", "-f", "-", stdin=text(unlocked)) == "clusterinformation/default updated\n"


def test_fields_of_other_programs_stay(cli: Cli, store: Backend) -> None:
    """`get` shows them, and `apply` accepts them from there, but not new ones."""
    key = ResourceKey("IPPool", "pods")
    cli.changes("apply", "-f", "-", stdin=text(pool()))
    stored = store.get(key).value
    spec = {**stored.spec, "nat-outgoing": True}
    put(store, key, Resource("IPPool", stored.metadata | {"annotations": {"note": "mine"}}, spec, {"conditions": []}))
    assert cli.changes("apply", "-f", "-", stdin=text(pool(disabled=True))) == "ippool/pods updated\n"
    after = store.get(key).value
    assert (after.spec["nat-outgoing"], after.spec["disabled"]) == (True, True)
    assert after.metadata["annotations"] == {"note": "mine"}
    printed = cli.prints("get", "pool", "pods", "-o", "yaml")
    assert cli.changes("apply", "-f", "-", stdin=printed) == "ippool/pods unchanged\n"
    assert "is not a field of an IP pool" in cli.fails("apply", "-f", "-", stdin=printed.replace("nat-outgoing", "other"))


def test_replaced_objects_lose_what_documents_do_not_mention(cli: Cli, store: Backend) -> None:
    """What the datastore sets stays. All objects must exist, and the cluster's information is not replaced at all."""
    cli.changes("apply", "-f", "-", stdin=text(ENDPOINT))
    key = ResourceKey("HostEndpoint", "node1-eth0")
    before = store.get(key).value
    put(store, key, Resource(before.kind, before.metadata | {"annotations": {"note": "mine"}}, before.spec | {"novel": 1}))
    plain = document("HostEndpoint", "node1-eth0", {"node": "node1", "interfaceName": "eth1"})
    shown_changes = cli.prints("replace", "-f", "-", "--dry-run", stdin=text(plain))
    assert 'metadata.annotations.note: "mine" -> (none)' in shown_changes
    assert "spec.novel: 1 -> (none)" in shown_changes
    assert cli.changes("replace", "-f", "-", stdin=text(plain)) == "hostendpoint/node1-eth0 updated\n"
    after = store.get(key).value
    assert after.spec == plain["spec"]
    assert after.metadata == {name: before.metadata[name] for name in before.metadata if name != "labels"}
    refused = cli.fails("replace", "-f", "-", stdin=text(ENDPOINT, RESERVATION))
    assert "IP reservation 'gateways': does not exist: `svcctl create` or `svcctl apply` makes it" in refused
    assert store.get(key).value == after
    identity = document(READY.kind, READY.name, {"datastoreReady": True})
    assert "cannot be replaced" in cli.fails("replace", "-f", "-", stdin=text(identity))


def test_objects_are_deleted_by_name_label_and_file(cli: Cli, tmp_path: Path) -> None:
    two = document("HostEndpoint", "other", {"node": "node2", "interfaceName": "*"})
    cli.changes("apply", "-f", "-", stdin=text(*EVERY, two))
    assert cli.changes("delete", "hep", "-l", "rack in (a, b)", "--yes") == "hostendpoint/node1-eth0 deleted\n"
    assert "does not exist" in cli.fails("delete", "hep", "other", "missing")
    assert cli.changes("delete", "hep/other") == "hostendpoint/other deleted\n"
    (tmp_path / "all.yaml").write_text(text(*EVERY))
    refused = cli.fails("delete", "-f", str(tmp_path), "--yes")
    assert "document 4: host endpoint 'node1-eth0': does not exist" in refused
    assert "would be deleted" in cli.prints("delete", "-f", str(tmp_path), "--dry-run", "--ignore-not-found")
    assert len(references(cli)) == 3
    deleted = cli.changes("delete", "-f", str(tmp_path), "--yes", "--ignore-not-found")
    assert deleted == "ippool/pods deleted\nipreservation/gateways deleted\nipamconfiguration/default deleted\n"
    assert references(cli) == []


def test_deletion_without_an_answer_is_refused(cli: Cli) -> None:
    """Standard input of this test is not a terminal."""
    cli.changes("apply", "-f", "-", stdin=text(pool()))
    for arguments in (("pool", "--all"), ("pool", "-l", "!none")):
        assert "give --yes" in cli.fails("delete", *arguments, code=2)
    assert references(cli) == ["ippool/pods"]


def test_pool_in_use_keeps_the_other_objects_too(cli: Cli, store: Backend, site: Site) -> None:
    cli.changes("apply", "-f", "-", stdin=text(*EVERY))
    IpamService(store, "node1").assign(Assign("net.c1", {"node": "node1"}))
    assert "IP pool 'pods' is in use: 1 address is taken" in cli.fails("delete", "-f", "-", "--yes", stdin=text(*EVERY[::-1]))
    assert len(references(cli)) == 4


def test_objects_of_address_management_are_shown_and_read_only(cli: Cli, store: Backend) -> None:
    """A block is also found by its range, or by an address in it."""
    cli.changes("apply", "-f", "-", stdin=text(pool()))
    IpamService(store, "node1").assign(Assign("net.c1", {"node": "node1"}))
    (block,) = shown(cli, "blocks")
    assert (block["metadata"]["name"], block["spec"]["affinity"]) == ("10-65-0-0-26", "host:node1")
    assert cli.prints("get", "block", "10.65.0.7").splitlines() == [
        "NAME          CIDR          AFFINITY    ASSIGNED  FREE",
        "10-65-0-0-26  10.65.0.0/26  host:node1  1         63",
    ]
    assert shown(cli, "block/10.65.0.0/26") == [block]
    assert shown(cli, "affinities")[0]["spec"]["node"] == "node1"
    assert shown(cli, "handle", "net.c1")[0]["spec"]["block"] == {"10.65.0.0/26": 1}
    for arguments in (("delete", "block", "10-65-0-0-26"), ("label", "affinities", "--all", "a=b")):
        assert "is read only: address management writes it" in cli.fails(*arguments)
    assert "is read only" in cli.fails("apply", "-f", "-", stdin=text(block))
    assert len(shown(cli, "blocks")) == 1


def test_endpoints_are_shown_by_namespace_and_label(cli: Cli, store: Backend, site: Site) -> None:
    """The namespace is `default` unless another one, or all, are chosen."""
    site.add_pod("web-0")
    workload = Workload("c1", "web-0", "default")
    key = endpoint_key(DEFAULT, "node1", workload, "eth0")
    spec = {"ipNetworks": ["10.65.0.1/32"], "interfaceName": "svc1", "mac": "02:00:00:00:00:01"}
    value = endpoint(DEFAULT, key, "node1", workload, "eth0", spec=spec, facts=PodFacts(labels={"app": "web"}))
    put(store, key, value)
    for options in ((), ("-n", "default"), ("-A",), ("-l", "app=web"), ("-A", "-l", "app notin (api)")):
        assert [each["spec"]["pod"] for each in shown(cli, "wep", *options)] == ["web-0"], options
    for options in (("-n", "other"), ("-l", "app!=web")):
        assert shown(cli, "wep", *options) == []
    assert cli.prints("get", "wep", "-A").split()[:2] == ["NAMESPACE", "NAME"]
    assert [each["spec"]["pod"] for each in shown(cli, "wep", f"default/{key.name}")] == ["web-0"]
    assert "it exists in namespace default: give -n default, or -A" in cli.fails("get", "wep", key.name, "-n", "other")
    assert "the plugin writes it" in cli.fails("delete", "wep", key.name)
    assert "have no namespace" in cli.fails("get", "pools", "-A", code=2)


def test_labels_are_set_and_removed(cli: Cli, site: Site) -> None:
    cli.changes("apply", "-f", "-", stdin=text(*EVERY))
    assert cli.changes("label", "hep", "node1-eth0", "zone=b", "rack-") == "hostendpoint/node1-eth0 updated\n"
    assert shown(cli, "hep")[0]["metadata"]["labels"] == {"zone": "b"}
    assert cli.changes("label", "hep", "--all", "zone=b", "missing-") == "hostendpoint/node1-eth0 unchanged\n"
    refused = cli.fails("label", "ippool/pods", "hep/node1-eth0", "zone=c", "_=x")
    assert "metadata.labels.zone = 'b' is another value than 'c': give --overwrite" in refused
    assert "is not a label key" in refused
    assert cli.prints("label", "hep", "-l", "zone=b", "zone=c", "--overwrite", "--dry-run").splitlines() == [
        "hostendpoint/node1-eth0 would be updated",
        '  metadata.labels.zone: "b" -> "c"',
    ]
    assert cli.changes("label", "hep", "-l", "zone=b", "zone=c", "--overwrite") == "hostendpoint/node1-eth0 updated\n"
    assert "metadata" in shown(cli, "pools")[0]
    assert "has no labels" in cli.fails("label", "settings", "default", "a=b")


def test_nodes_are_changed_except_those_of_kubernetes(cli: Cli, site: Site) -> None:
    node = document("Node", "node2", {"bgp": {"ipv4Address": "192.0.2.2/24"}}, labels={"rack": "b"})
    if is_orch(site):
        for arguments in (("label", "node", "node1", "a=b"), ("delete", "node", "node1"), ("apply", "-f", "-")):
            assert "belongs to Kubernetes: use kubectl label node" in cli.fails(*arguments, stdin=text(node))
    else:
        assert cli.changes("apply", "-f", "-", stdin=text(node)) == "node/node2 created\n"
        labels = document("Node", "node2", {}, labels={"rack": "c"})
        assert cli.changes("apply", "-f", "-", stdin=text(labels)) == "node/node2 updated\n"
        assert shown(cli, "node", "node2")[0]["spec"] == node["spec"]
        assert cli.changes("label", "node", "node2", "zone=b") == "node/node2 updated\n"
        assert cli.changes("delete", "node", "node2") == "node/node2 deleted\n"
    assert cli.prints("get", "nodes", "-l", "rack=a", "-o", "name") == "node/node1\n"


def test_profiles_are_kept_except_in_kubernetes(cli: Cli, site: Site) -> None:
    profile = document("Profile", "pods", {"ingress": [{"action": "Allow"}], "labelsToApply": {"a": ""}})
    if is_orch(site):
        assert "Kubernetes derives it" in cli.fails("apply", "-f", "-", stdin=text(profile))
        assert "the datastore has no profiles" in cli.fails("get", "profiles")
        return
    assert cli.changes("apply", "-f", "-", stdin=text(profile)) == "profile/pods created\n"
    assert cli.changes("delete", "profile", "pods") == "profile/pods deleted\n"
    reserved = profile | {"metadata": {"name": DEFAULT.default_allow_profile}}
    assert "is built in" in cli.fails("apply", "-f", "-", stdin=text(reserved))


def test_identity_of_the_datastore_cannot_be_replaced(cli: Cli) -> None:
    """Nor can its record be deleted."""
    cli.changes("clusterinfo", "init")
    (info,) = shown(cli, "clusterinfo")
    assert cli.changes("apply", "-f", "-", stdin=yaml.safe_dump(info)) == "clusterinformation/default unchanged\n"
    other = document(READY.kind, READY.name, {"clusterGUID": "1" * 32})
    assert "cannot replace" in cli.fails("apply", "-f", "-", stdin=text(other))
    assert "cannot be deleted" in cli.fails("delete", "clusterinfo", "default")
    assert shown(cli, "clusterinfo") == [info]


def test_objects_of_the_backing_group_are_applied(cli: Cli) -> None:
    """Their metadata is in an annotation."""
    carried = {f"{DEFAULT.label_prefix}/metadata": '{"labels":{"team":"web"}}'}
    backing = pool() | {"apiVersion": DEFAULT.crd_api_version, "metadata": {"name": "pods", "annotations": carried}}
    config = SETTINGS | {"apiVersion": DEFAULT.crd_api_version, "kind": "IPAMConfig"}
    created = "ippool/pods created\nipamconfiguration/default created\n"
    assert cli.changes("apply", "-f", "-", stdin=text(backing, config)) == created
    assert shown(cli, "pools", "-l", "team=web")[0]["metadata"]["labels"] == {"team": "web"}
    other = ENDPOINT | {"apiVersion": "projectcalico.org/v3"}
    assert "`svcctl convert` changes the API group" in cli.fails("apply", "-f", "-", stdin=text(other))
