"""The table of all kinds that svcctl shows and changes.

To add a kind, add an entry here, and the plural of its keys to `svc.model.keys`. Entries that depend on the names profile are
functions of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from svc.admin import columns, controllers_configuration, ipam_kinds, policies, pools, resources, rules
from svc.admin.changes import Options, applied, apply
from svc.admin.columns import NAME, computed, count, field, switch
from svc.admin.field_rules import lines
from svc.admin.installation_resource import rules as installation_rules
from svc.admin.kind import Kind, ResourceStorage, each_alone
from svc.admin.resources import CIDRS, CLUSTER, NODE, NOUNS, POOL
from svc.datastore.api import Backend
from svc.ipam.pools import RESERVATION, read_pools, read_reserved
from svc.model import controllers_configuration as controllers
from svc.model import endpoint, installation
from svc.model.errors import CallerError, Code
from svc.model.keys import PLURALS
from svc.model.pool import FIELD_NAMES as POOL_FIELDS
from svc.model.pool import TEXT_FIELDS, with_defaults
from svc.model.resource import Resource
from svc.names import Names

_BY_POLICY_AGENT: Final = (
    "install the policy agent, which defines this kind; kubectl get networkpolicies shows the policies of Kubernetes"
)
_IN_A_CLUSTER: Final = "it is about a cluster, and in its Kubernetes API: `svcctl installation status` shows it"
_OF_KUBERNETES: Final = "Kubernetes derives it from namespaces and service accounts: change them there"


def table(names: Names, store: str) -> tuple[Kind, ...]:
    """Return every kind, as a datastore of the type `store` has it."""
    return tuple(kind.within(store) for kind in (*_WITH_ANY_NAMES, *_with_names(names)))


def find(known: Sequence[Kind], word: str) -> Kind:
    """Return the kind that a word of the command line selects. Raise CallerError if it selects none."""
    for kind in known:
        if word.lower() in kind.names or word.lower() in map(str.lower, kind.aliases):
            return kind
    listed = ", ".join("|".join(dict.fromkeys((kind.plural, *kind.words))) for kind in known)
    raise CallerError(f"kind {word!r} is not known", details=f"give one of {listed}")


def of_manifest(known: Iterable[Kind], word: str) -> Kind | None:
    """Return the kind of this name in manifests, if it is known."""
    return next((kind for kind in known if word in (kind.name, *kind.aliases)), None)


def apply_all(backend: Backend, kind: Kind, documents: Sequence[Resource], options: Options) -> list[str]:
    """Create or update objects of one kind; return what was done to each. Raise as `changes.apply`."""
    return [each.outcome for each in apply(backend, [applied(kind, document) for document in documents], options)]


def apply_node(backend: Backend, name: str, labels: Mapping[str, str] | None, options: Options) -> str:
    """Create the node with these labels, or replace those that it has; None keeps them. Raise CallerError, StoreError."""
    metadata: dict[str, Any] = {"name": name} | ({} if labels is None else {"labels": dict(labels)})
    document = Resource(NODE, metadata, status={})
    changes = apply(backend, [applied(NODES, document)], options)
    return changes[0].outcome


POOLS: Final = Kind(
    POOL,
    NOUNS[POOL],
    PLURALS[POOL],
    words=("pool", "pools", "ipp"),
    storage=ResourceStorage(POOL),
    columns=(
        NAME,
        field("CIDR", "cidr"),
        ("BLOCKS", lambda pool: f"/{pool.spec['blockSize']}" if pool.spec.get("blockSize") else ""),
        switch("NAT", "natOutgoing"),
        field("IPIP", "ipipMode"),
        field("VXLAN", "vxlanMode"),
        switch("DISABLED", "disabled"),
        field("NODES", "nodeSelector"),
    ),
    wide=(field("NAMESPACES", "namespaceSelector"), field("USES", "allowedUses"), field("MODE", "assignmentMode")),
    own=frozenset(POOL_FIELDS),
    texts=TEXT_FIELDS,
    code=Code.POOL,
    checker=pools.checker,
    complete=with_defaults,
    admit=pools.admit,
    unreadable=lambda backend: read_pools(backend).unreadable,
    check_unused=pools.require_unused,
    remove=pools.delete,
    warnings=pools.warnings,
)
RESERVATIONS: Final = Kind(
    RESERVATION,
    NOUNS[RESERVATION],
    PLURALS[RESERVATION],
    words=("reservation", "reservations", "ipr"),
    storage=ResourceStorage(RESERVATION),
    columns=(NAME, ("CIDRS", lambda reservation: ",".join(resources.ranges_of(reservation)))),
    own=frozenset({CIDRS}),
    texts=(f"{CIDRS}[]",),
    code=Code.POOL,
    checker=each_alone(resources.check_reservation),
    unreadable=lambda backend: read_reserved(backend).unreadable,
)
NODES: Final = Kind(
    NODE,
    NOUNS[NODE],
    PLURALS[NODE],
    words=("node", "no"),
    storage=ResourceStorage(NODE),
    columns=(NAME, columns.LABELS),
    wide=(computed("ADDRESSES", lambda node: [each["address"] for each in node.spec.get("addresses") or ()]),),
    texts=tuple(name for name in rules.NODE_FIELDS if name.endswith("Addr")),
    checker=each_alone(rules.check_node),
    implied=resources.implied_nodes,
    check_unused=resources.require_unused_node,
    remove=resources.delete_node,
    read_only_in={"orch": "it belongs to Kubernetes: use kubectl label node, or kubectl delete node"},
)
_HOST_ENDPOINTS: Final = Kind(
    "HostEndpoint",
    "host endpoint",
    PLURALS["HostEndpoint"],
    words=("hep", "heps"),
    storage=ResourceStorage("HostEndpoint"),
    columns=(NAME, field("NODE", "node"), field("INTERFACE", "interfaceName"), field("EXPECTED IPS", "expectedIPs")),
    wide=(field("PROFILES", "profiles"),),
    own=frozenset(rules.ENDPOINT_FIELDS),
    texts=("node", "interfaceName", "expectedIPs[]", "profiles[]"),
    checker=each_alone(rules.check_host_endpoint),
)
_WORKLOAD_ENDPOINTS: Final = Kind(
    endpoint.KIND,
    "workload endpoint",
    PLURALS[endpoint.KIND],
    words=("wep", "weps"),
    storage=ResourceStorage(endpoint.KIND),
    columns=(
        NAME,
        field("POD", "pod"),
        field("NODE", "node"),
        field("NETWORKS", "ipNetworks"),
        field("INTERFACE", "interfaceName"),
    ),
    wide=(field("ORCHESTRATOR", "orchestrator"), field("CONTAINER", "containerID"), field("PROFILES", "profiles")),
    read_only="the plugin writes it with the attachment: delete the pod, or call DEL",
)
_OF_POLICIES: Final = (
    NAME,
    field("TIER", "tier"),
    field("ORDER", "order"),
    field("TYPES", "types"),
    count("INGRESS", "ingress"),
    count("EGRESS", "egress"),
)
_NETWORK_POLICIES: Final = Kind(
    policies.KIND,
    "network policy",
    PLURALS[policies.KIND],
    words=("netpol", "np"),
    storage=ResourceStorage(policies.KIND),
    columns=_OF_POLICIES,
    wide=(field("SELECTOR", "selector"),),
    own=frozenset(policies.POLICY_FIELDS),
    texts=policies.TEXTS,
    checker=each_alone(policies.check_policy),
    complete=policies.completed,
    foreign=policies.why_copied,
    defined_by=_BY_POLICY_AGENT,
)
_GLOBAL_POLICIES: Final = Kind(
    policies.GLOBAL_KIND,
    "global network policy",
    PLURALS[policies.GLOBAL_KIND],
    words=("gnp", "gnps"),
    storage=ResourceStorage(policies.GLOBAL_KIND),
    columns=_OF_POLICIES,
    wide=(field("SELECTOR", "selector"), field("NAMESPACES", "namespaceSelector")),
    own=frozenset(policies.GLOBAL_FIELDS),
    texts=policies.TEXTS,
    checker=each_alone(policies.check_global_policy),
    complete=policies.completed,
    defined_by=_BY_POLICY_AGENT,
)
_CONTROLLERS: Final = Kind(
    controllers.KIND,
    "controllers configuration",
    PLURALS[controllers.KIND],
    words=("kcc", "kccs"),
    singleton=controllers.KEY.name,
    storage=ResourceStorage(controllers.KIND),
    columns=(
        NAME,
        field("LOG", controllers.LEVEL),
        field("HEALTH CHECKS", controllers.HEALTH),
        field("METRICS PORT", controllers.METRICS_PORT),
        field("HOST ENDPOINTS", "controllers.node.hostEndpoint.autoCreate"),
    ),
    wide=(field("COMPACTION", controllers.COMPACTION), field("DEBUG PORT", controllers.DEBUG_PORT)),
    own=frozenset(controllers.FIELD_NAMES),
    texts=controllers.TEXTS,
    checker=lambda backend, _resources: partial(controllers_configuration.check_document, backend),
)
_WITH_ANY_NAMES: Final = (
    POOLS,
    RESERVATIONS,
    NODES,
    _HOST_ENDPOINTS,
    _WORKLOAD_ENDPOINTS,
    _NETWORK_POLICIES,
    _GLOBAL_POLICIES,
    _CONTROLLERS,
)


def _with_names(names: Names) -> tuple[Kind, ...]:
    """Return the kinds whose fields, documents or rules depend on the names."""
    return (
        ipam_kinds.settings(names),
        _cluster(names),
        _profile(names),
        _installation(names),
        ipam_kinds.block(names),
        ipam_kinds.affinity(names),
        ipam_kinds.handle(names),
    )


def _installation(names: Names) -> Kind:
    """Return the kind of the operator's resource."""
    return Kind(
        installation.KIND,
        "installation",
        installation.PLURAL,
        singleton=installation.NAME,
        api_version=names.operator_api_version,
        storage=ResourceStorage(installation.KIND),
        columns=(NAME, ("READY", partial(_condition, "Ready")), ("DEGRADED", partial(_condition, "Degraded"))),
        wide=(field("PLUGIN", "cni.type"), field("IPAM", "cni.ipam.type")),
        own=frozenset({"cni", names.operator_network}),
        texts=tuple(installation_rules.texts(names)),
        checker=each_alone(lambda resource, _: lines(installation_rules.check(resource.spec, names))),
        absent_in=dict.fromkeys(("embedded", "etcdv3"), _IN_A_CLUSTER),
        defined_by="make its definition: `svcctl crd apply --group operator`",
    )


