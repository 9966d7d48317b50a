"""Data of a pod and its namespace that ADD reads from the Kubernetes API."""

from collections.abc import Callable
from typing import Any

from svc.values import dataclass, field, replace

Texts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Namespace:
    """Labels of a namespace, and its annotations that choose addresses; empty if `unreadable` says why it cannot be read."""

    labels: Texts = field(default_factory=dict)
    annotations: Texts = field(default_factory=dict)
    unreadable: str = ""

    @property
    def warning(self) -> str:
        """Return the warning for the user; empty if the namespace was read."""
        remedy = "grant the verb get on namespaces, as `svcctl crd role` prints it"
        what = "annotations and labels of namespaces do not count"
        return f"{what}: {self.unreadable}: {remedy}" if self.unreadable else ""


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod, if requested, and its namespace. `read_namespace` reads the namespace from the API server."""

    pod: dict[str, Any] | None = None
    namespace: Namespace = field(default_factory=Namespace)
    read_namespace: Callable[[], Namespace] = Namespace

    @property
    def annotations(self) -> Texts:
        """Return the annotations of the pod."""
        return (self.pod or {"metadata": {}})["metadata"].get("annotations") or {}

    def refreshed(self) -> "PodInfo":
        """Return a copy with the namespace read again. Raise SvcError."""
        return replace(self, namespace=self.read_namespace())
