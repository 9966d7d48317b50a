"""What an ADD learns from the orchestrator."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod, where it was asked for, and the labels of its namespace. `fresh_labels` reads those from the server."""

    pod: dict[str, Any] | None = None
    namespace_labels: Labels = field(default_factory=dict)
    fresh_labels: Callable[[], Labels] = dict
