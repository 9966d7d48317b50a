"""What the controller `workloadendpoint` copies from a pod to its stored endpoints: labels, service account and profiles."""

from collections.abc import Sequence
from typing import Any

from svc.controllers.digests import digest
from svc.model.endpoint import PRIMARY_INTERFACE, PodFacts, Workload, endpoint_labels
from svc.model.pod_endpoint import copied_facts, stated_container
from svc.model.resource import Resource
from svc.names import Names
from svc.values import replace

Json = dict[str, Any]

DIGEST_BYTES = 12


def digest_of_pod(names: Names, pod: Json) -> bytes:
    """Return the digest of what the endpoints of a pod should have."""
    facts = copied_facts(names, pod)
    return _digest(_labels(names, pod, facts), facts.service_account, facts.profiles)


def digest_of_endpoint(names: Names, endpoint: Resource) -> bytes:
    """Return the digest of what an endpoint has."""
    spec = endpoint.spec
    return _digest(endpoint.metadata.get("labels") or {}, spec.get("serviceAccountName") or "", _own(names, spec))


def follows_pod(names: Names, endpoint: Resource) -> bool:
    """Return whether an endpoint has properties of its pod.

    The endpoints of a network without policy have none, and so no profile of a namespace.
    """
    spec = endpoint.spec
    is_pod = spec.get("orchestrator") == names.orchestrator and bool(spec.get("pod"))
    return is_pod and f"{names.namespace_profile}{endpoint.namespace}" in _profiles(spec)


def states_another_container(names: Names, pod: Json, endpoint: Resource) -> bool:
    """Return whether pod and endpoint both state the container of the interface, and differ."""
    interface = str(endpoint.spec.get("endpoint") or PRIMARY_INTERFACE)
    stated, stored = stated_container(names, pod, interface), endpoint.spec.get("containerID")
    return bool(stated and stored) and stated != stored


def copied(names: Names, pod: Json, endpoint: Resource) -> Resource:
    """Return the endpoint with what an ADD of the pod would write now. The rest stays; the same object if nothing differs."""
    if digest_of_endpoint(names, endpoint) == digest_of_pod(names, pod):
        return endpoint
    facts = copied_facts(names, pod)
    shared = [name for name in _profiles(endpoint.spec) if not _is_of_kubernetes(names, name)]
    wanted = {"serviceAccountName": facts.service_account, "profiles": [*facts.profiles, *shared]}
    spec = endpoint.spec | wanted
    if not facts.service_account:
        del spec["serviceAccountName"]
    return replace(endpoint, metadata=endpoint.metadata | {"labels": _labels(names, pod, facts)}, spec=spec)


def _labels(names: Names, pod: Json, facts: PodFacts) -> dict[str, str]:
    metadata = pod["metadata"]
    return endpoint_labels(names, Workload("", metadata["name"], metadata["namespace"]), facts)


def _profiles(spec: Json) -> list[str]:
    given = spec.get("profiles")
    return [str(name) for name in given] if isinstance(given, list) else []


def _own(names: Names, spec: Json) -> list[str]:
    """Return the profiles that follow from the pod. The others are those of networks that share the interface."""
    return [name for name in _profiles(spec) if _is_of_kubernetes(names, name)]


def _is_of_kubernetes(names: Names, profile: str) -> bool:
    return profile.startswith((names.namespace_profile, names.service_account_profile))


def _digest(labels: Json, account: str, profiles: Sequence[str]) -> bytes:
    return digest([labels, account, profiles], DIGEST_BYTES)
