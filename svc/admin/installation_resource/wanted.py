"""What a cluster must have because of an Installation, worked out without I/O.

The network list is in a ConfigMap. Pools are objects of the datastore. Variables are those of the translation table in
`docs/installation.md`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import yaml

from svc._core.cidr import Cidr
from svc.admin.field_rules import Found
from svc.admin.installation_resource import rules
from svc.admin.installation_resource.network import default_entry, network_list
from svc.admin.operator_resource import Listing, OperatorSettings, is_managed, listing_of, settings_of
from svc.model import installation as shape
from svc.model.resource import Resource
from svc.names import Names
from svc.orch.pod_cidrs import VARIABLE as POD_CIDR
from svc.values import dataclass

Json = dict[str, Any]
Variables = Mapping[str, Json]
"""The entries of an environment, by their names."""

NAMESPACE: Final = "kube-system"
CONFIG_MAP, CONFIG_KEY = "cni-config", "config"
DAEMON_SET, DEPLOYMENT = "DaemonSet", "Deployment"
STATUS_DIRECTORY: Final = "endpoint-status"  # under the run directory
_TRUE: Final = "true"
_DIGITS: Final = 16  # of the digest of the network list


@dataclass(frozen=True, slots=True)
class Workload:
    """The variables of the containers of a workload in a namespace. `is_own` is true for those of svc.

    `annotations` are those of its pods: a change of one starts the pods again."""

    kind: str
    name: str
    variables: Variables
    annotations: Mapping[str, str]
    is_own: bool
    namespace: str = NAMESPACE


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted state. `computed` is the spec with every default. `listing` are the pools to make."""

    computed: Json
    listing: Listing
    network: str
    workloads: tuple[Workload, ...]


def subnets_of(config_map: Json | None) -> list[Cidr]:
    """Return the pod subnets that the ConfigMap of kubeadm gives; none if it has none that can be read."""
    text = ((config_map or {}).get("data") or {}).get("ClusterConfiguration")
    try:
        found = yaml.safe_load(text or "")
        given = ((found or {}).get("networking") or {}).get("podSubnet") or ""
        return [Cidr(each.strip()) for each in str(given).split(",") if each.strip()]
    except (yaml.YAMLError, AttributeError, ValueError):
        return []


def subnet_errors(spec: Json, subnets: Sequence[Cidr], names: Names) -> Found:
    """Yield the listed pools of a valid spec that are outside of the pod subnets."""
    listed = (spec.get(names.operator_network) or {}).get("ipPools") or ()
    return rules.check_subnets((Cidr(each["cidr"]) for each in listed), subnets, f"spec.{names.operator_network}.ipPools")


def listing(spec: Json, subnets: Sequence[Cidr], names: Names) -> Listing:
    """Return the pools of a valid spec. Without a list, the pod subnets are those to make, else the default range."""
    return listing_of(spec, names, [str(subnet) for subnet in subnets] or [shape.DEFAULT_CIDR])


def wanted(
    spec: Json,
    listed: Listing,
    named: Sequence[Resource],
    present: Iterable[Resource],
    datastore: Mapping[str, str],
    names: Names,
    namespace: str = NAMESPACE,
) -> Wanted:
    """Return what follows from a valid spec.

    `named` are the listed pools with their names, `present` those of the datastore. `datastore` are its settings.
    `namespace` has the workloads of svc."""
    present = list(present)
    is_kept = not listed.is_given and bool(present)
    mine = [pool for pool in present if is_managed(pool, names)] if is_kept else list(named)
    computed = shape.completed(spec, mine, names)
    network = _network(computed, _settings(computed, present if is_kept else named, names), datastore, names)
    return Wanted(computed, listed, network, _workloads(computed, network, names, namespace))


def _settings(computed: Json, pools: Iterable[Resource], names: Names) -> OperatorSettings:
    """Return the settings of a complete spec, with the families of the pools that nodes will find."""
    found = settings_of(computed, names)
    families = frozenset(int(cidr.version) for pool in pools if (cidr := _cidr(pool)))
    return OperatorSettings(families, found.policy_seconds, host_local=found.host_local)


def _cidr(pool: Resource) -> Cidr | None:
    try:
        return Cidr(str(pool.spec.get("cidr")))
    except ValueError:
        return None


def _network(computed: Json, settings: OperatorSettings, datastore: Mapping[str, str], names: Names) -> str:
    """Return the network list as a file has it."""
    entry = default_entry(names, computed["cni"]["confDir"]) | {"endpoint_status_dir": f"{names.run_dir}/{STATUS_DIRECTORY}"}
    if datastore["kind"] == "etcdv3":
        entry |= {"datastore_type": "etcdv3"} | {name: text for name, text in datastore.items() if name.startswith("etcd_")}
    if computed[shape.PROVIDER] == shape.WITHOUT_NODE_FILE:
        entry["nodename_file_optional"] = True
    document = network_list(computed, settings.applied(entry), names, names.operator_network)
    return json.dumps(document, indent=2) + "\n"


def _workloads(computed: Json, network: str, names: Names, namespace: str) -> tuple[Workload, ...]:
    """Return the workloads whose environment the resource determines: two of svc, and two of other programs."""
    is_host_local = computed["cni"]["ipam"]["type"] == shape.HOST_LOCAL
    pod_cidr = {POD_CIDR: {"value": _TRUE}} if is_host_local else {}
    marked = dict([mark_of(network, names)])
    variables = _node_variables(computed, names) | pod_cidr
    return (
        Workload(DAEMON_SET, names.daemon_set, variables, marked, is_own=True, namespace=namespace),
        Workload(DEPLOYMENT, names.controllers, pod_cidr, {}, is_own=True, namespace=namespace),
        Workload(DAEMON_SET, names.node_agent, pod_cidr, {}, is_own=False),
        Workload(DEPLOYMENT, names.data_path_proxy, pod_cidr, {}, is_own=False),
    )


def mark_of(network: str, names: Names) -> tuple[str, str]:
    """Return the annotation by which pods start again when the network list changes."""
    return f"{names.label_prefix}/{CONFIG_MAP}", hashlib.sha256(network.encode()).hexdigest()[:_DIGITS]


def _node_variables(computed: Json, names: Names) -> dict[str, Json]:
    """Return the variables of svc on nodes that do not depend on the IPAM."""
    has_bgp = computed[names.operator_network]["bgp"] == shape.ENABLED
    cluster_type = [names.orchestrator, "operator", *(["bgp"] if has_bgp else [])]
    return {
        "CLUSTER_TYPE": {"value": ",".join(cluster_type)},
        "CNI_CONF_NAME": {"value": names.conflist},
        "CNI_NET_DIR": {"value": computed["cni"]["confDir"]},
        "CNI_NETWORK_CONFIG": {"valueFrom": {"configMapKeyRef": {"name": CONFIG_MAP, "key": CONFIG_KEY}}},
        "NO_DEFAULT_POOLS": {"value": _TRUE},
    }
