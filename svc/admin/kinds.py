"""The table of all kinds that svcctl shows and changes.

To add a kind, add an entry here, and the plural of its keys to `svc.model.keys`. Entries that depend on the names profile are
functions of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from svc.admin import columns, controllers_configuration, pools, resources, rules
from svc.admin.changes import Options, applied, apply
from svc.admin.columns import NAME, computed, count, field, switch
from svc.admin.ipam_storage import SETTINGS, IpamStorage, SettingsStorage, completed_settings
from svc.admin.kind import Check as ObjectCheck
from svc.admin.kind import Checker, Kind, ResourceStorage
from svc.admin.resources import CIDRS, CLUSTER, NODE, NOUNS, POOL
from svc.datastore.api import Backend
from svc.ipam.pools import RESERVATION, read_pools, read_reserved
from svc.model import controllers_configuration as controllers
from svc.model import endpoint
from svc.model.custom_resources import AFFINITY, BLOCK, CONFIG, CONFIG_NAME, HANDLE, kind_plural
from svc.model.errors import CallerError, Code
from svc.model.keys import PLURALS, VIRTUAL, AffinityQuery, BlockQuery, HandleQuery
from svc.model.pool import FIELD_NAMES as POOL_FIELDS
from svc.model.pool import TEXT_FIELDS, with_defaults
from svc.model.resource import Resource
from svc.names import Names

_IPAM: Final = "address management writes it; `svcctl ipam show` shows the use of addresses"
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


def _each(check: ObjectCheck) -> Checker:
    """Return the checker for objects that do not depend on each other."""
    return lambda _backend, _resources: check


def _blocks_of_handle(resource: Resource) -> list[str]:
    return [f"{cidr} ({number})" for cidr, number in sorted(resource.spec["block"].items())]


def _used(resource: Resource) -> int:
    return sum(each is not None for each in resource.spec["allocations"])


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
    checker=_each(resources.check_reservation),
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
    checker=_each(rules.check_node),
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
    checker=_each(rules.check_host_endpoint),
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
_NETWORK_POLICIES: Final = Kind(
    "NetworkPolicy",
    "network policy",
    PLURALS["NetworkPolicy"],
    words=("netpol", "np"),
    storage=ResourceStorage("NetworkPolicy"),
    columns=(
        NAME,
        field("TIER", "tier"),
        field("ORDER", "order"),
        field("TYPES", "types"),
        count("INGRESS", "ingress"),
        count("EGRESS", "egress"),
    ),
    wide=(field("SELECTOR", "selector"),),
    read_only="the controllers copy it from Kubernetes: change the NetworkPolicy there",
    absent_in={"orch": "policy agents read those of Kubernetes: use kubectl get networkpolicies"},
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
_WITH_ANY_NAMES: Final = (POOLS, RESERVATIONS, NODES, _HOST_ENDPOINTS, _WORKLOAD_ENDPOINTS, _NETWORK_POLICIES, _CONTROLLERS)


def _with_names(names: Names) -> tuple[Kind, ...]:
    """Return the kinds whose fields, documents or rules depend on the names."""
    return (_settings(names), _cluster(names), _profile(names), _block(names), _affinity(names), _handle(names))


def _settings(names: Names) -> Kind:
    """Return the kind of the IPAM settings."""
    return Kind(
        SETTINGS,
        "IPAM configuration",
        kind_plural(SETTINGS),
        words=("settings", *(word for word in (CONFIG[True].lower(), kind_plural(CONFIG[True])))),
        aliases=(CONFIG[True],),
        singleton=CONFIG_NAME,
        has_labels=False,
        storage=SettingsStorage(names),
        columns=(
            NAME,
            switch("STRICT AFFINITY", "strictAffinity"),
            switch("AUTO ALLOCATE", "autoAllocateBlocks"),
            field("MAX BLOCKS", "maxBlocksPerHost"),
            field("COOLDOWN", "ipCooldownSeconds"),
            field("VM PERSISTENCE", "kubeVirtVMAddressPersistence"),
        ),
        own=frozenset(rules.SETTINGS),
        texts=("kubeVirtVMAddressPersistence",),
        checker=_each(rules.check_settings_document),
        complete=completed_settings,
    )


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
        checker=_each(partial(rules.check_cluster, names.version_field)),
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
        checker=_each(partial(rules.check_profile, names.default_allow_profile)),
        absent_in={"orch": _OF_KUBERNETES},
    )


def _block(names: Names) -> Kind:
    """Return the kind of blocks."""
    return Kind(
        BLOCK,
        "IPAM block",
        kind_plural(BLOCK),
        words=("block", "blocks"),
        storage=IpamStorage(names, (BlockQuery(),)),
        columns=(
            NAME,
            field("CIDR", "cidr"),
            field("AFFINITY", "affinity"),
            computed("ASSIGNED", _used),
            computed("FREE", lambda block: len(block.spec["unallocated"])),
        ),
        wide=(field("CLAIMED", "affinityClaimTime"), field("SEQUENCE", "sequenceNumber")),
        has_labels=False,
        read_only=_IPAM,
    )


def _affinity(names: Names) -> Kind:
    """Return the kind of affinities."""
    return Kind(
        AFFINITY,
        "block affinity",
        kind_plural(AFFINITY),
        words=("affinity", "affinities"),
        storage=IpamStorage(names, (AffinityQuery(), AffinityQuery(kind=VIRTUAL))),
        columns=(NAME, field("CIDR", "cidr"), field("NODE", "node"), field("TYPE", "type"), field("STATE", "state")),
        read_only=_IPAM,
    )


def _handle(names: Names) -> Kind:
    """Return the kind of handles."""
    return Kind(
        HANDLE,
        "IPAM handle",
        kind_plural(HANDLE),
        words=("handle", "handles"),
        storage=IpamStorage(names, (HandleQuery(),)),
        columns=(
            NAME,
            computed("ADDRESSES", lambda handle: sum(handle.spec["block"].values())),
            computed("BLOCKS", _blocks_of_handle),
        ),
        wide=(field("HANDLE", "handleID"),),
        has_labels=False,
        read_only=_IPAM,
    )
