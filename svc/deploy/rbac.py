"""The rights of each program of svc in the Kubernetes API, the least of them.

| role | account | what uses it |
|---|---|---|
| plugin | plugin | calls of the runtime, in whichever process they run |
| agent | plugin | the resident agent besides: its watches, and the claim of the node's name |
| routes | plugin | svc-routes besides: its watches, and the annotations of its node |
| installer | node | `svcctl install --watch`: the token of the plugin's account, and the cluster's version |
| controllers | controllers | svc-controllers |

Agent and svc-routes have no account of their own: they open the kubeconfig that the network list names, as each call does.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from svc.deploy import controller_rights
from svc.deploy.controller_rights import CORE, LEASE, LEASES_GROUP, Rule
from svc.model.custom_resources import CONFIG_NAME
from svc.names import Names

Json = dict[str, Any]

LEASE_NAMESPACE: Final = "kube-system"  # of the claims on names of nodes, and of the controllers' election
_AUTHORIZATION: Final = "rbac.authorization.k8s.io"
_READ: Final = ("get", "list", "watch")
_WATCH: Final = ("watch",)
_IPAM: Final = ("ipamblocks", "blockaffinities", "ipamhandles")


def plugin_account(names: Names) -> str:
    """Return the name of the account of the plugin and its agent, whose token the installer requests."""
    return f"{names.plugin}-cni-plugin"


def node_name(names: Names) -> str:
    """Return the name of the DaemonSet of the agent, and of the account of its pods."""
    return names.daemon_set


def role_name(names: Names) -> str:
    """Return the name of the role of the plugin and of its binding."""
    return f"{names.plugin}-cni"


def role(names: Names, api_version: str) -> Json:
    """Return the ClusterRole of plugin and agent in one, for nodes without pods of svc.

    `api_version` is that of the custom resources."""
    leases = Rule(LEASES_GROUP, (LEASE,), ("get", "create", "update"))
    return _role(role_name(names), _merged([*_plugin_rules(names, api_version), *_watches(names, api_version), leases]))


def plugin_role(names: Names, api_version: str, *, own_ipam: bool = True) -> Json:
    """Return the ClusterRole of calls, which has the name of their account. `api_version` is empty if etcd is the datastore.

    Without `own_ipam` addresses come from host-local."""
    return _role(plugin_account(names), _merged(_plugin_rules(names, api_version, own_ipam=own_ipam)))


def agent_role(names: Names, api_version: str, *, own_ipam: bool = True) -> Json:
    """Return the ClusterRole of what the resident agent needs besides."""
    return _role(node_name(names), _merged(_watches(names, api_version, own_ipam=own_ipam)))


def routes_role(names: Names, api_version: str) -> Json:
    """Return the ClusterRole of what svc-routes needs besides. `api_version` is empty if etcd is the datastore."""
    found = []
    if api_version:
        plurals = ("ipamblocks", "blockaffinities", "ippools", "ipreservations", _settings(names, api_version))
        found = [Rule(CORE, ("nodes",), _WATCH), Rule(CORE, ("nodes/status",), ("patch",))]
        found += [Rule(_group(api_version), (plural,), _WATCH) for plural in plurals]
    return _role(f"{names.plugin}-routes", _merged(found))


def agent_lease_role(names: Names) -> Json:
    """Return the Role for the claims on names of nodes."""
    return _local_role(node_name(names), [Rule(LEASES_GROUP, (LEASE,), ("get", "create", "update"))])


def installer_token_role(names: Names, namespace: str) -> Json:
    """Return the Role by which the installer gets tokens of one account, and of no other."""
    rule = {"apiGroups": [CORE], "resources": ["serviceaccounts/token"], "verbs": ["create"]}
    return _role(installer_name(names), [rule | {"resourceNames": [plugin_account(names)]}], namespace)


def installer_role(names: Names, api_version: str) -> Json:
    """Return the ClusterRole by which the installer notes the version of the cluster.

    If the definitions belong to another product, that product makes the object."""
    rule = {"apiGroups": [_group(api_version)], "resources": ["clusterinformations"]}
    named = rule | {"resourceNames": [CONFIG_NAME], "verbs": ["get", "update"]}
    created = [] if names.foreign_definitions else [rule | {"verbs": ["create"]}]  # a creation has no name yet
    return _role(installer_name(names), [named, *created])


def installer_name(names: Names) -> str:
    """Return the name of the roles of the installer."""
    return f"{names.plugin}-install"


def controllers_roles(
    names: Names, controllers: Collection[str], api_version: str, namespace: str = LEASE_NAMESPACE
) -> list[Json]:
    """Return the ClusterRole of svc-controllers, its Role for objects of one namespace, and a second one for its workloads.

    `api_version` is empty if etcd is the datastore. The second Role is needed if `namespace` has the workloads of svc, and
    the controller `operator` changes them."""
    found = list(controller_rights.rules(names, controllers, api_version))
    wide = [rule for rule in found if not rule.is_local]
    local = [rule for rule in found if rule.is_local]
    roles = [_role(names.controllers, _merged(wide)), _local_role(names.controllers, local)]
    own = [rule for rule in local if rule.group != LEASES_GROUP]
    return roles if namespace == LEASE_NAMESPACE or not own else [*roles, _role(names.controllers, _merged(own), namespace)]


def binding(names: Names, *subjects: Json) -> Json:
    """Return the ClusterRoleBinding of the plugin's role to users, groups or service accounts."""
    return bound(_role(role_name(names), []), *subjects)


