"""Rollouts of workloads: how far they are, and why they do not go on."""

from collections.abc import Iterator
from typing import Any, Final

from svc.datastore.api import StoreError
from svc.datastore.orch.client import SMALL_PAGE, segment
from svc.upgrade.bundle import container_of
from svc.upgrade.places import Place
from svc.upgrade.step import REACHED, Progress
from svc.upgrade.writer import Cluster

Json = dict[str, Any]

DAEMON_SET, STATEFUL_SET = "DaemonSet", "StatefulSet"
MAX_REASONS: Final = 10  # pods that are named
_LOG_LINES: Final = 3
_REVISION: Final = "controller-revision-hash"
_HASH: Final = {DAEMON_SET: _REVISION, STATEFUL_SET: _REVISION, "Deployment": "pod-template-hash"}
_BUDGETS: Final = ("policy/v1", "policy/v1beta1")


def rollout_of(cluster: Cluster, place: Place, *, detailed: bool = False, one_container: bool = False) -> Progress:
    """Return whether all pods of a workload have its newest template, and are ready.

    With `detailed`, the reasons have the ends of logs, and budgets of disruptions. With `one_container`, only the container of
    the program has to be ready, and not the pod."""
    live = cluster.find(place)
    if live is None:
        return Progress(False, (f"{place} does not exist",))
    missing = list(_status_reasons(place, live, one_container=one_container))
    stuck, number = _stuck_pods(cluster, live)
    if not missing and not stuck:
        return REACHED
    named = [f"{_of(pod)}: {why}{last_lines(cluster, pod, live) if detailed else ''}" for pod, why in stuck]
    more = [f"and {number - len(stuck)} pods more"] if number > len(stuck) else []
    return Progress(False, (*missing, *named, *more, *(blocking_budgets(cluster, live) if detailed else ())))


def _stuck_pods(cluster: Cluster, live: Json) -> tuple[list[tuple[Json, str]], int]:
    """Return the first pods that do not count as upgraded, each with the reason, and their number. Others are not kept."""
    newest, found, number = _newest_hash(cluster, live), [], 0
    for pod in pods_of(cluster, live):
        if "deletionTimestamp" in pod["metadata"]:
            continue
        if why := _why_not_ready(pod, live, newest):
            number += 1
            found += [(pod, why)] if number <= MAX_REASONS else []
    return found, number


def blocking_budgets(cluster: Cluster, workload: Json) -> Iterator[str]:
    """Yield a sentence for each budget that allows no disruption of the pods of a workload."""
    labels = workload["spec"]["template"]["metadata"].get("labels") or {}
    namespace = workload["metadata"]["namespace"]
    version = next((each for each in _BUDGETS if cluster.discovery.find(each, "PodDisruptionBudget")), None)
    if version is None:
        return
    for budget in cluster.items(cluster.folder(Place(version, "PodDisruptionBudget", namespace, "any"))):
        wanted = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
        status = budget.get("status") or {}
        if wanted and wanted.items() <= labels.items() and status.get("disruptionsAllowed") == 0 and status.get("expectedPods"):
            name = f"PodDisruptionBudget/{namespace}/{budget['metadata']['name']}"
            yield f"{name} allows no disruption of its pods now: drains of nodes wait for it, a rollout does not"


def _status_reasons(place: Place, live: Json, *, one_container: bool) -> Iterator[str]:
    status, generation = live.get("status") or {}, live["metadata"]["generation"]
    if status.get("observedGeneration", 0) < generation:
        yield f"{place}: its controller has not seen generation {generation}"
        return
    if place.kind == DAEMON_SET:
        wanted = status.get("desiredNumberScheduled", 0)
        updated, available = status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0)
    else:
        wanted = live["spec"].get("replicas", 1)
        field = "readyReplicas" if place.kind == STATEFUL_SET else "availableReplicas"  # of releases before 1.22
        updated, available = status.get("updatedReplicas", 0), status.get(field, 0)
    if updated != wanted or (available != wanted and not one_container):
        yield f"{place}: {updated} of {wanted} pods are updated, {available} available"


def pods_of(cluster: Cluster, live: Json, **params: str) -> Iterator[Json]:
    """Yield the pods with the labels of a workload."""
    selector = live["spec"]["selector"].get("matchLabels") or {}
    path = cluster.folder(Place("v1", "Pod", live["metadata"]["namespace"], "any"))
    text = ",".join(f"{name}={value}" for name, value in selector.items())
    yield from cluster.items(path, labelSelector=text, metadata_only=False, **{"limit": str(SMALL_PAGE), **params})


def why_not_ready(pod: Json, live: Json) -> str:
    """Return why the program of a pod is not ready, whichever template the pod has; empty if it is."""
    return _why_not_ready(pod, live, "")


def _newest_hash(cluster: Cluster, live: Json) -> str:
    """Return the hash of the newest template, as its pods have it; empty if it is not known."""
    metadata = live["metadata"]
    api_version, kind = live["apiVersion"], live["kind"]
    if kind == STATEFUL_SET:
        return str((live.get("status") or {}).get("updateRevision") or "")
    history = "ControllerRevision" if kind == DAEMON_SET else "ReplicaSet"
    owned = [
        each
        for each in cluster.items(cluster.folder(Place(api_version, history, metadata["namespace"], "any")))
        if any(owner["uid"] == metadata["uid"] for owner in each["metadata"].get("ownerReferences") or ())
    ]
    newest = max(owned, key=lambda each: _revision_of(each, cluster.names.orch_domain), default=None)
    return "" if newest is None else str(newest["metadata"]["labels"].get(_HASH[kind]) or "")


def _revision_of(history: Json, domain: str) -> int:
    annotation = (history["metadata"].get("annotations") or {}).get(f"deployment.{domain}/revision")
    return int(history.get("revision") or annotation or 0)


def _why_not_ready(pod: Json, live: Json, newest: str) -> str:
    """Return why a pod does not count as upgraded; empty if it does. Only the container of the program has to be ready."""
    if newest and pod["metadata"].get("labels", {}).get(_HASH[live["kind"]]) != newest:
        return "has an older template"
    status, container = pod.get("status") or {}, container_of(live)
    found = {each["name"]: each for each in status.get("containerStatuses") or ()}
    state = found.get(container["name"]) or {}
    if status.get("phase") == "Running" and state.get("ready"):
        return ""
    causes = [*(status.get("initContainerStatuses") or ()), *found.values()]
    waiting = [(each.get("state") or {}).get("waiting") or (each.get("state") or {}).get("terminated") for each in causes]
    reasons = [f"{each.get('reason')}: {each.get('message', 'no message')}" for each in waiting if each and each.get("reason")]
    return "; ".join(reasons) or status.get("reason") or f"{status.get('phase', 'no phase')}, {container['name']} is not ready"


def _of(pod: Json) -> str:
    return f"node {pod['spec'].get('nodeName') or '(none yet)'}, pod {pod['metadata']['name']}"


def last_lines(cluster: Cluster, pod: Json, live: Json) -> str:
    """Return the last lines of the log of a pod, or why they cannot be read."""
    if not pod["spec"].get("nodeName"):
        return ""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{segment(metadata['namespace'])}/pods/{segment(metadata['name'])}/log"
    try:
        text = cluster.client.text(path, container=container_of(live)["name"], tailLines=str(_LOG_LINES))
    except StoreError as error:
        return f"; its log cannot be read: {error.msg}"
    return f"; its log ends with: {' | '.join(text.splitlines()) or 'nothing'}"
