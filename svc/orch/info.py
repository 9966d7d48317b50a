"""What an ADD learns from the orchestrator."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

Texts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Namespace:
    """Its labels, and those of its annotations that choose addresses."""

    labels: Texts = field(default_factory=dict)
    annotations: Texts = field(default_factory=dict)


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
