"""The phases of a rolling update of a node, by the log of containerd."""

import re
from collections.abc import Iterator
from datetime import datetime, timezone

_LINE = re.compile(r'^time="([^"Z]{1,26})\d*Z" level=\w+ msg="(.*)')
_POD = "svc-node-"
_CREATED = re.compile(
    r"CreateContainer within sandbox \W*(\w+)\W* for &ContainerMetadata\{Name:([\w-]+),.* returns container id \W*(\w+)"
)
_EVENTS = (
    (re.compile(r"Stop container \W*(\w+)\W* with signal terminated"), "SIGTERM"),
    (re.compile(r'^shim disconnected" id=(\w+)'), "exited"),
    (re.compile(r"StartContainer for \W*(\w+)\W* returns"), "started"),
)
_SANDBOX = re.compile(rf"RunPodSandbox for &PodSandboxMetadata\{{Name:({_POD}\w+),[^}}]*\}}(?: returns sandbox id \W*(\w+))?")
_REMOVED = re.compile(r"RemovePodSandbox \W*(\w+)\W* returns")


def phases(log: str, begin: float, serves: float) -> list[tuple[float, str]]:
    """Return what happened to pods of `svc-node` from `begin` until the new agent serves, with seconds since the SIGTERM."""
    found = [(moment, what) for moment, what in _events(log) if begin <= moment <= serves]
    found.append((serves, "agent serves"))
    first = next((moment for moment, what in found if "SIGTERM" in what), begin)
    return [(moment - first, what) for moment, what in found]


def _events(log: str) -> Iterator[tuple[float, str]]:
    """Yield Unix time and event of each line about such a pod."""
    sandboxes, names = dict[str, str](), dict[str, str]()
    for moment, text in _lines(log):
        if made := _SANDBOX.search(text):
            if made[2]:
                sandboxes[made[2]] = made[1]
            yield moment, "sandbox is there" if made[2] else "pod arrives"
        elif (created := _CREATED.search(text)) and created[1] in sandboxes:
            names[created[3]] = created[2]
        elif (removed := _REMOVED.search(text)) and removed[1] in sandboxes:
            yield moment, "sandbox removed"
        for pattern, what in _EVENTS:
            if (about := pattern.search(text)) and about[1] in names:
                yield moment, f"{names[about[1]]} {what}"


def _lines(log: str) -> Iterator[tuple[float, str]]:
    for line in log.splitlines():
        if match := _LINE.match(line):
            yield datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp(), match[2]
