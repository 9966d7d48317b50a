"""Host endpoints, nodes and the configuration of the controllers, as the Kubernetes API has them."""

from typing import Any, Final

from svc.datastore.orch.nodes import node_resource
from svc.model import controllers_configuration
from svc.model.custom_resources import CustomResourceCodec
from svc.model.host_endpoint import KIND, endpoint_name
from svc.model.object_metadata import ApiGroup
from svc.model.resource import Resource
from svc.upgrade.host_endpoint_rules import Findings, examine, former_endpoints, why_not_replaced
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place
from svc.upgrade.writer import Cluster
from svc.values import dataclass

Json = dict[str, Any]

TEMPORARY_POLICY: Final = "allow-all-upgrade"
TEMPORARY_POLICIES: Final = (TEMPORARY_POLICY, f"default.{TEMPORARY_POLICY}")
"""Names of the policy: behind the API, a policy begins with its tier."""

_POLICY_KIND: Final = "GlobalNetworkPolicy"


@dataclass(frozen=True, slots=True)
class Successor:
    """The automatic host endpoint of the node of a former one, as it is stored. The reason is why it cannot stand in yet."""

    document: Json | None
    reason: str


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
            reason = why_not_replaced(each, endpoints, nodes.get(host), names)
            found[each.name] = Successor(documents.get(endpoint_name([host])), reason)
        return found

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
