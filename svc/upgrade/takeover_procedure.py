"""Procedure `takeover`: svc takes the place of another product's plugin under its names, one node after the other."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from svc.admin.version_order import order_of
from svc.deploy.manifests.settings import CONFIG_KEY, CONFIG_MAP
from svc.upgrade.bundle import Bundle, agent_names, container_of, version_of
from svc.upgrade.canary import try_pod
from svc.upgrade.client_versions import listed
from svc.upgrade.cluster_state import read_state
from svc.upgrade.node_turns import MarkNodes, UnmarkNodes, affinity, turns
from svc.upgrade.object_step import Former, ObjectStep
from svc.upgrade.places import Place, place_of
from svc.upgrade.procedure import Findings
from svc.upgrade.step import Step
from svc.upgrade.takeover_steps import (
    FormerControllers,
    NewControllers,
    PolicyAgent,
    Restorer,
    RestorerEnd,
    daemon_sets,
    turn_of,
)
from svc.upgrade.writer import Writer

Json = dict[str, Any]

NAME: Final = "takeover"
_DAEMON_SET, _DEPLOYMENT = "DaemonSet", "Deployment"
_NETWORK: Final = "CNI_NETWORK_CONFIG"
_TOKEN: Final = re.compile(r"__[A-Z0-9_]+__")


class TakeoverProcedure:
    """The procedure. The manifest is that of svc with the names of the other product; `digest` is its digest."""

    name = NAME

    def __init__(self, writer: Writer, documents: Sequence[Json], digest: str) -> None:
        self._writer = writer
        self._bundle = Bundle(documents)
        self.inputs = {"procedure": NAME, "manifest": digest}

    def steps(self, former: Former) -> list[Step]:
        """Return the steps: rights and network list, the policy agent, the nodes, and the controllers."""
        writer, bundle = self._writer, self._bundle
        agent, policy = self._agent(), self._policy_agent()
        if agent is None or policy is None:
            return []
        turn = turn_of(writer.names, place_of(agent))
        bound = json.loads(json.dumps(agent))
        bound["spec"]["template"]["spec"]["affinity"] = affinity(turn, is_former=False)
        return [
            *(
                ObjectStep(writer, each, bundle, former)
                for each in bundle.documents
                if each["kind"] not in (_DAEMON_SET, _DEPLOYMENT)
            ),
            PolicyAgent(writer, place_of(policy)),
            RestorerEnd(writer),
            MarkNodes(writer, turn),
            ObjectStep(writer, bound, bundle, former),
            *turns(writer, turn),
            Restorer(writer),
            *self._controllers(former),
            UnmarkNodes(writer, turn),
        ]

    def findings(self) -> Findings:
        """Return what is found, and what forbids the takeover. Raise StoreError."""
        names, state, policy = self._writer.names, read_state(self._writer), self._policy_agent()
        problems = list(self._problems(policy))
        before, floor = order_of(state.version), order_of(names.upgrade_floor)
        if before is not None and floor is not None and before < floor:
            problems.append(f"the cluster has version {state.version}, and takeovers begin at {names.upgrade_floor}")
        if state.is_locked:
            problems.append("the datastore is locked: `svcctl clusterinfo unlock`, if no migration is at work")
        facts: Json = {
            "method": self.name,
            "names": names.plugin,
            "version of the other product": state.version or "unknown",
            "programs on PATH": listed(os.environ.get("PATH", "")),
        }
        if policy is not None:
            facts["policy agent"] = f"{place_of(policy)}: {container_of(policy)['image']}"
        agent = self._agent()
        target = version_of(container_of(agent)["image"]) if agent is not None else ""
        return Findings(self.name, facts, tuple(problems), state.svc_version or state.version, target)

    def unverified(self) -> list[str]:
        """Return nothing: each step has waited for its result."""
        return []

    def prove(self, pause: Callable[[float], None]) -> list[str]:
        """Start a pod on a node of the agent, and delete it."""
        agent = self._agent()
        return [] if agent is None else try_pod(self._writer, agent, pause)

    def _controllers(self, former: Former) -> Iterator[Step]:
        for each in self._bundle.of_kind(_DEPLOYMENT):
            if each["metadata"]["name"] == self._writer.names.controllers:
                yield FormerControllers(self._writer, each)
                yield NewControllers(self._writer, each, self._bundle, former)
            else:
                yield ObjectStep(self._writer, each, self._bundle, former)

    def _agent(self) -> Json | None:
        name = self._writer.names.daemon_set
        return next((each for each in self._bundle.of_kind(_DAEMON_SET) if each["metadata"]["name"] == name), None)

    def _policy_agent(self) -> Json | None:
        names = self._writer.names
        known = [name for name in agent_names(names) if name != names.daemon_set]
        return next((each for name in known for each in daemon_sets(self._writer, name)), None)

    def _problems(self, policy: Json | None) -> Iterator[str]:
        names = self._writer.names
        if not names.foreign_definitions:
            yield "these names belong to no other product: give the names profile of the one to take over"
            return
        if self._agent() is None:
            yield f"the manifest has no DaemonSet {names.daemon_set}: print it with `svcctl manifests`, with the same --names"
        if policy is None:
            yield f"no DaemonSet {names.node_agent} is in the cluster: the other product was not installed by manifests"
            return
        owners = [each["kind"] for each in policy["metadata"].get("ownerReferences") or ()]
        if owners:
            yield f"{place_of(policy)} belongs to {', '.join(owners)}, which would change it back: remove that owner first"
        yield from self._network_problems(policy)

    def _network_problems(self, policy: Json) -> Iterator[str]:
        """Yield what differs between the network of the product and that of the manifest, on which handles depend."""
        theirs, ours = self._their_network(policy), self._our_network()
        if theirs is None or ours is None:
            return
        for field, before, after in (("name", theirs[0], ours[0]), ("ipam.type", theirs[1], ours[1])):
            if before != after:
                yield f"the network list has {field} {before!r}, and the manifest {after!r}: pods would lose their handles"

    def _our_network(self) -> tuple[str, str] | None:
        found = (each for each in self._bundle.of_kind("ConfigMap") if each["metadata"]["name"] == CONFIG_MAP)
        return next((_network(str(each["data"].get(CONFIG_KEY) or ""), self._writer.names.plugin) for each in found), None)

    def _their_network(self, policy: Json) -> tuple[str, str] | None:
        """Return name and IPAM of the network; None once the container that installs it is gone."""
        spec = policy["spec"]["template"]["spec"]
        for container in spec.get("initContainers") or ():
            for each in container.get("env") or ():
                source = (each.get("valueFrom") or {}).get("configMapKeyRef")
                if each["name"] == _NETWORK and source:
                    place = Place("v1", "ConfigMap", policy["metadata"]["namespace"], source["name"])
                    data = (self._writer.find(place) or {}).get("data") or {}
                    return _network(str(data.get(source["key"]) or ""), self._writer.names.plugin)
        return None


def _network(text: str, plugin: str) -> tuple[str, str] | None:
    """Return name and IPAM of a network list whose values may be placeholders; None if it cannot be read."""
    try:
        found = json.loads(_TOKEN.sub("0", text))
        (entry,) = (each for each in found["plugins"] if each.get("type") == plugin)
        return str(found["name"]), str(entry["ipam"]["type"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
