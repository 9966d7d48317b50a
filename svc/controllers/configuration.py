"""The settings of the controllers that may change while the program runs."""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from svc.values import dataclass, field

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HostEndpointTemplate:
    """A template of host endpoints, see `svc/controllers/node/host_endpoints.py`. The pattern is a regular expression."""

    name: str
    interface_cidrs: tuple[str, ...] = ()
    interface_pattern: str = ""
    node_selector: str = "all()"
    labels: Labels = field(default_factory=dict)
    annotations: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings in force. Periods are in seconds; 0 means never, except for the rounds. Ports of 0 are not served."""

    log_level: str = "INFO"
    serves_health: bool = True
    compaction_seconds: float = 600.0
    metrics_port: int = 0
    debug_port: int = 0
    periods: Mapping[str, float] = field(default_factory=dict)  # between full rounds, by controller
    syncs_labels: bool = True
    leak_grace_seconds: float = 900.0
    creates_host_endpoints: bool = False
    creates_default_host_endpoint: bool = True
    host_endpoint_templates: tuple[HostEndpointTemplate, ...] = ()
    assigns_all_services: bool = True  # otherwise only services that request addresses

    def round_seconds(self, controller: str) -> float:
        """Return the seconds between full rounds of a controller."""
        return self.periods.get(controller, 300.0)


class Live:
    """The present configuration. Any thread may read it; one thread replaces it.

    Before `is_known`, it is the one of the environment alone. Nothing may be decided by it then: an absent setting may be one
    that the datastore has.
    """

    def __init__(self, configuration: Configuration, *, is_known: bool = True) -> None:
        self.state: tuple[Configuration, Mapping[str, Any] | None] = configuration, None
        """The configuration, and the spec in the datastore that it was made of; None if it was made of none."""
        self.is_known = is_known
        self._lock = Lock()
        self._listeners: list[Callable[[Configuration], None]] = []

    def on_change(self, listener: Callable[[Configuration], None]) -> None:
        """Have a listener called after each change, in the thread that makes it."""
        with self._lock:
            self._listeners.append(listener)

    @property
    def now(self) -> Configuration:
        """The configuration in force."""
        return self.state[0]

    def replace(self, configuration: Configuration, spec: Mapping[str, Any] | None = None) -> None:
        """Put another configuration into force, and call the listeners if it differs."""
        is_same, self.state = configuration == self.now, (configuration, spec)
        self.is_known = True
        if is_same:
            return
        with self._lock:
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(configuration)
