"""Host endpoints, nodes and the configuration of the controllers, as the Kubernetes API has them."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from svc.datastore.orch.nodes import node_resource
from svc.model import controllers_configuration
from svc.model.controllers_configuration import ENABLED
from svc.model.custom_resources import CustomResourceCodec
from svc.model.host_endpoint import KIND, endpoint_name
from svc.model.object_metadata import ApiGroup
from svc.model.resource import Resource
from svc.upgrade.host_endpoint_rules import Findings, examine, former_endpoints, why_not_covered, why_not_replaced
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place
from svc.upgrade.writer import Cluster
from svc.values import dataclass

Json = dict[str, Any]

TEMPORARY_POLICY: Final = "allow-all-upgrade"
TEMPORARY_POLICIES: Final = (TEMPORARY_POLICY, f"default.{TEMPORARY_POLICY}")
"""Names of the policy: behind the API, a policy begins with its tier."""

_POLICY_KIND: Final = "GlobalNetworkPolicy"


_SECTION: Final = ("controllers", "node", "hostEndpoint")
SWITCH: Final = (*_SECTION, "autoCreate")
DEFAULT_ENDPOINT: Final = (*_SECTION, "createDefaultHostEndpoint")
"""Paths of fields in the configuration of the controllers."""


@dataclass(frozen=True, slots=True)
class Successor:
    """The automatic host endpoint of the node of a former one, as it is stored. The reason is why it cannot stand in yet."""

    document: Json | None
    reason: str


def setting_at(of: Any, path: Sequence[str]) -> str | None:
    """Return the value of a field of the configuration of the controllers; None without one."""
    for name in path:
        of = of.get(name) if isinstance(of, dict) else None
    return None if of is None else str(of)


def _why_ending(document: Json | None) -> str:
    """Return that a host endpoint is being deleted; empty if it is not, or does not exist."""
    metadata = (document or {}).get("metadata") or {}
    return f"host endpoint {metadata['name']!r} is being deleted" if metadata.get("deletionTimestamp") else ""


class HostEndpointView:
    """Reads of one cluster. Each method reads it again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        names = cluster.names
        self.versions = (names.crd_api_version, names.api_version)
        """API versions that may have the resources: that behind the API first, as the datastore chooses."""

    @property
    def is_served(self) -> bool:
        """Whether the API server has host endpoints."""
        return self._place(KIND) is not None

    @property
    def is_configurable(self) -> bool:
        """Whether the API server has the configuration of the controllers."""
        return self.configuration is not None

    @property
    def configuration(self) -> Place | None:
        """The place of the configuration of the controllers; None if its kind is not served."""
        return self._place(controllers_configuration.KIND, "default")

    def findings(self) -> Findings:
        """Return what has to be done, and what forbids it."""
        keeps = self._has_temporary_policy()
        return examine(self._resources().values(), self._nodes().values(), self._cluster.names, keeps_temporary=keeps)

    def former(self) -> dict[str, Json]:
        """Return the former host endpoints as they are stored, by name."""
        documents = self._documents()
        found = former_endpoints(self._decoded(documents).values(), self._cluster.names)
        return {each.name: documents[each.name] for each in found}

    def successors(self) -> dict[str, Successor]:
        """Return the automatic host endpoint that stands in for a former one, by name of the former one."""
        documents, nodes = self._documents(), self._nodes()
        endpoints, names = self._decoded(documents), self._cluster.names
        found = {}
        for each in former_endpoints(endpoints.values(), names):
            host = str(each.spec.get("node") or "")
            document = documents.get(endpoint_name([host]))
            reason = _why_ending(document) or why_not_replaced(each, endpoints, nodes.get(host), names)
            found[each.name] = Successor(document, reason)
        return found

    def uncovered(self, hosts: Iterable[str] | None = None) -> dict[str, str]:
        """Return why a node has no host endpoint for all interfaces, by name, for those of the nodes, or all, that exist."""
        documents, nodes, names = self._documents(), self._nodes(), self._cluster.names
        endpoints = self._decoded(documents)
        former = {str(each.spec.get("node") or "") for each in former_endpoints(endpoints.values(), names)}
        found = {}
        for host in sorted((nodes.keys() if hosts is None else {*hosts} & nodes.keys()) - former):
            ending = _why_ending(documents.get(endpoint_name([host])))
            if reason := ending or why_not_covered(host, endpoints, names):
                found[host] = reason
        return found

    def why_not_followed(self) -> str:
        """Return why the controllers do not create host endpoints for all interfaces; empty if they do."""
        place = self.configuration
        live = self._cluster.find(place) if place is not None else None
        running = ((live or {}).get("status") or {}).get("runningConfig")
        for part, of in (("spec", (live or {}).get("spec")), ("status.runningConfig", running)):
            for name in (SWITCH, DEFAULT_ENDPOINT):
                if (value := setting_at(of, name)) != ENABLED and not (name is DEFAULT_ENDPOINT and value is None):
                    return f"{part}.{'.'.join(name)} of {controllers_configuration.KIND}/default is {value}, not {ENABLED}"
        return ""

    def _documents(self) -> dict[str, Json]:
        place = self._place(KIND)
        if place is None:
            return {}
        head = {"apiVersion": place.api_version, "kind": KIND}
        return {each["metadata"]["name"]: head | each for each in self._cluster.items(self._cluster.path(place))}

    def _decoded(self, documents: dict[str, Json]) -> dict[str, Resource]:
        found = {}
        for name, each in documents.items():
            codec = CustomResourceCodec(ApiGroup(self._cluster.names, each["apiVersion"]))
            try:
                value = codec.decode(KIND, each)[1]
            except ValueError as error:
                raise Blocked([f"host endpoint {name} cannot be read: {error}"], details="correct it, or delete it") from None
            assert isinstance(value, Resource)  # of this kind
            found[name] = value
        return found

    def _resources(self) -> dict[str, Resource]:
        return self._decoded(self._documents())

    def _nodes(self) -> dict[str, Resource]:
        listed = self._cluster.items("/api/v1/nodes")
        return {each["metadata"]["name"]: node_resource(self._cluster.names, each) for each in listed}

    def _has_temporary_policy(self) -> bool:
        places = (Place(version, _POLICY_KIND, "", name) for version in self.versions for name in TEMPORARY_POLICIES)
        return any(self._cluster.find(place) for place in places if self._cluster.served(place))

    def _place(self, kind: str, name: str = "") -> Place | None:
        places = (Place(version, kind, "", name) for version in self.versions)
        return next((place for place in places if self._cluster.served(place)), None)
