"""The rights that the plugin needs in the Kubernetes API, the least of them."""

from typing import Any

from svc.names import Names

Json = dict[str, Any]

_READ = ("get", "list", "watch")
_OWN = ("get", "list", "create", "update", "delete")
_CUSTOM = (  # plural, verbs
    ("ipamblocks", _OWN),
    ("blockaffinities", _OWN),
    ("ipamhandles", _OWN),
    ("ippools", ("list", "watch")),
    ("ipreservations", ("list", "watch")),
    ("clusterinformations", _READ),
)
_OTHERS = (  # API group, plural, verbs
    ("", "pods", ("get",)),
    ("", "pods/status", ("patch",)),
    ("", "nodes", _READ),
    ("", "namespaces", _READ),
    ("coordination.k8s.io", "leases", ("get", "create", "update")),
)
_AUTHORIZATION = "rbac.authorization.k8s.io"


def role(names: Names, api_version: str) -> Json:
    """Return the ClusterRole, for the API group of the custom resources."""
    group = api_version.partition("/")[0]
    config = "ipamconfigs" if api_version != names.api_version else "ipamconfigurations"
    rules = (*_OTHERS, *((group, plural, verbs) for plural, verbs in (*_CUSTOM, (config, _READ))))
    return {
        "apiVersion": f"{_AUTHORIZATION}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": role_name(names)},
        "rules": [{"apiGroups": [group], "resources": [plural], "verbs": list(verbs)} for group, plural, verbs in rules],
    }


def binding(names: Names, *subjects: Json) -> Json:
    """Return the ClusterRoleBinding of the role to users, groups or service accounts."""
    return {
        "apiVersion": f"{_AUTHORIZATION}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role_name(names)},
        "roleRef": {"apiGroup": _AUTHORIZATION, "kind": "ClusterRole", "name": role_name(names)},
        "subjects": list(subjects),
    }


def role_name(names: Names) -> str:
    """Return the name of the role and of its binding."""
    return f"{names.plugin}-cni"
