"""A service mesh on an API server: the ConfigMap of its injector, and workloads whose pods have a sidecar."""

import json
from contextlib import suppress
from typing import Any

from harness.fake_kubelets import FakeKubelets
from harness.kube import Refused
from harness.polling import eventually
from harness.upgrade_site import SYSTEM, UpgradeSite, daemon_set
from svc.names import DEFAULT

Json = dict[str, Any]

MESH, INJECTOR = DEFAULT.mesh_namespace, DEFAULT.mesh_injector
CONFIG_MAP = f"/api/v1/namespaces/{MESH}/configmaps/{INJECTOR}"
APPS = "/apis/apps/v1/namespaces/apps"
KINDS = ("deployments", "statefulsets", "daemonsets")
_TEMPLATE = """policy: enabled
template: |
  {{- if .Values.enabled }}
  containers:
  - name: proxy
    image: proxy:1
  - args:
    - server
    image: "registry.example/SIDECAR:VERSION"
    name: SIDECAR
    volumeMounts:
    - name: socket
      mountPath: /run/socket
  {{- end }}
"""


def image(version: str) -> str:
    return f"registry.example/{DEFAULT.sidecar}:{version}"


def template(version: str) -> str:
    return _TEMPLATE.replace("SIDECAR", DEFAULT.sidecar).replace("VERSION", version)


def manifest(version: str) -> Json:
    """Return what is shipped: no more than the entry."""
    return {"data": {"config": template(version)}}


def _workload(kind: str, name: str, **spec: Any) -> Json:
    labels = {"app": name}
    containers = [{"name": "app", "image": "app:1"}, {"name": DEFAULT.sidecar, "image": "auto"}]
    pod = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    metadata = {"name": name, "namespace": "apps"}
    return {
        "apiVersion": "apps/v1", "kind": kind, "metadata": metadata,
        "spec": {"selector": {"matchLabels": labels}, "template": pod, **spec},
    }  # fmt: skip


class MeshSite:
    """The cluster and the mesh. The kubelets play the injector: they give new pods what the ConfigMap says."""

    def __init__(self, site: UpgradeSite, kubelets: FakeKubelets) -> None:
        self.site, self.kube = site, site.kube
        kubelets.injected = self._injected

    def furnish(self, mesh: str = "1.10.2") -> None:
        """Install agents of the new release, a mesh with the old sidecar, and three workloads with pods."""
        self.site.install([daemon_set("svc:0.1.1")])
        for name in (MESH, "apps"):
            with suppress(Refused):  # it is there
                self.kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        values = json.dumps({"global": {"tag": mesh, "hub": "registry.example"}})
        body = {"metadata": {"name": INJECTOR}, "data": {"config": template("0.1.0"), "values": values}}
        self.kube.call("POST", CONFIG_MAP.rpartition("/")[0], body)
        self.kube.call("POST", f"{APPS}/deployments", _workload("Deployment", "web", replicas=2))
        self.kube.call("POST", f"{APPS}/statefulsets", _workload("StatefulSet", "base", replicas=1, serviceName="base"))
        self.kube.call("POST", f"{APPS}/daemonsets", _workload("DaemonSet", "each"))
        eventually(self.is_running, bool)
        eventually(self._agents_run, bool)

    def _agents_run(self) -> bool:
        pods = self.kube.call("GET", f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
        return [(each.get("status") or {}).get("phase") for each in pods] == ["Running"] * 2

    def pods(self) -> list[Json]:
        found = self.kube.call("GET", "/api/v1/namespaces/apps/pods")["items"]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def images(self) -> set[str]:
        """Return the images of the sidecars that run."""
        running = [each for each in self.pods() if (each.get("status") or {}).get("phase") == "Running"]
        return {part["image"] for each in running for part in each["spec"]["containers"] if part["name"] == DEFAULT.sidecar}

    def is_running(self) -> bool:
        """Return whether all five pods run."""
        phases = [(each.get("status") or {}).get("phase") for each in self.pods()]
        return phases == ["Running"] * 5

    def restarts(self) -> dict[str, str]:
        """Return the times of restarts by workload."""
        found = {}
        for kind in KINDS:
            for each in self.kube.call("GET", f"{APPS}/{kind}")["items"]:
                annotations = each["spec"]["template"]["metadata"].get("annotations") or {}
                found[each["metadata"]["name"]] = annotations.get("kubectl.kubernetes.io/restartedAt", "")
        return found

    def generations(self) -> dict[str, int]:
        return {
            each["metadata"]["name"]: each["metadata"]["generation"]
            for kind in KINDS
            for each in self.kube.call("GET", f"{APPS}/{kind}")["items"]
        }

    def config(self) -> str:
        found: str = self.kube.call("GET", CONFIG_MAP)["data"]["config"]
        return found

    def clear(self) -> None:
        """Delete the workloads with their pods, and the mesh."""
        for kind in KINDS:
            for name in self._names(kind):
                self.kube.call("DELETE", f"{APPS}/{kind}/{name}?propagationPolicy=Background")
        self.kube.forget("poddisruptionbudgets/apps/", f"configmaps/{MESH}/")
        for pod in self.pods():  # those that no workload has
            if not pod["metadata"].get("ownerReferences"):
                self.kube.uproot(f"pods/apps/{pod['metadata']['name']}")
        for kind, root in (("replicasets", APPS), ("pods", "/api/v1/namespaces/apps")):
            eventually(lambda path=f"{root}/{kind}": self.kube.call("GET", path)["items"], lambda items: not items)  # type: ignore[misc]
        self.site.clear()

    def _names(self, kind: str) -> list[str]:
        return [each["metadata"]["name"] for each in self.kube.call("GET", f"{APPS}/{kind}")["items"]]

    def _injected(self) -> dict[str, str]:
        """Return the image of the sidecar that the mesh gives to new pods."""
        with suppress(Refused):
            return {DEFAULT.sidecar: image("0.1.1" if self.config() == template("0.1.1") else "0.1.0")}
        return {}
