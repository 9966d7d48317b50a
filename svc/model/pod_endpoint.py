"""Endpoints of pods if the datastore is the Kubernetes API: they are read from the pod, and only its annotations store them.

The first interface has the annotations that other programs read. Annotations of another interface of the same pod end in a dot
and its name, so that those of the first one stay unchanged.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import orjson

from svc._core.cidr import Address, Cidr
from svc.model.annotations import FLOATING, SOURCE_PREFIXES
from svc.model.endpoint import KIND, PRIMARY_INTERFACE, PodFacts, Workload, endpoint, endpoint_key, host_interface
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.qos import controls_of
from svc.model.resource import Resource, ordered
from svc.names import Names
from svc.values import dataclass, replace

Json = dict[str, Any]
Parsed = TypeVar("Parsed")

_SEGMENT = r"((?:[^-]|--)+)"
_NAME = re.compile(f"{_SEGMENT}-{_SEGMENT}-{_SEGMENT}-{_SEGMENT}")
_PREFIX = re.compile(f"{_SEGMENT}-{_SEGMENT}-{_SEGMENT}-()")
_FINISHED = ("Failed", "Succeeded", "Completed")
NETWORK_STATUS = "k8s.v1.cni.cncf.io/network-status"
_LONGEST_LABEL = 63
_PROTOCOLS = ("TCP", "UDP", "SCTP")


@dataclass(frozen=True, slots=True)
class PodInterface:
    """The pod and interface that an endpoint belongs to; an empty `interface` means any."""

    pod: str
    namespace: str
    interface: str


def pod_interface(names: Names, key: ResourceKey | ResourceQuery) -> PodInterface | None:
    """Return the pod and interface in an endpoint's name, or in a prefix up to a pod; None if it names no pod."""
    found = _NAME.fullmatch(key.name) if isinstance(key, ResourceKey) else _PREFIX.fullmatch(key.prefix)
    if not found or not key.namespace:
        return None
    _node, orchestrator, pod, interface = (segment.replace("--", "-") for segment in found.groups())
    return PodInterface(pod, key.namespace, interface) if orchestrator == names.orchestrator else None


def endpoints_of(names: Names, pod: Json) -> Iterator[tuple[ResourceKey, Resource]]:
    """Yield the endpoints of a pod, that of the first interface first. Yield none if it was never wired."""
    spec, metadata = pod.get("spec") or {}, pod["metadata"]
    if spec.get("hostNetwork") or not spec.get("nodeName"):
        return
    notes = metadata.get("annotations") or {}
    head = f"{names.annotation_prefix}/podIPs"
    for note in sorted(notes):
        if (note == head or note.startswith(f"{head}.")) and notes[note]:
            interface = note[len(head) + 1 :] or PRIMARY_INTERFACE
            resource = _endpoint(names, pod, interface, notes)
            yield ResourceKey(KIND, resource.name, resource.namespace), resource


def attachments_of(names: Names, pod: Json) -> Iterator[tuple[str, list[str]]]:
    """Yield container and networks of each endpoint of a pod, as `endpoints_of` does, without the parts for policy.

    The container is empty if the endpoint names none. Raise ValueError for annotations that are not text.
    """
    notes = pod["metadata"].get("annotations") or {}
    head = f"{names.annotation_prefix}/podIPs"
    for note, text in notes.items():
        if (note == head or note.startswith(f"{head}.")) and text:
            interface = note[len(head) + 1 :] or PRIMARY_INTERFACE
            yield notes.get(_note(names, "containerID", interface)) or "", [part for part in text.split(",") if part]


def network_status_addresses(pod: Json) -> Iterator[str]:
    """Yield the addresses that a meta plugin reports of a pod's interfaces. A malformed annotation has none.

    Whoever may change the pod can write anything into it. So only texts count: that of a deeply nested value cannot be made.
    """
    try:
        found = orjson.loads((pod["metadata"].get("annotations") or {}).get(NETWORK_STATUS) or "[]")
    except ValueError:
        return
    for interface in found if isinstance(found, list) else ():
        given = interface.get("ips") if isinstance(interface, dict) else None
        yield from (text for text in (given if isinstance(given, list) else ()) if isinstance(text, str))


def is_finished(pod: Json) -> bool:
    """Return whether the pod has ended for good."""
    return (pod.get("status") or {}).get("phase") in _FINISHED


