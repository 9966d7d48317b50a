"""Procedure `manifests`: a newer manifest is applied to a cluster whose datastore is the Kubernetes API."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from svc import __version__
from svc.admin.version_order import order_of
from svc.deploy.manifests.settings import CONFIG_KEY, CONFIG_MAP, NETWORKING, OVERLAY, POLICY_ONLY
from svc.names import Names
from svc.orch.pod_cidrs import VARIABLE as USE_POD_CIDR
from svc.upgrade.bundle import Bundle, agent_names, container_of, version_of
from svc.upgrade.canary import try_pod
from svc.upgrade.client_versions import installed, older
from svc.upgrade.cluster_state import ClusterState, read_state
from svc.upgrade.object_step import Former, ObjectStep
from svc.upgrade.places import Place
from svc.upgrade.procedure import Findings
from svc.upgrade.step import Step
from svc.upgrade.writer import Cluster, Writer, not_served

Json = dict[str, Any]

NAME: Final = "manifests"
_OWN_VERSION: Final = "svcctl"
_CLUSTER_TYPE: Final = "CLUSTER_TYPE"
_DATASTORE_TYPE: Final = "DATASTORE_TYPE"
_ETCD: Final = "etcdv3"


class ManifestProcedure:
    """The procedure. `digest` is that of the manifest, `to` the version that the user gives, if any."""

    name = NAME

    def __init__(self, writer: Writer, documents: Sequence[Json], digest: str, to: str = "") -> None:
        self._writer = writer
        self._bundle = Bundle(documents)
        self._to = to
        self.inputs = {"manifest": digest, "to": to}

    def steps(self, former: Former) -> list[Step]:
        """Return a step for each document."""
        return [ObjectStep(self._writer, each, self._bundle, former) for each in self._bundle.documents]

    def findings(self) -> Findings:
        """Return what is found, and what forbids the upgrade. Raise StoreError."""
        names, agent = self._writer.names, self._bundle.agent(self._writer.names)
        if agent is None:
            known = ", ".join(agent_names(names))
            return Findings(self.name, {}, (f"the manifest has no DaemonSet of the agent ({known})",))
        live, blockers = _live_agent(self._writer, agent)
        state = read_state(self._writer)
        source = state.version or (version_of(container_of(live)["image"]) if live else "")
        target = version_of(container_of(agent)["image"])
        found: Json = {
            "datastore": "Kubernetes API",
            "method": self.name,
            "flavour": flavour_of(live, names) if live else "none",
            "version": source,
            "programs on PATH": [f"{place}: {version or 'unknown'}" for place, version in installed(_path())],
        }
        problems = [*blockers, *self._kinds_missing(), *_lock_problems(state)]
        if live is not None:
            problems += _flavour_problems(live, agent, names)
            problems += _datastore_problems(self._writer, live)
        problems += _version_problems(names, source, target, self._to)
        return Findings(self.name, found, tuple(problems), source, target)

    def unverified(self) -> list[str]:
        """Return what is not as it should be after the last step. Objects and rollouts are verified by their steps."""
        wanted, state = pattern_of(self._writer.names, self._to), read_state(self._writer)
        found = []
        if state.is_served and not wanted.match(state.version):
            found.append(f"ClusterInformation default has version {state.version!r}, which does not match {wanted.pattern}")
        return [*found, *older(_path())]

    def prove(self, pause: Callable[[float], None]) -> list[str]:
        """Start a pod on a node of the agent, and delete it."""
        agent = self._bundle.agent(self._writer.names)
        return [] if agent is None else try_pod(self._writer, agent, pause)

    def _kinds_missing(self) -> Iterator[str]:
        """Yield a sentence for each document whose kind neither the server nor the manifest has."""
        for step in self.steps(lambda _: None):
            assert isinstance(step, ObjectStep)
            if self._writer.served(step.place) is None and not self._bundle.brings(step.place):
                yield not_served(step.place)


def flavour_of(agent: Json, names: Names) -> str:
    """Return the flavour of a DaemonSet of the agent."""
    variables = _variables(agent)
    if variables.get(USE_POD_CIDR) != "true":
        return NETWORKING
    is_overlay = agent["metadata"]["name"] == names.overlay_agent != names.node_agent
    return OVERLAY if is_overlay or OVERLAY in variables.get(_CLUSTER_TYPE, "").split(",") else POLICY_ONLY


def pattern_of(names: Names, to: str) -> "re.Pattern[str]":
    """Return the form of the version of the cluster after the upgrade: any patch release of the wanted one."""
    wanted = to or (__version__ if names.upgrade_target == _OWN_VERSION else names.upgrade_target)
    numbers = wanted.removeprefix("v").split(".")[:2]
    return re.compile(rf"^v?{re.escape('.'.join(numbers))}\.")


def _live_agent(cluster: Cluster, agent: Json) -> tuple[Json | None, list[str]]:
    """Return the DaemonSet of the agent in the cluster, and the reason if it is missing."""
    namespace, version = str(agent["metadata"].get("namespace") or ""), agent["apiVersion"]
    known = dict.fromkeys((agent["metadata"]["name"], *agent_names(cluster.names)))
    for name in known:
        if found := cluster.find(Place(version, "DaemonSet", namespace, name)):
            return found, []
    listed = ", ".join(known)
    return None, [f"no DaemonSet of the agent ({listed}) is in namespace {namespace}: svc was not installed by a manifest"]


def _flavour_problems(live: Json, agent: Json, names: Names) -> Iterator[str]:
    before, after = (each["metadata"]["name"] for each in (live, agent))
    if before != after:
        yield f"the cluster has DaemonSet {before}, and the manifest {after}: it is of another flavour"
        return
    was, wanted = flavour_of(live, names), flavour_of(agent, names)
    if was != wanted:
        yield f"the cluster has flavour {was}, and the manifest is of flavour {wanted}: give the manifest of {was}"


def _datastore_problems(cluster: Cluster, live: Json) -> Iterator[str]:
    config = cluster.find(Place("v1", "ConfigMap", live["metadata"]["namespace"], CONFIG_MAP)) or {}
    network = str((config.get("data") or {}).get(CONFIG_KEY) or "")
    if _variables(live).get(_DATASTORE_TYPE) == _ETCD or f'"{_ETCD}"' in network:
        yield "the datastore of the cluster is etcd: this procedure is for the Kubernetes API"


def _lock_problems(state: ClusterState) -> Iterator[str]:
    if state.is_locked:
        yield "the datastore is locked, as for a migration; if none is at work, unlock it: `svcctl clusterinfo unlock`"


def _version_problems(names: Names, source: str, target: str, to: str) -> Iterator[str]:
    before, after, floor = order_of(source), order_of(target), order_of(names.upgrade_floor)
    wanted = pattern_of(names, to)
    if after is None:
        yield f"the manifest does not tell its version: the image of the agent has the tag {target!r}"
    elif not wanted.match(f"{target}."):
        yield f"the manifest is of version {target}, which does not match {wanted.pattern}: give its version with --to"
    if before is None:
        yield f"the version of the cluster is not known: it says {source!r}"
        return
    if floor is not None and before < floor:
        yield f"the cluster has version {source}, and upgrades begin at {names.upgrade_floor}"
    if after is not None and after < before:
        yield f"the manifest is of version {target}, older than {source} of the cluster"


def _variables(workload: Json) -> dict[str, str]:
    """Return the variables of all containers that have a fixed value."""
    pod = workload["spec"]["template"]["spec"]
    containers = (*(pod.get("initContainers") or ()), *pod["containers"])
    return {each["name"]: str(each.get("value") or "") for one in containers for each in one.get("env") or ()}


def _path() -> str:
    return os.environ.get("PATH", "")
