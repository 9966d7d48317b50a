"""Roles of the programs: those of the controllers are the documented ones, and none has a right that its task does not need."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from harness.controllers_rights import Right, documented
from svc.admin.installation_resource.wanted import NAMESPACE as INSTALLATION_NAMESPACE
from svc.controllers.settings import CONTROLLERS, KNOWN
from svc.datastore.orch.leases import NAMESPACE
from svc.deploy import controller_rights, rbac
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import ETCD, NETWORKING, ORCH, OVERLAY, POLICY_ONLY, Settings
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile

Json = dict[str, Any]

MANIFESTS = Path(__file__).parents[2] / "docs" / "manifests.md"
CALICO = load_profile("calico")
STORES = {"": "", DEFAULT.crd_api_version: "crd.svc.internal", DEFAULT.api_version: "svc.internal"}


def rights_of(*roles: Json) -> set[Right]:
    return {
        Right(group, resource, verb, role["metadata"].get("namespace", ""))
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("enabled", [CONTROLLERS, KNOWN, *((name,) for name in KNOWN)], ids="-".join)
@pytest.mark.parametrize("api_version", STORES, ids=["etcd", "backing", "plain"])
def test_roles_of_controllers_are_the_documented_rights(enabled: tuple[str, ...], api_version: str) -> None:
    """The table in the code, and the one that docs/controllers.md shows, are equal for each set of controllers."""
    roles = rbac.controllers_roles(DEFAULT, enabled, api_version)
    assert rights_of(*roles) == documented(enabled, STORES[api_version])


def test_leases_are_those_of_one_namespace() -> None:
    """The datastore, and the roles that manifests have, name the same namespace, as the Installation does."""
    assert INSTALLATION_NAMESPACE == NAMESPACE
    assert rbac.LEASE_NAMESPACE == NAMESPACE
    for role in (*rbac.controllers_roles(DEFAULT, CONTROLLERS, ""), rbac.agent_lease_role(DEFAULT)):
        is_about_leases = any(controller_rights.LEASE in rule["resources"] for rule in role["rules"])
        assert is_about_leases == (role["metadata"].get("namespace") == NAMESPACE)


@pytest.mark.parametrize("api_version", [DEFAULT.crd_api_version, DEFAULT.api_version])
def test_roles_of_plugin_and_agent_make_the_one_of_a_node(api_version: str) -> None:
    """`svcctl crd role` prints what both need. Only its Leases are those of any namespace."""
    parts = [rbac.plugin_role(DEFAULT, api_version), rbac.agent_role(DEFAULT, api_version), rbac.agent_lease_role(DEFAULT)]
    alone = rights_of(*parts[:1])
    assert rights_of(rbac.role(DEFAULT, api_version)) == {right._replace(namespace="") for right in rights_of(*parts)}
    assert alone.isdisjoint(rights_of(*parts[1:]))
    assert "watch" not in {right.verb for right in alone}


@pytest.mark.parametrize("api_version", ["", DEFAULT.crd_api_version])
def test_each_call_can_read_whether_the_datastore_is_ready(api_version: str) -> None:
    """An ADD reads ClusterInformation first, also if addresses come from host-local. With etcd it is not in the API."""
    for own_ipam in (True, False):
        rights = rights_of(rbac.plugin_role(DEFAULT, api_version, own_ipam=own_ipam))
        wanted = Right("crd.svc.internal", "clusterinformations", "get")
        assert (wanted in rights) == bool(api_version)
        assert (Right("crd.svc.internal", "ipamblocks", "create") in rights) == (bool(api_version) and own_ipam)
        assert (Right("crd.svc.internal", "ippools", "list") in rights) == bool(api_version)


@pytest.mark.parametrize("names", [DEFAULT, CALICO], ids=["default", "calico"])
def test_installer_gets_tokens_of_one_account_only(names: Any) -> None:
    """The name of the account is that of the profile. A creation cannot be limited to a name; another product makes its own."""
    role = rbac.installer_token_role(names, "net")
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["serviceaccounts/token"],
            "verbs": ["create"],
            "resourceNames": [f"{names.plugin}-cni-plugin"],
        }
    ]
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "net")
    named, *others = rbac.installer_role(names, names.crd_api_version)["rules"]
    assert (named["verbs"], named["resourceNames"]) == (["get", "update"], ["default"])
    assert [(each["verbs"], "resourceNames" in each) for each in others] == ([] if names is CALICO else [(["create"], False)])


def test_binding_is_in_the_namespace_of_its_role() -> None:
    subject = {"kind": "ServiceAccount", "name": "a", "namespace": "other"}
    binding = rbac.bound(rbac.agent_lease_role(DEFAULT), subject)
    assert (binding["kind"], binding["metadata"]) == ("RoleBinding", {"name": "svc-node", "namespace": NAMESPACE})
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "svc-node"}


Detailed = tuple[str, str, str, str, str]
"""A right: API group, resource, name, namespace, verb."""

IN_KUBERNETES, IN_ETCD = "### With the Kubernetes API as datastore", "### With etcd as datastore"


def documented_at(heading: str) -> dict[str, set[Detailed]]:
    """Return the rights of each role in the table that follows a heading of docs/manifests.md."""
    _, _, section = MANIFESTS.read_text().partition(f"{heading}\n")
    lines = [line.strip("|").split("|") for line in section.partition("\n#")[0].splitlines() if "`" in line and line[0] == "|"]
    found: dict[str, set[Detailed]] = defaultdict(set)
    for role, group, what, verbs in (map(str.strip, line) for line in lines):
        plain, _, place = what.partition(", in namespace ")
        plain, _, name = plain.partition(", of ")
        found[role] |= {
            (group.strip("`").replace("core", ""), resource, "".join(words(name)), "".join(words(place)), verb)
            for resource in words(plain)
            for verb in words(verbs)
        }
    return dict(found)


def words(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def granted_by(settings: Settings) -> dict[str, set[Detailed]]:
    """Return the rights of each program by the roles of the manifests."""
    programs = {"svc-cni-plugin": "plugin", "svc-node": "agent", "svc-install": "installer", "svc-routes": "routes"}
    found: dict[str, set[Detailed]] = defaultdict(set)
    for role in (each for each in objects(settings) if each["kind"] in ("Role", "ClusterRole")):
        if role["metadata"]["name"] == DEFAULT.controllers:  # docs/controllers.md shows these
            continue
        namespace = "" if role["metadata"]["name"] == "svc-install" else role["metadata"].get("namespace", "")
        found[programs[role["metadata"]["name"]]] |= {
            (rule["apiGroups"][0], rule["resources"][0], of, namespace, verb)
            for rule in role["rules"]
            for of in rule.get("resourceNames", [""])
            for verb in rule["verbs"]
        }
    return {program: rights for program, rights in found.items() if rights}


@pytest.mark.parametrize(
    ("heading", "settings"),
    [
        (IN_KUBERNETES, Settings(NETWORKING, ORCH, "svc:1")),
        (IN_ETCD, Settings(NETWORKING, ETCD, "svc:1", etcd_endpoints="http://10.0.0.1:2379")),
        (IN_ETCD, Settings(OVERLAY, ETCD, "svc:1", etcd_endpoints="http://10.0.0.1:2379")),
    ],
    ids=["orch", "etcd", "etcd with host-local"],
)
def test_documented_rights_are_those_of_the_manifests(heading: str, settings: Settings) -> None:
    """docs/manifests.md shows the roles of plugin, agent, installer and svc-routes, for each datastore."""
    assert documented_at(heading) == granted_by(settings)


def test_documented_rights_with_host_local() -> None:
    """Those of the table without the ones that the sentence after it names."""
    (sentence,) = (line for line in MANIFESTS.read_text().splitlines() if line.startswith("If addresses come from host-local"))
    missing = words(sentence)
    assert len(missing) == 4
    shown = documented_at(IN_KUBERNETES)
    wanted = {program: {right for right in shown[program] if right[1] not in missing} for program in ("plugin", "agent")}
    for flavour in (OVERLAY, POLICY_ONLY):
        assert granted_by(Settings(flavour, ORCH, "svc:1")) == wanted | {"installer": shown["installer"]}


def test_operator_changes_workloads_of_another_namespace() -> None:
    """Its second Role has the rights of the first one, but for the Leases, which stay in one namespace."""
    _, first, second = rbac.controllers_roles(DEFAULT, ("node", "operator"), DEFAULT.crd_api_version, "net")
    assert (first["metadata"]["namespace"], second["metadata"]["namespace"]) == ("kube-system", "net")
    assert second["rules"] == [rule for rule in first["rules"] if rule["resources"] != ["leases"]]
    assert len(rbac.controllers_roles(DEFAULT, ("node",), DEFAULT.crd_api_version, "net")) == 2
