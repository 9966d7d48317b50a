"""Steps of the takeover of another product's nodes: its agent stops managing CNI, and its controllers make room."""

import copy
import shlex
from collections.abc import Sequence
from typing import Any, Final

from svc.deploy.manifests.node import INSTALL
from svc.names import Names
from svc.upgrade.bundle import container_of
from svc.upgrade.former_managers import giving_back_at, managers_at
from svc.upgrade.former_steps import RemoveFormer
from svc.upgrade.node_turns import Turn, affinity
from svc.upgrade.object_states import differences, digest
from svc.upgrade.object_step import ObjectStep
from svc.upgrade.places import Place
from svc.upgrade.rollouts import rollout_of
from svc.upgrade.small_step import SmallStep, place_to
from svc.upgrade.step import REACHED, Look, Progress
from svc.upgrade.writer import Cluster, Writer

Json = dict[str, Any]

POLICY_AGENT, CONTROLLERS = "policy-agent", "former-controllers"
RESTORER_END, RESTORER = "restorer-end", "restorer"
APPS: Final = "apps/v1"
DAEMON_SET: Final = "DaemonSet"
LABEL, WAITING = "svc-takeover", "waiting"
_OFF: Final = "false"
_PARTS: Final = ("initContainers", "containers")
_FIELDS: Final = tuple(("f:spec", "f:template", "f:spec", f"f:{name}") for name in _PARTS)


def turn_of(names: Names, agent: Place) -> Turn:
    """Return the move of the nodes to a DaemonSet of svc."""
    return Turn(f"{names.label_prefix}/{LABEL}", WAITING, agent, restorer_place(agent))


def restorer_place(agent: Place) -> Place:
    """Return the place of the DaemonSet that restores the files of nodes."""
    return Place(agent.api_version, agent.kind, agent.namespace, f"{agent.name}-restore")


def daemon_sets(cluster: Cluster, name: str) -> list[Json]:
    """Return the DaemonSets of a name, in all namespaces."""
    found = cluster.items(f"/apis/{APPS}/daemonsets", fieldSelector=f"metadata.name={name}")
    return [{"apiVersion": APPS, "kind": DAEMON_SET} | each for each in found]


class PolicyAgent(SmallStep):
    """Let the policy agent leave CNI alone: by its variable, and without the container that installs its plugin."""

    destroys = "the container of the policy agent that installs its plugin; the run keeps it"

    def __init__(self, writer: Writer, place: Place | None = None) -> None:
        super().__init__(writer, POLICY_AGENT)
        self._place = place

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look at its containers."""
        live = self._find(self._place)
        if live is None:
            return Look(False, (f"{self._place} does not exist",))
        before, after = _parts(live), _parts(without_cni(live, self._writer.names))
        changes = tuple(
            (f"{self._place}: {name}", _shown(before[name]), _shown(after[name]))
            for name in _PARTS
            if before[name] != after[name]
        )
        return Look(
            not changes, changes=changes, before=digest(before), after=digest(after), content={"live": live, "parts": after}
        )

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return its containers, unless they are saved. Without the container that installs they are of this step in part."""
        if look.is_done or self._place is None:
            return None
        parts = _parts(look.content["live"])
        is_whole = any(each["name"] == self._writer.names.cni_installer for each in parts[_PARTS[0]])
        if saved and (not is_whole or saved[-1]["parts"] == parts):
            return None
        managers = managers_at(look.content["live"], _FIELDS)
        return {"place": place_to(self._place), "parts": parts, "after": look.after, "managers": managers}

    def act(self, look: Look) -> None:
        """Write them."""
        self._write(look.content["live"], look.content["parts"])

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return whether all its pods have followed."""
        return rollout_of(self._writer, self._place, detailed=detailed) if self._place is not None else REACHED

    def remains(self) -> bool:
        """Return whether it exists."""
        return self._find(self._place) is not None

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look whether it has the containers of before. Stop if they were changed since."""
        if not saved:
            return Look(True)
        self._place, parts = Place(*saved[-1]["place"]), saved[-1]["parts"]
        managers = saved[-1].get("managers") or []  # former builds have not saved them
        live = self._find(self._place)
        if live is None:
            return Look(True)
        content = {"live": live, "parts": parts, "managers": managers}
        if _parts(live) == parts:
            return Look(not giving_back_at(live, managers, _FIELDS), content=content)
        if digest(_parts(live)) != saved[-1]["after"]:
            since = differences(self._made(live, parts), _parts(live))
            return Look(False, (f"{self._place} was changed since",), changes=tuple(since))
        return Look(False, changes=tuple(differences(_parts(live), parts)), content=content)

    def undo(self, look: Look) -> None:
        """Write the containers of before, and give their fields back to their managers."""
        live, parts = look.content["live"], look.content["parts"]
        if _parts(live) != parts:
            live = self._write(live, parts)
        if operations := giving_back_at(live, look.content["managers"], _FIELDS):
            assert self._place is not None
            self._writer.patch(self._place, live, operations)

    def _made(self, live: Json, parts: Json) -> Json:
        """Return the containers as the step has made them from those of before."""
        former = {"metadata": live["metadata"], "spec": {"template": {"spec": parts}}}
        return _parts(without_cni(former, self._writer.names))

    def _write(self, live: Json, parts: Json) -> Json:
        assert self._place is not None
        operations = [{"op": "add", "path": f"/spec/template/spec/{name}", "value": parts[name]} for name in _PARTS]
        return self._writer.patch(self._place, live, operations)


