"""What an ADD learns from the orchestrator."""

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

from svc.values import dataclass

Texts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Namespace:
    """Its labels, and those of its annotations that choose addresses. `unreadable` says why both are empty, if the caller has
    no right to read it."""

    labels: Texts = field(default_factory=dict)
    annotations: Texts = field(default_factory=dict)
    unreadable: str = ""

    @property
    def warning(self) -> str:
        """What to tell the user; empty if the namespace was read."""
        remedy = "grant the verb get on namespaces, as `svcctl crd role` prints it"
        what = "annotations and labels of namespaces do not count"
        return f"{what}: {self.unreadable}: {remedy}" if self.unreadable else ""


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod, where it was asked for, and its namespace. `read_namespace` asks the server for that."""

    pod: dict[str, Any] | None = None
    namespace: Namespace = field(default_factory=Namespace)
    read_namespace: Callable[[], Namespace] = Namespace

    @property
    def annotations(self) -> Texts:
        """The pod's own."""
        return (self.pod or {"metadata": {}})["metadata"].get("annotations") or {}

    def refreshed(self) -> "PodInfo":
        """With the namespace as it is now. SvcError."""
        return replace(self, namespace=self.read_namespace())