def _condition(kind: str, resource: Resource) -> str:
    """Return the status of a condition; empty if the controllers have not judged it."""
    conditions = (resource.status or {}).get("conditions") or ()
    return next((str(each.get("status", "")) for each in conditions if each.get("type") == kind), "")


def _cluster(names: Names) -> Kind:
    """Return the kind of the cluster's information."""
    return Kind(
        CLUSTER.kind,
        "cluster information",
        PLURALS[CLUSTER.kind],
        words=("clusterinfo", "clusterinfos"),
        singleton=CLUSTER.name,
        storage=ResourceStorage(CLUSTER.kind),
        columns=(
            NAME,
            field("GUID", "clusterGUID"),
            field("TYPE", "clusterType"),
            field("VERSION", names.version_field),
            ("READY", resources.readiness),
        ),
        texts=("clusterGUID", "clusterType", names.version_field, "variant"),
        checker=each_alone(partial(rules.check_cluster, names.version_field)),
        undeletable="without it each ADD and DEL fails; `svcctl clusterinfo lock` stops them for a migration",
    )


def _profile(names: Names) -> Kind:
    """Return the kind of policy profiles."""
    return Kind(
        "Profile",
        "profile",
        PLURALS["Profile"],
        words=("prof",),
        storage=ResourceStorage("Profile"),
        columns=(NAME, count("INGRESS", "ingress"), count("EGRESS", "egress"), count("LABELS", "labelsToApply")),
        own=frozenset(rules.PROFILE_FIELDS),
        texts=("labelsToApply.*",),
        checker=each_alone(partial(rules.check_profile, names.default_allow_profile)),
        absent_in={"orch": _OF_KUBERNETES},
    )
