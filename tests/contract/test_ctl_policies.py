"""svcctl get, apply, create, label and delete for policies, on every datastore."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.datastores import OrchSite, Site, session, set_ready
from harness.documents import GLOBAL_POLICY, POLICY, references, shown, text
from harness.ipam import put
from harness.policies import served_policies
from harness.site_fixtures import ON_EACH_DATASTORE
from harness.svcctl import Cli, cli_on
from svc.datastore.api import Backend
from svc.model.keys import ResourceKey
from svc.model.resource import Resource

pytestmark = ON_EACH_DATASTORE

BOTH = "np,gnp"


@pytest.fixture(scope="module")
def served(site: Site) -> Iterator[None]:
    with served_policies(site.kube) if isinstance(site, OrchSite) else nullcontext():
        yield


@pytest.fixture
def store(site: Site, served: None) -> Iterator[Backend]:
    with session(site) as store:
        set_ready(store)
        yield store
        for kind, name, namespace in (("NetworkPolicy", "deny", "default"), ("GlobalNetworkPolicy", "open", "")):
            store.update(ResourceKey(kind, name, namespace), lambda _: None)
        store.update(ResourceKey("NetworkPolicy", "knp.default.copy", "default"), lambda _: None)
    site.clear()


@pytest.fixture
def cli(site: Site, home: Path, store: Backend) -> Cli:
    return cli_on(site, home)


def test_policies_are_written_and_shown(cli: Cli, store: Backend) -> None:
    """They get a tier and the directions of their rules. What `get` prints can be applied again."""
    created = "networkpolicy/default/deny created\nglobalnetworkpolicy/open created\n"
    assert cli.changes("create", "-f", "-", stdin=text(POLICY, GLOBAL_POLICY)) == created
    assert "exists: `svcctl apply` changes it" in cli.fails("create", "-f", "-", stdin=text(POLICY))
    policy = store.get(ResourceKey("NetworkPolicy", "deny", "default")).value
    assert policy.spec == {"tier": "default", "selector": "app == 'web'", "types": ["Ingress"]}
    (shown_open,) = shown(cli, "gnp", "open")
    assert shown_open["spec"] == GLOBAL_POLICY["spec"] | {"tier": "default", "types": ["Egress"]}
    printed = cli.prints("get", BOTH, "-A", "-o", "yaml")
    assert cli.changes("apply", "-f", "-", stdin=printed) == created.replace("created", "unchanged")
    assert references(cli, BOTH) == ["networkpolicy/default/deny", "globalnetworkpolicy/open"]
    assert cli.prints("get", "np").splitlines() == [
        "NAME  TIER     ORDER  TYPES    INGRESS  EGRESS",
        "deny  default         Ingress  0        0",
    ]


def test_policies_are_changed_labelled_and_deleted(cli: Cli, store: Backend) -> None:
    cli.changes("apply", "-f", "-", stdin=text(POLICY, GLOBAL_POLICY))
    changed = POLICY | {"spec": {"egress": [{"action": "Deny"}], "ingress": [{"action": "Allow"}]}}
    assert cli.prints("apply", "-f", "-", "--dry-run", stdin=text(changed)).splitlines() == [
        "networkpolicy/default/deny would be updated",
        '  spec.egress: (none) -> [{"action": "Deny"}]',
        '  spec.ingress: (none) -> [{"action": "Allow"}]',
        "  spec.selector: \"app == 'web'\" -> (none)",
        '  spec.types: ["Ingress"] -> ["Ingress", "Egress"]',
    ]
    assert cli.changes("apply", "-f", "-", stdin=text(changed)) == "networkpolicy/default/deny updated\n"
    assert store.get(ResourceKey("NetworkPolicy", "deny", "default")).value.spec["types"] == ["Ingress", "Egress"]
    assert cli.changes("label", "np", "deny", "team-", "tier=front") == "networkpolicy/default/deny updated\n"
    assert cli.changes("label", "gnp/open", "tier=front") == "globalnetworkpolicy/open updated\n"
    assert references(cli, BOTH) == cli.prints("get", BOTH, "-l", "tier=front", "-o", "name").split()
    assert cli.changes("delete", "np", "default/deny") == "networkpolicy/default/deny deleted\n"
    assert cli.changes("delete", "-f", "-", "--yes", stdin=text(GLOBAL_POLICY)) == "globalnetworkpolicy/open deleted\n"
    assert references(cli, BOTH) == []


def test_policy_needs_a_namespace(cli: Cli, site: Site) -> None:
    """The errors name it with the remedy. In Kubernetes, the namespace must exist as well."""
    without = POLICY | {"metadata": {"name": "deny"}}
    refused = cli.fails("apply", "-f", "-", stdin=text(without, GLOBAL_POLICY))
    assert "network policy 'deny': metadata.namespace is missing: add it, or give -n NAMESPACE" in refused
    wrong = POLICY | {"metadata": {"name": "deny", "namespace": "BAD NS"}}
    for command in ("apply", "create", "replace"):
        refused = cli.fails(command, "-f", "-", stdin=text(wrong))
        assert "metadata.namespace = 'BAD NS' is not the name of a namespace: give up to 63" in refused
    assert "'BAD NS' is not the name of a namespace" in cli.fails("get", "np", "-n", "BAD NS", code=2)
    assert "have no namespace" in cli.fails("get", "gnp", "-n", "default", code=2)
    assert references(cli, BOTH) == []
    assert cli.changes("apply", "-f", "-", "-n", "default", stdin=text(without)) == "networkpolicy/default/deny created\n"
    assert "it exists in namespace default: give -n default, or -A" in cli.fails("get", "np", "deny", "-n", "other")
    if isinstance(site, OrchSite):
        refused = cli.fails("apply", "-f", "-", "-n", "nowhere", stdin=text(without))
        assert "namespace 'nowhere' does not exist: create it first: kubectl create namespace nowhere" in refused


def test_copies_of_kubernetes_policies_stay(cli: Cli, store: Backend) -> None:
    """The controllers would write them again."""
    metadata = {"name": "knp.default.copy", "namespace": "default"}
    put(store, ResourceKey("NetworkPolicy", "knp.default.copy", "default"), Resource("NetworkPolicy", metadata, {"order": 1}))
    (copy,) = shown(cli, "np")
    for refused in (
        cli.fails("apply", "-f", "-", stdin=text(copy)),
        cli.fails("label", "np", "knp.default.copy", "a=b"),
        cli.fails("delete", "np", "knp.default.copy"),
    ):
        assert "the controllers copy it from Kubernetes; use kubectl, or another name" in refused
    assert shown(cli, "np") == [copy]
