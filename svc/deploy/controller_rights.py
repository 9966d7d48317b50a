"""The rights of svc-controllers: one table, from which its roles are made. `docs/controllers.md` shows the same rows."""

from collections.abc import Collection, Iterator
from typing import Final, Literal

from svc.names import Names
from svc.values import dataclass

Where = Literal["", "etcd", "orch", "backing", "plain"]

ETCD, ORCH, BACKING, PLAIN = "etcd", "orch", "backing", "plain"
CORE, LEASES_GROUP, NETWORKING = "", "coordination.k8s.io", "networking.k8s.io"
WORKLOADS: Final = "apps"
OWN_GROUP, OPERATOR_GROUP = "*own*", "*operator*"  # stand for the groups of the custom resources, and of the Installation
LEASE: Final = "leases"
OPERATOR: Final = ("operator",)

_READ: Final = ("get", "list", "watch")
_CHANGE: Final = ("patch",)  # of a workload: only of those that `_changed` names
_ALL: Final = ()  # processes of every set of controllers
_NODE, _BALANCER = ("node",), ("loadbalancer",)
_BOTH: Final = (*_NODE, *_BALANCER)
_IPAM: Final = ("ipamblocks", "ipamhandles", "blockaffinities")


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs for objects of an API group; with `is_local`, of one namespace only; with `objects`, those of these names only."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    is_local: bool = False
    objects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    rule: Rule
    needed_by: tuple[str, ...]
    where: Where = ""


def _row(group: str, resources: tuple[str, ...], verbs: tuple[str, ...], needed_by: tuple[str, ...], where: Where = "") -> _Row:
    return _Row(Rule(group, resources, verbs), needed_by, where)


def _local(
    group: str, resources: tuple[str, ...], verbs: tuple[str, ...], needed_by: tuple[str, ...], where: Where = ""
) -> _Row:
    return _Row(Rule(group, resources, verbs, is_local=True), needed_by, where)


_TABLE: Final = (
    _local(LEASES_GROUP, (LEASE,), ("get", "create", "update"), _ALL),
    _local(LEASES_GROUP, (LEASE,), ("delete",), _NODE, "orch"),
    _row(NETWORKING, ("networkpolicies",), _READ, ("policy",), "etcd"),
    _row(CORE, ("namespaces",), _READ, ("namespace",), "etcd"),
    _row(CORE, ("namespaces",), ("get",), _BALANCER),
    _row(CORE, ("serviceaccounts",), _READ, ("serviceaccount",), "etcd"),
    _row(CORE, ("pods",), _READ, ("workloadendpoint",), "etcd"),
    _row(CORE, ("pods", "nodes"), _READ, _NODE),
    _row(CORE, ("nodes",), ("list", "watch"), _BALANCER, "orch"),
    _row(CORE, ("services",), _READ, _BALANCER),
    _row(CORE, ("services/status",), ("patch",), _BALANCER),
    _row(OPERATOR_GROUP, ("installations",), _READ, OPERATOR),
    _row(OPERATOR_GROUP, ("installations/status",), ("update",), OPERATOR),
    _local(CORE, ("configmaps",), ("get", "create", "update"), OPERATOR),
    _local(WORKLOADS, ("daemonsets", "deployments"), _READ, OPERATOR),
    _local(WORKLOADS, ("daemonsets", "deployments"), _CHANGE, OPERATOR),
    _row(OWN_GROUP, ("clusterinformations",), ("get",), _ALL, "orch"),
    _row(OWN_GROUP, ("clusterinformations",), ("create",), OPERATOR, "orch"),
    _row(OWN_GROUP, ("kubecontrollersconfigurations",), (*_READ, "create", "update"), _ALL, "orch"),
    _row(OWN_GROUP, ("kubecontrollersconfigurations/status",), ("update",), _ALL, "plain"),
    _row(OWN_GROUP, ("hostendpoints",), (*_READ, "create", "update", "delete"), _NODE, "orch"),
    _row(OWN_GROUP, ("ippools",), ("list", "watch"), _BOTH, "orch"),
    _row(OWN_GROUP, ("ippools",), ("list", "watch", "create", "update", "delete"), OPERATOR, "orch"),
    _row(OWN_GROUP, ("ippools", "ippools/status"), ("update",), _NODE, "plain"),
    _row(OWN_GROUP, ("ipreservations",), ("list", "watch"), _BOTH, "orch"),
    _row(OWN_GROUP, ("ipamconfigs",), ("get",), _NODE, "backing"),
    _row(OWN_GROUP, ("ipamconfigs",), _READ, _BALANCER, "backing"),
    _row(OWN_GROUP, ("ipamconfigurations",), ("get",), _NODE, "plain"),
    _row(OWN_GROUP, ("ipamconfigurations",), _READ, _BALANCER, "plain"),
    _row(OWN_GROUP, _IPAM, (*_READ, "update", "delete"), _NODE, "orch"),
    _row(OWN_GROUP, ("ipamblocks",), (*_READ, "update", "delete"), OPERATOR, "orch"),
    _row(OWN_GROUP, ("blockaffinities",), ("get", "list", "update", "delete"), OPERATOR, "orch"),
    _row(OWN_GROUP, ("ipamblocks",), (*_READ, "create", "update", "delete"), _BALANCER, "orch"),
    _row(OWN_GROUP, ("ipamhandles",), ("get", "create", "update", "delete"), _BALANCER, "orch"),
    _row(OWN_GROUP, ("blockaffinities",), ("get", "list", "create", "update", "delete"), _BALANCER, "orch"),
)


def rules(names: Names, controllers: Collection[str], api_version: str) -> Iterator[Rule]:
    """Yield what a process with these controllers needs, with no verb twice.

    `api_version` is that of the custom resources; empty if etcd is the datastore."""
    here = {"", ETCD} if not api_version else {"", ORCH, PLAIN if api_version == names.api_version else BACKING}
    stand_ins = {OWN_GROUP: api_version.partition("/")[0], OPERATOR_GROUP: names.operator_api_version.partition("/")[0]}
    verbs: dict[tuple[str, str, bool, tuple[str, ...]], dict[str, None]] = {}  # in order, each once
    for row in _TABLE:
        if row.where in here and (row.needed_by == _ALL or not set(row.needed_by).isdisjoint(controllers)):
            group = stand_ins.get(row.rule.group, row.rule.group)
            for resource in row.rule.resources:
                objects = _changed(names, resource) if row.rule.verbs == _CHANGE else ()
                verbs.setdefault((group, resource, row.rule.is_local, objects), {}).update(dict.fromkeys(row.rule.verbs))
    for (group, resource, is_local, objects), found in verbs.items():
        yield Rule(group, (resource,), tuple(found), is_local, objects)


def _changed(names: Names, resource: str) -> tuple[str, ...]:
    """Return the names of the workloads that the controller `operator` changes; none for other resources."""
    named = {"daemonsets": (names.daemon_set, names.node_agent), "deployments": (names.controllers, names.data_path_proxy)}
    return tuple(dict.fromkeys(filter(None, named.get(resource, ()))))
