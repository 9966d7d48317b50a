"""Procedure `host-endpoints`: automatic host endpoints take the place of those that were made by hand (specification, 9.7)."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from svc.admin.version_order import order_of
from svc.model.controllers_configuration import ENABLED
from svc.upgrade.agent_pods import agent_versions
from svc.upgrade.bundle import container_of
from svc.upgrade.client_versions import listed
from svc.upgrade.cluster_state import read_state
from svc.upgrade.former_host_endpoints import FormerEndpoints
from svc.upgrade.host_endpoint_steps import NodeLabels, Switch, not_served
from svc.upgrade.host_endpoint_view import HostEndpointView
from svc.upgrade.object_step import Former
from svc.upgrade.places import Place
from svc.upgrade.procedure import Findings
from svc.upgrade.step import Step
from svc.upgrade.writer import Writer

Json = dict[str, Any]

NAME: Final = "host-endpoints"
_NAMESPACE: Final = "kube-system"
_CONTROLLERS, _SWITCH, _NODE = "ENABLED_CONTROLLERS", "AUTO_HOST_ENDPOINTS", "node"
_WORKLOADS: Final = "apps/v1"
_SWITCHED_ON: Final = (ENABLED.lower(), "true")


class HostEndpointProcedure:
    """The procedure. It has no input: everything follows from the cluster."""

    name = NAME

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._view = HostEndpointView(writer)
        self.inputs = {"procedure": NAME}

    def steps(self, former: Former) -> list[Step]:  # noqa: ARG002
        """Return the steps: labels, the switch, and then the former host endpoints."""
        parts = (NodeLabels, Switch, FormerEndpoints)
        return [part(self._writer, self._view) for part in parts]

    def findings(self) -> Findings:
        """Return what is found, and what forbids the move. Raise StoreError."""
        if not self._view.is_served or not self._view.is_configurable:
            return Findings(self.name, {}, (not_served(self._view),))
        state = read_state(self._writer)
        found = self._view.findings()
        facts: Json = {"former host endpoints": [each.name for each in found.former], "version": state.version}
        agents = list(agent_versions(self._writer))
        facts["agents of unknown version"] = sorted(node for node, version in agents if order_of(version) is None)
        facts["programs on PATH"] = listed(os.environ.get("PATH", ""))
        problems = [*self._environment_problems(), *self._agent_problems(agents)]
        if state.is_locked:
            problems.append("the datastore is locked: `svcctl clusterinfo unlock`, if no migration is at work")
        return Findings(self.name, facts, tuple(problems), state.version, state.version)

    def unverified(self) -> list[str]:
        """Return nothing: the last step is done when no former host endpoint is left."""
        return []

    def prove(self, pause: Callable[[float], None]) -> list[str]:  # noqa: ARG002
        """Return nothing: each step has waited for its result."""
        return []

    def _environment_problems(self) -> Iterator[str]:
        """Yield the variables that keep the controllers from creating host endpoints, against their configuration."""
        place = Place(_WORKLOADS, "Deployment", _NAMESPACE, self._writer.names.controllers)
        live = self._writer.find(place) if self._writer.served(place) else None
        if live is None:
            return  # they may run elsewhere: the switch waits for them
        variables = {each["name"]: str(each.get("value") or "") for each in container_of(live).get("env") or ()}
        if (switch := variables.get(_SWITCH, "")) and switch.lower() not in _SWITCHED_ON:
            yield f"{place} has {_SWITCH} = {switch!r}, which overrides the configuration: remove the variable"
        if (names := variables.get(_CONTROLLERS, "")) and _NODE not in [name.strip() for name in names.split(",")]:
            yield f"{place} has {_CONTROLLERS} = {names!r}, without {_NODE!r}: add it"

    def _agent_problems(self, agents: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Yield the policy agents that do not know the profile of automatic host endpoints: they would cut their nodes off."""
        floor = order_of(self._writer.names.upgrade_floor)
        for node, version in agents:
            order = order_of(version)
            if floor is not None and order is not None and order < floor:
                yield f"the agent on node {node} is of version {version}, older than {self._writer.names.upgrade_floor}"