def bound(role: Json, *subjects: Json) -> Json:
    """Return the binding of a role, which has the role's name and namespace."""
    kind, metadata = role["kind"], role["metadata"]
    return {
        "apiVersion": f"{_AUTHORIZATION}/v1",
        "kind": f"{kind}Binding",
        "metadata": {name: metadata[name] for name in ("name", "namespace") if name in metadata},
        "roleRef": {"apiGroup": _AUTHORIZATION, "kind": kind, "name": metadata["name"]},
        "subjects": list(subjects),
    }


def _plugin_rules(names: Names, api_version: str, *, own_ipam: bool = True) -> list[Rule]:
    found = [
        Rule(CORE, ("pods",), ("get", "list") if api_version else ("get",)),  # lists: to restore lost rows, and for GC
        Rule(CORE, ("pods/status",), ("patch",)),
        Rule(CORE, ("nodes",), ("get", "list") if api_version else ("get",)),
        Rule(CORE, ("namespaces",), ("get", "list")),
    ]
    if not api_version:
        return found
    group = _group(api_version)
    found.append(Rule(group, ("clusterinformations",), ("get", "list")))
    if own_ipam:
        found += [Rule(group, (plural,), ("get", "list", "create", "update", "delete")) for plural in _IPAM]
        found.append(Rule(group, (_settings(names, api_version),), ("get", "list")))
    return [*found, *(Rule(group, (plural,), ("list",)) for plural in ("ippools", "ipreservations"))]


def _watches(names: Names, api_version: str, *, own_ipam: bool = True) -> list[Rule]:
    found = [Rule(CORE, ("namespaces",), _WATCH)]
    if not api_version:
        return found
    watched = ["ippools", "ipreservations", "clusterinformations", *([_settings(names, api_version)] if own_ipam else [])]
    return [*found, Rule(CORE, ("nodes",), _WATCH), *(Rule(_group(api_version), (plural,), _WATCH) for plural in watched)]


def _settings(names: Names, api_version: str) -> str:
    """Return the plural of the IPAM settings, whose kind depends on the group."""
    return "ipamconfigs" if api_version != names.api_version else "ipamconfigurations"


def _group(api_version: str) -> str:
    return api_version.partition("/")[0]


def _merged(rules: Iterable[Rule]) -> list[Json]:
    """Return the rules of a role: one for each resource, and one more for its objects of certain names."""
    verbs: dict[tuple[str, str, tuple[str, ...]], dict[str, None]] = {}  # in order, each once
    for rule in rules:
        for resource in rule.resources:
            verbs.setdefault((rule.group, resource, rule.objects), {}).update(dict.fromkeys(rule.verbs))
    return [
        {"apiGroups": [group], "resources": [resource]}
        | ({"resourceNames": list(objects)} if objects else {})
        | {"verbs": list(found)}
        for (group, resource, objects), found in verbs.items()
    ]


def _local_role(name: str, rules: Sequence[Rule]) -> Json:
    return _role(name, _merged(rules), LEASE_NAMESPACE)


def _role(name: str, rules: list[Json], namespace: str = "") -> Json:
    return {
        "apiVersion": f"{_AUTHORIZATION}/v1",
        "kind": "Role" if namespace else "ClusterRole",
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "rules": rules,
    }