class FormerControllers(RemoveFormer):
    """Delete the Deployment of the former controllers, which has other labels than that of svc at the same place."""

    def __init__(self, writer: Writer, document: Json | None = None) -> None:
        super().__init__(writer, CONTROLLERS, [_place(document)] if document is not None else [])
        self._document = document

    def _find(self, place: Place | None) -> Json | None:
        live = super()._find(place)
        is_own = live is not None and self._document is not None and selector_of(live) == selector_of(self._document)
        return None if is_own else live


class NewControllers(ObjectStep):
    """The Deployment of svc, when that of another selector is gone: a selector cannot be changed."""

    def look(self, saved: Sequence[Json]) -> Look:
        """Compare as a step of an object does. Before the former Deployment is gone, nothing can be checked."""
        live = self._writer.find(self.place)
        if live is not None and selector_of(live) != selector_of(self._document):
            return Look(False, unverified=True, changes=(("", "that of before", "created"),), before=digest(None))
        return super().look(saved)


class RestorerEnd(SmallStep):
    """Nothing. Its undoing deletes the DaemonSet that has restored the files."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer, RESTORER_END)

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Return that nothing is to be done."""
        return Look(True, before=digest(None), after=digest(None))

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing."""
        return None

    def act(self, look: Look) -> None:
        """Do nothing."""

    def look_back(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for the DaemonSet."""
        found = daemon_sets(self._writer, f"{self._writer.names.daemon_set}-restore")
        return Look(not found, changes=tuple((str(_place(each)), "present", None) for each in found), content={"found": found})

    def undo(self, look: Look) -> None:
        """Delete it."""
        for each in look.content["found"]:
            self._writer.delete(_place(each), each)


class Restorer(SmallStep):
    """Nothing, but to remove what an undoing has left. Its undoing starts a DaemonSet on the nodes that wait.

    Its pods uninstall svc there, which puts back the files of before."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer, RESTORER)

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for the DaemonSet."""
        found = daemon_sets(self._writer, f"{self._writer.names.daemon_set}-restore")
        changes = tuple((str(_place(each)), "present", None) for each in found)
        return Look(not found, changes=changes, before=digest({"restorer": True}), after=digest(None), content={"found": found})

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: the DaemonSet is made from that of svc."""
        return None

    def act(self, look: Look) -> None:
        """Delete it."""
        for each in look.content["found"]:
            self._writer.delete(_place(each), each)

    def look_back(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look whether it exists while svc has a DaemonSet."""
        agents = daemon_sets(self._writer, self._writer.names.daemon_set)
        is_there = bool(daemon_sets(self._writer, f"{self._writer.names.daemon_set}-restore"))
        return Look(is_there or not agents, changes=(("restorer", None, "created"),), content={"agents": agents})

    def undo(self, look: Look) -> None:
        """Create it."""
        for each in look.content["agents"]:
            self._writer.create(restorer(each, turn_of(self._writer.names, _place(each)), self._writer.names))


def without_cni(workload: Json, names: Names) -> Json:
    """Return the policy agent without its part in CNI."""
    found = copy.deepcopy(workload)
    spec, container = found["spec"]["template"]["spec"], container_of(found)
    kept = [each for each in container.get("env") or () if each["name"] != names.manage_cni]
    container["env"] = [*kept, {"name": names.manage_cni, "value": _OFF}]
    present = [each for each in container_of(workload).get("env") or () if each["name"] == names.manage_cni]
    if present == [{"name": names.manage_cni, "value": _OFF}]:
        container["env"] = container_of(workload)["env"]
    spec["initContainers"] = [each for each in spec.get("initContainers") or () if each["name"] != names.cni_installer]
    return found


def restorer(agent: Json, turn: Turn, names: Names) -> Json:
    """Return the DaemonSet that uninstalls svc on the nodes that wait."""
    place = restorer_place(_place(agent))
    labels = {f"app.{names.orch_domain}/name": place.name}
    spec = copy.deepcopy(agent["spec"]["template"]["spec"])
    (install,) = (each for each in spec["initContainers"] if each["name"] == INSTALL)
    install["name"] = "uninstall"
    install["command"], install["args"] = ["sh", "-c"], [_uninstall(install["args"], names)]
    keeper = {
        "name": "agent",
        "image": install["image"],
        "command": ["sleep", "infinity"],
        "securityContext": install["securityContext"],
    }
    spec |= {"initContainers": [install], "containers": [keeper], "affinity": affinity(turn, is_former=True)}
    return {
        "apiVersion": place.api_version,
        "kind": place.kind,
        "metadata": {"name": place.name, "namespace": place.namespace, "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


def selector_of(workload: Json) -> Json:
    """Return the labels by which a workload finds its pods."""
    return dict(workload["spec"]["selector"].get("matchLabels") or {})


def _uninstall(arguments: Sequence[str], names: Names) -> str:
    """Return the command that uninstalls what these arguments install. It succeeds also if that is done."""
    at = arguments.index("install")
    found = ["svcctl", *arguments[:at], "uninstall"]
    record = f"{arguments[arguments.index('--bin-dir') + 1]}/{names.plugin}.install"
    for option in ("--bin-dir", "--names"):
        if option in arguments[:-1]:
            found += [option, arguments[arguments.index(option) + 1]]
    return f"{shlex.join(found)} || test ! -e {shlex.quote(record)}"


def _parts(workload: Json) -> Json:
    spec = workload["spec"]["template"]["spec"]
    return {name: spec.get(name) or [] for name in _PARTS}


def _shown(containers: Sequence[Json]) -> dict[str, Any]:
    return {each["name"]: {one["name"]: one.get("value", "...") for one in each.get("env") or ()} for each in containers}


def _place(document: Json) -> Place:
    metadata = document["metadata"]
    return Place(document["apiVersion"], document["kind"], metadata.get("namespace", ""), metadata["name"])
