"""Probe the dependencies of installed networks, so that STATUS reports failures before the first ADD."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from svc.agent.periodic import Task
from svc.attach.context import Context
from svc.attach.status import dependencies
from svc.cni.verbs import session_key
from svc.model.errors import SvcError
from svc.netconf.installed import InstalledNetwork, read_networks

PROBE_SECONDS = 30.0  # between two probes of a dependency


class Readiness:
    """Probes of dependencies, each on its own thread. Unreadable installed networks are skipped: STATUS reports them."""

    def __init__(self, context: Context, state_dir: Path) -> None:
        self._context = context
        self._state_dir = state_dir

    def tasks(self) -> Sequence[Task]:
        """Return what `Periodic` runs."""
        return (Task("readiness", PROBE_SECONDS, self.probe),)

    def probe(self) -> None:
        """Begin a probe of each dependency that has none in flight."""
        with suppress(SvcError):
            for network in read_networks(self._state_dir)[0]:
                self._probe(network)

    def _probe(self, network: InstalledNetwork) -> None:
        with suppress(SvcError):
            where = session_key(network.netconf, network.names, network.profile)
            for dependency in dependencies(self._context, network.netconf, where):
                self._context.health.begin(dependency)