def wired_annotations(names: Names, interface: str, wired: Resource) -> Json:
    """Return the annotations of a wired interface; none for an endpoint without addresses."""
    networks = wired.spec.get("ipNetworks") or ()
    if not networks:
        return {}
    notes = {"podIP": networks[0], "podIPs": ",".join(networks)}
    if container := wired.spec.get("containerID"):
        notes["containerID"] = container
    return {_note(names, name, interface): text for name, text in notes.items()}


def cleared_annotations(names: Names, interface: str) -> Json:
    """Return the annotations of a removed interface. The container ID stays."""
    return {_note(names, name, interface): "" for name in ("podIP", "podIPs")}


def policy_facts(names: Names, pod: Json) -> PodFacts:
    """Return the policy properties of a pod object of the API."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    notes = metadata.get("annotations") or {}
    return replace(
        copied_facts(names, pod),
        generate_name=metadata.get("generateName") or "",
        ports=list(_ports(spec)),
        floating=_parsed(notes.get(f"{names.annotation_prefix}/{FLOATING}"), Address),
        source_prefixes=[str(cidr) for cidr in _parsed(notes.get(f"{names.annotation_prefix}/{SOURCE_PREFIXES}"), Cidr.masked)],
        qos=controls_of(names, notes)[0],
    )


def copied_facts(names: Names, pod: Json) -> PodFacts:
    """Return those policy properties that a stored endpoint follows while its pod runs: labels, service account, profiles."""
    metadata, account = pod["metadata"], (pod.get("spec") or {}).get("serviceAccountName") or ""
    labels = dict(metadata.get("labels") or {})
    if 0 < len(account) < _LONGEST_LABEL:
        labels[f"{names.label_prefix}/serviceaccount"] = account
    return PodFacts(labels, service_account=account, profiles=_profiles(names, metadata["namespace"], account))


def stated_container(names: Names, pod: Json, interface: str) -> str:
    """Return the container that the annotations of a pod state for an interface; empty if they state none."""
    return str((pod["metadata"].get("annotations") or {}).get(_note(names, "containerID", interface)) or "")


def _note(names: Names, name: str, interface: str) -> str:
    suffix = "" if interface == PRIMARY_INTERFACE else f".{interface}"
    return f"{names.annotation_prefix}/{name}{suffix}"


def _endpoint(names: Names, pod: Json, interface: str, notes: dict[str, str]) -> Resource:
    metadata, node = pod["metadata"], pod["spec"]["nodeName"]
    container = notes.get(_note(names, "containerID", interface), "")
    workload = Workload(container, metadata["name"], metadata["namespace"])
    key = endpoint_key(names, node, workload, interface)
    spec = {
        "ipNetworks": _networks(names, pod, interface, notes),
        "interfaceName": host_interface(names, workload, interface),
        "mac": "",
    }
    made = endpoint(names, key, node, workload, interface, spec=spec, facts=policy_facts(names, pod))
    kept = {name: metadata.get(name) for name in ("uid", "creationTimestamp")}
    status = notes.get(NETWORK_STATUS)
    made.metadata = ordered(made.metadata | kept | {"annotations": {NETWORK_STATUS: status} if status else {}})
    return made


def _networks(names: Names, pod: Json, interface: str, notes: dict[str, str]) -> list[str]:
    """Return the networks that ADD wrote. The pod's status is not used, because it lags behind."""
    if is_finished(pod):
        return []
    texts = notes.get(_note(names, "podIPs", interface), "").split(",")
    return [str(Cidr.masked(text)) for text in texts if text]


def _profiles(names: Names, namespace: str, account: str) -> list[str]:
    profile = f"{names.namespace_profile}{namespace}"
    return [profile, f"{names.service_account_profile}{namespace}.{account}"] if account else [profile]


def _ports(spec: Json) -> Iterator[Json]:
    """Yield the ports that policy may name, or that have a host port."""
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for port in container.get("ports") or ():
            protocol = port.get("protocol") or "TCP"
            if port.get("containerPort") and (port.get("hostPort") or port.get("name")) and protocol in _PROTOCOLS:
                yield {
                    "name": port.get("name") or "",
                    "protocol": protocol,
                    "port": port["containerPort"],
                    "hostPort": port.get("hostPort") or 0,
                    "hostIP": port.get("hostIP") or "",
                }


def _parsed(text: str | None, parse: Callable[[str], Parsed]) -> list[Parsed]:
    """Parse a JSON list of a user; empty if it is malformed. An invalid annotation must not prevent the deletion of a pod."""
    try:
        return [parse(item) for item in orjson.loads(text or "[]")]
    except (ValueError, TypeError):
        return []
