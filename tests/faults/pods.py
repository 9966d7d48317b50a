"""The owners of containers: none, or pods of an API server, which the control plane and the kubelet create and delete."""

import random
from contextlib import suppress
from typing import Any, Final

from harness.kube import Kube, Refused
from harness.orch import PODS, put_pod
from svc.model.endpoint import DEFAULT_NAMESPACE, Workload

Json = dict[str, Any]

_REPLACED: Final = 0.3  # share of the ADDs whose pod is a new one, although the former one exists
_AT_ONCE: Final = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}


class BareContainers:
    """Containers that are not pods."""

    def workload(self, container: str) -> Workload:
        return Workload(container)

    def prepare(self, container: str, dice: random.Random) -> str:
        """Do what precedes an ADD. Return the UID of the pod, if any."""
        return ""

    def terminate(self, container: str, dice: random.Random) -> None:
        """Do what precedes a DEL."""


class Pods(BareContainers):
    """A pod for each container, always of the same name. A container outlives its pod if that is deleted by force."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    def workload(self, container: str) -> Workload:
        return Workload(container, f"web-{container}", DEFAULT_NAMESPACE)

    def prepare(self, container: str, dice: random.Random) -> str:
        """Create the pod, or keep the former one, whose sandbox is then replaced. Return its UID."""
        pod = self._find(container)
        if pod is not None and (_is_terminating(pod) or dice.random() < _REPLACED):
            self._remove(container)
            pod = None
        if pod is None:
            pod = self._create(container)
        return str(pod["metadata"]["uid"])

    def terminate(self, container: str, dice: random.Random) -> None:
        """Keep the pod, let it terminate, or delete it by force and perhaps create the next one of its name before the DEL."""
        match dice.randrange(4):
            case 1:
                with suppress(Refused):  # a pod that does not exist
                    self._kube.call("DELETE", self._path(container))
            case 2:
                self._remove(container)
            case 3:
                self._remove(container)
                self._create(container)

    def _path(self, container: str) -> str:
        return f"{PODS}/{self.workload(container).pod}"

    def _find(self, container: str) -> Json | None:
        try:
            return self._kube.call("GET", self._path(container))
        except Refused as refusal:
            if refusal.status == 404:
                return None
            raise

    def _create(self, container: str) -> Json:
        try:
            return put_pod(self._kube, self.workload(container).pod)
        except Refused as refusal:  # the request of a killed node, which arrived late, may have created it
            if refusal.status != 409:
                raise
            return self._kube.call("GET", self._path(container))

    def _remove(self, container: str) -> None:
        try:
            self._kube.call("DELETE", self._path(container), _AT_ONCE)
        except Refused as refusal:
            if refusal.status != 404:
                raise


def _is_terminating(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))
