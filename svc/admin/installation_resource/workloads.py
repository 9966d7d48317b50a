"""The environment of workloads, written by server-side apply under a field manager of its own.

The manager owns the variables that the Installation asks for, and nothing else. A variable that it no longer applies is
removed, unless another manager has it too. Workloads of other programs are never forced: what they set themselves stays.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from svc.admin.installation_resource.wanted import DAEMON_SET, NAMESPACE, Workload
from svc.names import Names
from svc.values import dataclass

Json = dict[str, Any]
Place = tuple[str, ...]
"""What the manager owns: an annotation of the pods, or a list of containers, a container and a variable."""

API_VERSION: Final = "apps/v1"
APPLY_PATCH: Final = "application/apply-patch+yaml"
_ANNOTATIONS: Final = "annotations"
_CONTAINERS: Final = ("containers", "initContainers")


@dataclass(frozen=True, slots=True)
class Patch:
    """A server-side apply of a workload. `changes` are its variables with their entries before and after."""

    workload: Workload
    body: Json
    changes: tuple[tuple[str, Any, Any], ...]


def manager_of(names: Names) -> str:
    """Return the field manager."""
    return f"{names.plugin}-installation"


def path_of(kind: str, name: str = "", namespace: str = NAMESPACE) -> str:
    """Return the path of a workload; of all in the namespace if the name is empty."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{kind.lower()}s{name and '/'}{name}"


def patch_of(live: Json, workload: Workload, names: Names) -> Patch | None:
    """Return what makes a live workload the wanted one; None if it is that already."""
    wanted = dict(_wanted(live, workload))
    present = dict(_present(live))
    owned = set(_owned(live, manager_of(names)))
    if owned == wanted.keys() and all(present.get(place) == value for place, value in wanted.items()):
        return None
    changes = [
        ("/".join(place), present.get(place), wanted.get(place))
        for place in sorted(owned | wanted.keys())
        if present.get(place) != wanted.get(place)
    ]
    return Patch(workload, _body(workload, wanted), tuple(changes))


def progress_of(live: Json) -> str:
    """Return what is not yet done of the rollout of a workload; empty if it is complete."""
    status, spec = live.get("status") or {}, live["spec"]
    if status.get("observedGeneration", 0) < live["metadata"].get("generation", 0):
        return "its controller has not seen the latest change"
    if live["kind"] == DAEMON_SET:
        wanted, updated = status.get("desiredNumberScheduled", 0), status.get("updatedNumberScheduled", 0)
        available = status.get("numberAvailable", 0)
    else:
        wanted, updated = spec.get("replicas", 1), status.get("updatedReplicas", 0)
        available = min(status.get("availableReplicas", 0), updated)
    if min(updated, available) < wanted:
        return f"{updated} of {wanted} pods are updated, {available} available"
    return ""


def _wanted(live: Json, workload: Workload) -> Iterator[tuple[Place, Any]]:
    """Yield what the manager must own. Init containers of other programs are left alone."""
    for key, text in workload.annotations.items():
        yield (_ANNOTATIONS, key), text
    spec = live["spec"]["template"]["spec"]
    for section in _CONTAINERS if workload.is_own else _CONTAINERS[:1]:
        for container in spec.get(section) or ():
            yield from (((section, container["name"], key), dict(entry)) for key, entry in workload.variables.items())


def _present(live: Json) -> Iterator[tuple[Place, Any]]:
    template = live["spec"]["template"]
    for key, text in ((template.get("metadata") or {}).get("annotations") or {}).items():
        yield (_ANNOTATIONS, key), text
    for section in _CONTAINERS:
        for container in template["spec"].get(section) or ():
            for entry in container.get("env") or ():
                yield (section, container["name"], entry["name"]), {k: v for k, v in entry.items() if k != "name"}


def _owned(live: Json, manager: str) -> Iterator[Place]:
    """Yield what the manager owns."""
    for entry in live["metadata"].get("managedFields") or ():
        if entry.get("manager") == manager and entry.get("operation") == "Apply":
            template = _at(entry.get("fieldsV1") or {}, "f:spec", "f:template")
            annotations = _at(template, "f:metadata", "f:annotations")
            yield from ((_ANNOTATIONS, key[2:]) for key in annotations if key.startswith("f:"))
            for section in _CONTAINERS:
                for container, fields in _at(template, "f:spec", f"f:{section}").items():
                    for key in _at(fields, "f:env"):
                        if key.startswith("k:"):
                            yield section, _name_in(container), _name_in(key)


def _at(fields: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for each in path:
        fields = fields.get(each) or {}
    return fields


def _name_in(key: str) -> str:
    """Return the name in the key of a list item, such as k:{"name":"agent"}."""
    return str(json.loads(key[2:]).get("name", "")) if key.startswith("k:") else ""


def _body(workload: Workload, wanted: Mapping[Place, Any]) -> Json:
    head = {
        "apiVersion": API_VERSION,
        "kind": workload.kind,
        "metadata": {"name": workload.name, "namespace": workload.namespace},
    }
    environments: dict[str, dict[str, list[Json]]] = {}
    for place, entry in wanted.items():
        if place[0] != _ANNOTATIONS:
            section, container, key = place
            environments.setdefault(section, {}).setdefault(container, []).append({"name": key, **entry})
    template: Json = {}
    if workload.annotations:
        template["metadata"] = {"annotations": dict(workload.annotations)}
    if environments:
        template["spec"] = {
            section: [{"name": name, "env": env} for name, env in containers.items()]
            for section, containers in environments.items()
        }
    return head | ({"spec": {"template": template}} if template else {})
