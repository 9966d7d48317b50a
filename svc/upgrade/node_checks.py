"""Checks of the attachments of sample nodes, each by a pod that asks the agent of its node.

Only a process on the node reaches the agent and the namespaces of pods. The pod has the image of the agent and the directory of
its socket, and runs `svcctl reconcile`: the agent compares all its attachments with their interfaces and with the datastore.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from svc.names import DEFAULT
from svc.upgrade.agent_pods import agent_daemon_sets
from svc.upgrade.bundle import container_of
from svc.upgrade.canary import is_gone, remove, wait
from svc.upgrade.places import Place
from svc.upgrade.rollouts import pods_of, why_not_ready
from svc.upgrade.run_names import NAME, NAMESPACE
from svc.upgrade.writer import Changed, Writer

Json = dict[str, Any]

CHECK: Final = Place("v1", "Pod", NAMESPACE, f"{NAME}-check")
CHECK_SECONDS = 180.0  # for a pod: the command may look twice, a minute apart
MAX_NODES: Final = 3
_COMMAND: Final = "`svcctl reconcile`"
_AGENT: Final = "svc-agent"
_HEADINGS: Final = ("ID ", "journal: ", "waiting ")
_ENDED: Final = ("Succeeded", "Failed")
_DIRECTORIES: Final = {"--state-dir": DEFAULT.state_dir, "--run-dir": DEFAULT.run_dir}


def check_nodes(
    writer: Writer, pause: Callable[[float], None], known: Collection[str] = (), left_out: Collection[str] = ()
) -> list[str]:
    """Return what agents of sample nodes find, but not about the addresses whose contradictions are `known`.

    The IDs of agents are others than those of a check of the datastore. Nothing is checked if agents do not run in pods, nor on
    nodes that are left out."""
    samples = islice((each for each in _samples(writer) if each[0] not in left_out), MAX_NODES)
    return [text for node, program in samples for text in _check(writer, node, program, pause, known)]


def _samples(writer: Writer) -> Iterator[tuple[str, Json]]:
    """Yield nodes with a ready agent, each with the container of the agent."""
    for live in agent_daemon_sets(writer):
        program = container_of(live)
        ready = (pod for pod in pods_of(writer, live) if not why_not_ready(pod, live))
        yield from ((pod["spec"]["nodeName"], program) for pod in ready if program.get("command") == [_AGENT])


def _check(writer: Writer, node: str, program: Json, pause: Callable[[float], None], known: Collection[str]) -> list[str]:
    if not is_gone(writer, CHECK, pause, CHECK_SECONDS):
        return [f"{CHECK} of an earlier run does not end: see its events"]
    pod = _pod(node, program)
    if not wait(lambda: _has_ended(writer, pod), pause, CHECK_SECONDS):
        late = f"{CHECK} on node {node} has not ended after {CHECK_SECONDS:.0f} s"
        found = [f"{late}: see its events, or run {_COMMAND} there"]
    else:
        lines = [each for each in _said(writer.find(CHECK)) if set(known).isdisjoint(each.split())]
        found = [f"node {node}: {_COMMAND} there: {' | '.join(lines)}"] if lines else []
    remove(writer, CHECK)
    return found


def _has_ended(writer: Writer, pod: Json) -> bool:
    """Return whether the pod has ended. Create it if it does not exist."""
    live = writer.find(CHECK)
    if live is None:
        with suppress(Changed):  # its answer may be lost
            writer.create(pod)
        return False
    return (live.get("status") or {}).get("phase") in _ENDED


def _said(live: Json | None) -> list[str]:
    """Return the lines of a pod that has failed, without headings, and without that it has waited."""
    status = (live or {}).get("status") or {}
    if status.get("phase") == _ENDED[0]:
        return []
    states = [(each.get("state") or {}).get("terminated") or {} for each in status.get("containerStatuses") or ()]
    text = "\n".join(str(each.get("message") or each.get("reason") or "") for each in states)
    found = [" ".join(line.split()) for line in text.splitlines() if line.strip() and not line.startswith(_HEADINGS)]
    return found or [str(status.get("message") or "it has failed without a finding")]


def _pod(node: str, program: Json) -> Json:
    folders = [_directory(program, *each) for each in _DIRECTORIES.items()]
    options = [word for option, folder in zip(_DIRECTORIES, folders, strict=True) for word in (option, folder)]
    volumes = {f"folder-{number}": folder for number, folder in enumerate(dict.fromkeys(folders))}
    container = {
        "name": "check",
        "image": program["image"],
        "command": ["svcctl", *options, "reconcile"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": name, "mountPath": folder, "readOnly": True} for name, folder in volumes.items()],
    }
    spec = {
        "nodeName": node,
        "hostNetwork": True,
        "containers": [container],
        "volumes": [{"name": name, "hostPath": {"path": folder}} for name, folder in volumes.items()],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": CHECK.name, "namespace": NAMESPACE}, "spec": spec}


def _directory(program: Json, option: str, otherwise: str) -> str:
    words = [str(each) for each in program.get("args") or ()]
    return words[words.index(option) + 1] if option in words[:-1] else otherwise
