"""The documents of a manifest, in the order in which they are applied, and what they bring to each other."""

from collections.abc import Sequence
from typing import Any, Final

from svc.deploy.server_apply import DEFINITION, NAMESPACE, describe, in_order
from svc.model.errors import CallerError
from svc.names import Names
from svc.upgrade.places import Place, place_of

Json = dict[str, Any]

WORKLOADS: Final = ("DaemonSet", "Deployment")
_LAST: Final = {kind: order for order, kind in enumerate(WORKLOADS, 1)}


class Bundle:
    """Documents with different places. Raise CallerError if one has no place, or if two have the same.

    `published` are those of the former manifest, if the user gives it as it was published."""

    def __init__(self, documents: Sequence[Json], published: Sequence[Json] = ()) -> None:
        for document in (*documents, *published):
            _require_place(document)
            _require_parts(document)
        self.documents = sorted(in_order(documents), key=lambda each: _LAST.get(each["kind"], 0))
        self._by_place = {place_of(each): each for each in self.documents}
        if len(self._by_place) < len(documents):
            raise CallerError("the manifest has an object twice", details="leave one of them out")
        self.namespaces = frozenset(place.name for place in self._by_place if place.kind == NAMESPACE)
        self._published = {_object_of(place_of(each)): each for each in published}
        self._kinds = frozenset(kind for each in documents if each["kind"] == DEFINITION for kind in kinds_of(each))

    def brings(self, place: Place) -> bool:
        """Return whether a definition of the bundle has this kind."""
        return (place.api_version, place.kind) in self._kinds

    def published(self, place: Place) -> Json | None:
        """Return the document of an object in the former manifest, in whichever version of its kind."""
        return self._published.get(_object_of(place))

    def of_kind(self, kind: str) -> list[Json]:
        """Return the documents of a kind."""
        return [each for each in self.documents if each["kind"] == kind]

    def agent(self, names: Names) -> Json | None:
        """Return the DaemonSet of the node agent."""
        known = agent_names(names)
        return next((each for each in self.of_kind(WORKLOADS[0]) if each["metadata"]["name"] in known), None)


def _object_of(place: Place) -> tuple[str, str, str]:
    return place.kind, place.namespace, place.name


def agent_names(names: Names) -> tuple[str, ...]:
    """Return the names that the DaemonSet of the node agent may have."""
    return tuple(dict.fromkeys((names.daemon_set, names.node_agent, names.overlay_agent)))


def kinds_of(definition: Json) -> list[tuple[str, str]]:
    """Return the kinds that a definition brings, by API version and kind."""
    spec = definition["spec"]
    return [(f"{spec['group']}/{each['name']}", spec["names"]["kind"]) for each in spec["versions"] if each["served"]]


def container_of(workload: Json) -> Json:
    """Return the container with the program: the one of the same name as the workload, `agent`, or the first."""
    containers: list[Json] = workload["spec"]["template"]["spec"]["containers"]
    wanted = (workload["metadata"]["name"], "agent")
    return next((each for name in wanted for each in containers if each["name"] == name), containers[0])


def version_of(image: str) -> str:
    """Return the tag of an image; empty if it has none."""
    name = image.partition("@")[0].rpartition("/")[2]
    return name.partition(":")[2]


def _require_parts(document: Json) -> None:
    """Raise CallerError if a document lacks what is read of its kind before the server checks it."""
    try:
        if document["kind"] in WORKLOADS:
            _read_workload(document)
        elif document["kind"] == DEFINITION:
            kinds_of(document)
    except KeyError as error:
        raise CallerError(f"{describe(document)}: {error.args[0]} is missing", details="complete the manifest") from error
    except (AttributeError, IndexError, TypeError) as error:
        raise CallerError(f"{describe(document)}: {error}", details="a field is empty, or has another type") from error


def _read_workload(document: Json) -> None:
    pod, _ = document["spec"]["template"]["spec"], container_of(document)["image"]
    for container in (*(pod.get("initContainers") or ()), *pod["containers"]):
        for named in (container, *(container.get("env") or ())):
            _ = named["name"]
    for volume in pod.get("volumes") or ():
        _ = volume["name"]


def _require_place(document: Json) -> None:
    metadata = document.get("metadata") or {}
    found = {"apiVersion": document.get("apiVersion"), "kind": document.get("kind"), "metadata.name": metadata.get("name")}
    for field, value in found.items():
        if not isinstance(value, str) or not value:
            raise CallerError(f"{describe(document)}: {field} is {value!r}", details="every object of a manifest needs it")
