"""Workload endpoints: their content, their names, and the names of host interfaces."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from svc._core.cidr import Address, Cidr
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.names import Names
from svc.values import dataclass, field, fields

try:
    from _sha1 import sha1  # type: ignore[import-not-found]  # `hashlib` loads OpenSSL: 2 ms and 3 MiB
except ImportError:  # another Python
    from hashlib import sha1

KIND = "WorkloadEndpoint"
DEFAULT_NAMESPACE = "default"
PRIMARY_INTERFACE = "eth0"
_SUFFIX = 11  # characters after the prefix of a host interface


@dataclass(frozen=True, slots=True)
class Workload:
    """The owner of an interface: a pod if both of its names are known, else a bare container, which may have a namespace."""

    container_id: str
    pod: str = ""
    namespace: str = ""

    @property
    def is_pod(self) -> bool:
        return bool(self.pod and self.namespace)

    @property
    def endpoint_namespace(self) -> str:
        return self.namespace or DEFAULT_NAMESPACE

    def orchestrator(self, names: Names) -> str:
        return names.orchestrator if self.is_pod else "cni"


@dataclass(frozen=True, slots=True)
class PodFacts:
    """Properties of a pod that its endpoint gives to policy. `floating` are further addresses that lead to the pod."""

    labels: dict[str, str] = field(default_factory=dict)
    generate_name: str = ""
    service_account: str = ""
    ports: list[dict[str, Any]] = field(default_factory=list)
    profiles: list[str] = field(default_factory=list)
    floating: Sequence[Address] = ()
    source_prefixes: Sequence[str] = ()
    qos: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        members = {each.name: getattr(self, each.name) for each in fields(self)}
        floating = [str(address) for address in self.floating]
        return members | {"floating": floating, "source_prefixes": list(self.source_prefixes), "qos": dict(self.qos)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> "PodFacts":
        """Return the inverse of `to_json`."""
        return PodFacts(**data | {"floating": [Address(text) for text in data["floating"]]})


def endpoint_key(names: Names, node: str, workload: Workload, ifname: str) -> ResourceKey:
    """Return the key of an endpoint, NODE-ORCHESTRATOR-WORKLOAD-INTERFACE. A dash inside a segment is doubled."""
    segments = (node, workload.orchestrator(names), workload.pod if workload.is_pod else workload.container_id, ifname)
    name = "-".join(segment.replace("-", "--") for segment in segments)
    return ResourceKey(KIND, name, workload.endpoint_namespace)


def has_endpoint(names: Names, workload: Workload, ifname: str) -> bool:
    """Return True if the interface has an endpoint. Some policy agents support only the first interface of a pod."""
    return names.endpoint_per_interface or not workload.is_pod or ifname == PRIMARY_INTERFACE


def ip_nats(floating: Iterable[Address], networks: Iterable[str], ifname: str) -> list[dict[str, str]]:
    """Map the floating addresses of the first interface to its addresses. Drop duplicates and other IP versions."""
    if ifname != PRIMARY_INTERFACE:
        return []
    inside: dict[int, str] = {}
    for cidr in map(Cidr, networks):
        if cidr.length == cidr.bits:
            inside.setdefault(cidr.version, str(cidr.first))
    pairs = ((inside.get(address.version), str(address)) for address in dict.fromkeys(floating))
    return [{"internalIP": internal, "externalIP": external} for internal, external in pairs if internal]


def host_interface(names: Names, workload: Workload, ifname: str) -> str:
    """Return the name of a host interface: the prefix and 11 hex digits of a hash.

    The name of a pod's first interface depends on the pod only, so it can be computed from the pod. If the names profile says
    so, the name of a bare container's first interface ends in the start of the container ID instead.
    """
    if names.container_id_interfaces and not workload.is_pod and ifname == PRIMARY_INTERFACE:
        return names.interface_prefix + workload.container_id[:_SUFFIX]
    owner = f"{workload.namespace}.{workload.pod}" if workload.is_pod else workload.container_id
    if not (workload.is_pod and ifname == PRIMARY_INTERFACE):
        owner += f".{ifname}"
    digest: str = sha1(owner.encode(), usedforsecurity=False).hexdigest()
    return names.interface_prefix + digest[:_SUFFIX]


def endpoint_labels(names: Names, workload: Workload, facts: PodFacts) -> dict[str, str]:
    """Return the labels of an endpoint: those of its owner, and two fixed ones."""
    fixed = {
        f"{names.label_prefix}/namespace": workload.endpoint_namespace,
        f"{names.label_prefix}/orchestrator": workload.orchestrator(names),
    }
    return dict(sorted((facts.labels | fixed).items()))


def endpoint(
    names: Names, key: ResourceKey, node: str, workload: Workload, ifname: str, *, spec: dict[str, Any], facts: PodFacts
) -> Resource:
    """Return the endpoint without UID and creation time. `spec` has ipNetworks, interfaceName and mac."""
    orchestrator = workload.orchestrator(names)
    members: dict[str, Any] = {
        "orchestrator": orchestrator,
        "node": node,
        "containerID": workload.container_id,
        "pod": workload.pod if workload.is_pod else "",
        "endpoint": ifname,
        "serviceAccountName": facts.service_account,
        "ipNetworks": spec["ipNetworks"],
        "ipNATs": ip_nats(facts.floating, spec["ipNetworks"], ifname),
        "profiles": facts.profiles,
        "interfaceName": spec["interfaceName"],
        "mac": spec["mac"],
        "ports": facts.ports,
        "allowSpoofedSourcePrefixes": list(facts.source_prefixes),
        "qosControls": dict(facts.qos),
    }
    metadata = {
        "name": key.name,
        "generateName": facts.generate_name,
        "namespace": key.namespace,
        "labels": endpoint_labels(names, workload, facts),
    }
    return Resource(KIND, metadata, {name: value for name, value in members.items() if value})
