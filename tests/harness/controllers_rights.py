"""The rights of svc-controllers in the Kubernetes API: those in its documentation, and those that a process uses."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from harness.api_proxy import ApiProxy, Order
from harness.kube import Kube
from harness.orch import RBAC
from svc.datastore.orch.leases import NAMESPACE

USER = "plugin"

_DOCUMENT = Path(__file__).parents[2] / "docs" / "controllers.md"
_HEADINGS = ("### In the Kubernetes API", "### In the API group of the datastore")
_IN_ONE_NAMESPACE = ("leases", "configmaps", "daemonsets", "deployments")
_METHODS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_PATH = re.compile(r"/api(?:s/(?P<group>[^/]+))?/v\w+/(?:namespaces/(?P<space>[^/]+)/)?(?P<rest>[^?]+)")


class Right(NamedTuple):
    """A verb for the objects of a resource, in one namespace if it is named."""

    group: str
    resource: str
    verb: str
    namespace: str = ""


def documented(controllers: Collection[str], datastore_group: str = "") -> set[Right]:
    """Return the documented rights of these controllers, with the group if the Kubernetes API is the datastore."""
    common, stored = (_rows(heading) for heading in _HEADINGS)
    found = [(group.strip("`").replace("core", ""), *rest) for group, *rest in common]
    found += [(datastore_group, *rest[:3]) for rest in stored] if datastore_group else []
    return {
        Right(group, resource, verb, NAMESPACE if resource in _IN_ONE_NAMESPACE else "")
        for group, objects, verbs, needed in found
        if _is_needed(needed, controllers, datastore_group)
        for resource in _words(objects.partition(", in ")[0])
        for verb in _words(verbs)
    }


@contextmanager
def granted(kube: Kube, rights: Collection[Right]) -> Iterator[None]:
    """Give the user these rights, and no others, inside the block."""
    user = {"kind": "User", "name": USER, "apiGroup": RBAC}
    for namespace in {each.namespace for each in rights}:
        kind, place = ("Role", f"namespaces/{namespace}/") if namespace else ("ClusterRole", "")
        rules = [
            {"apiGroups": [each.group], "resources": [each.resource], "verbs": [each.verb]}
            for each in sorted(rights)
            if each.namespace == namespace
        ]
        path, metadata = f"/apis/{RBAC}/v1/{place}{kind.lower()}", {"name": "c-documented"}
        kube.call("POST", f"{path}s", {"metadata": metadata, "rules": rules})
        role = {"kind": kind, "name": "c-documented", "apiGroup": RBAC}
        kube.call("POST", f"{path}bindings", {"metadata": metadata, "roleRef": role, "subjects": [user]})
    try:
        for each in rights:
            kube.await_right(USER, each.group, each.resource, each.verb, allowed=True, namespace=each.namespace)
        yield
    finally:
        kube.forget("roles/kube-system/c-", "rolebindings/kube-system/c-", "clusterroles/c-", "clusterrolebindings/c-")


class RightsProxy(ApiProxy):
    """An API proxy that notes which rights are used."""

    def __init__(self, kube: Kube) -> None:
        super().__init__(kube)
        self._kube = kube
        self.used: set[Right] = set()

    def __enter__(self) -> "RightsProxy":
        super().__enter__()
        return self

    def note(self, method: str, path: str) -> Order | None:
        if right := used_right(method, path):
            self.used.add(right)
        return super().note(method, path)

    def kubeconfig(self, file: Path) -> Path:
        """Write the access of the user through this proxy."""
        file.write_text(self._kube.kubeconfig(file, f"token-of-{USER}").read_text().replace(self._kube.url, self.url))
        return file


def used_right(method: str, path: str) -> Right | None:
    """Return the right that a request uses; None for the list of API groups."""
    found = _PATH.match(path)
    if found is None:
        return None
    group, space, parts = found["group"] or "", found["space"] or "", found["rest"].split("/")
    if space and parts == [""]:
        space, parts = "", ["namespaces", space]
    resource = "/".join((parts[0], *parts[2:]))
    verb = _METHODS.get(method) or ("get" if len(parts) > 1 else "watch" if "watch=true" in path else "list")
    return Right(group, resource, verb, space if resource in _IN_ONE_NAMESPACE else "")


def _rows(heading: str) -> list[list[str]]:
    """Return the cells of the table that follows a heading."""
    _, _, section = _DOCUMENT.read_text().partition(f"{heading}\n")
    lines = [line for line in section.partition("\n#")[0].splitlines() if line.startswith("| ") and "`" in line]
    assert lines, heading
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def _is_needed(needed: str, controllers: Collection[str], datastore_group: str) -> bool:
    """Return whether the last column of a row names one of the controllers, and the datastore if it names one."""
    names, _, place = re.sub(", (with|without|in) ", r"|\1 ", needed).partition("|")
    here = {"": True, "with etcd": not datastore_group, "without etcd": bool(datastore_group)}
    if not here.get(place, place == f"in `{datastore_group}`"):
        return False
    return names == "all" or not _words(names).isdisjoint(controllers)


def _words(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))
