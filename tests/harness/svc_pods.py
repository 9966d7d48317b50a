"""The pods of the manifests on a real node: the objects around them, the pods themselves, and programs in their containers.

Pods are made from the templates of DaemonSet and Deployment, so no controller of workloads need run.
"""

import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from harness import workloads
from harness.kube import Kube, Refused
from harness.kubelet_node import BIN_DIR, RealNode
from harness.reference_plugins import REFERENCE, require_plugin
from harness.workloads import pods_path, read_pod
from svc import __version__
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import NETWORKING, NONE, ORCH, SYSTEM_NAMESPACE, Settings

Json = dict[str, Any]

SETTINGS = Settings(NETWORKING, ORCH, f"svc:{__version__}", crds=NONE)
NODE_POD, NEXT_NODE_POD, CONTROLLERS_POD = "svc-node", "svc-node-next", "svc-controllers"
AGENT, INSTALL_WATCH, CONTROLLERS = "agent", "install-watch", "controllers"

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_PLACES = {"ConfigMap": "configmaps", "ServiceAccount": "serviceaccounts", "Role": "roles", "RoleBinding": "rolebindings"}
_CLUSTER_PLACES = {"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}
_PLUGINS = ("portmap", "bandwidth", "loopback", "host-local")
_CRI = "/run/containerd.sock"
_numbers = itertools.count()

Change = Callable[[Json], None]
"""A change to the specification of a pod."""


class SvcPods:
    """The objects of the manifests on an API server, without workloads, and pods of svc on one node."""

    def __init__(self, real: RealNode, kube: Kube) -> None:
        self.real = real
        self.kube = kube
        self._templates = {
            each["kind"]: each["spec"]["template"] for each in objects(SETTINGS) if "template" in each.get("spec", {})
        }
        self._objects = [*_surroundings(kube), *filter(_place, objects(SETTINGS))]
        for each in self._objects:
            kube.call("POST", str(_place(each)), each)
        for plugin in _PLUGINS:
            require_plugin(plugin)
            real.host("cp", str(REFERENCE / plugin), str(BIN_DIR / plugin))

    def start_node_pod(self, change: Change = lambda spec: None, *, ready: bool = True, name: str = NODE_POD) -> None:
        """Start a pod of the DaemonSet, and wait until its containers are ready."""
        self._start(name, self._templates["DaemonSet"], change)
        if ready:
            self.wait_ready(name)

    def start_controllers(self, change: Change = lambda spec: None) -> None:
        """Start the pod of the Deployment, in the network of the host, where the API server of tests is."""
        template = self._templates["Deployment"]
        template["spec"]["hostNetwork"] = True
        self._start(CONTROLLERS_POD, template, change)

    def _start(self, name: str, template: Json, change: Change) -> None:
        pod: Json = json.loads(json.dumps({"apiVersion": "v1", "kind": "Pod", **template}))
        pod["metadata"]["name"] = name
        pod["spec"]["nodeName"] = self.real.node.name
        for each in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            each["imagePullPolicy"] = "Never"
        change(pod["spec"])
        self.kube.call("POST", pods_path(SYSTEM_NAMESPACE), pod)

    def read(self, name: str) -> Json:
        """Return a pod of svc; empty if it does not exist."""
        return read_pod(self.kube, name, SYSTEM_NAMESPACE) or {}

    def wait_ready(self, name: str) -> None:
        """Wait until all containers of a pod are ready. The failure has the logs of those that are not."""
        try:
            self.real.wait(f"{name} is ready", lambda: self.is_ready(name))
        except AssertionError as failure:
            states = self.read(name).get("status", {}).get("containerStatuses", ())
            logs = [f"{each['name']}: {each['state']} {self.log(each['name'])[-2000:]}" for each in states if not each["ready"]]
            raise AssertionError(f"{name} is not ready: {logs}") from failure

    def is_ready(self, name: str) -> bool:
        """Return whether all containers of a pod of svc are ready."""
        pod = self.read(name)
        return bool(pod) and workloads.is_ready(pod)

    def end(self, name: str, *, seconds: int = 5) -> None:
        """Delete a pod, and wait until kubelet has ended it; with 0 seconds the server does not wait for kubelet."""
        with suppress(Refused):
            self.kube.call("DELETE", f"{pods_path(SYSTEM_NAMESPACE)}/{name}", {"gracePeriodSeconds": seconds})
        self.real.wait(f"{name} has ended", lambda: not self.read(name))

    def run_in(self, container: str, *command: str, check: bool = True) -> str:
        """Return the output of a program in a running container of a pod of svc."""
        number = f"test-{next(_numbers)}"
        arguments = "task", "exec", "--exec-id", number, self.container_id(container), *command
        done = self.real.host("ctr", "-a", _CRI, "-n", "k8s.io", *arguments, check=check)
        return done.stdout + ("" if check else done.stderr)

    def pid(self, container: str) -> int:
        """Return the process of a container, as the programs of the node see it."""
        lines = self._ctr("task", "list").splitlines()
        (pid,) = (line.split()[1] for line in lines if line.startswith(self.container_id(container)))
        return int(pid)

    def container_id(self, container: str) -> str:
        """Return the identifier of a running container."""
        running = {line.split()[0] for line in self._ctr("task", "list").splitlines() if "RUNNING" in line}
        named = self._ctr("containers", "list", "-q", f'labels."io.kubernetes.container.name"=={container}').split()
        (found,) = running.intersection(named)
        return found

    def log(self, container: str) -> str:
        """Return what the latest container of a name has logged."""
        done = self.real.host("sh", "-c", f"cat $(ls -t /var/log/pods/*/{container}/*.log)", check=False)
        return done.stdout

    def _ctr(self, *arguments: str) -> str:
        return self.real.host("ctr", "-a", _CRI, "-n", "k8s.io", *arguments).stdout

    def close(self) -> None:
        """Delete what this has created on the API server."""
        for name in (NODE_POD, NEXT_NODE_POD, CONTROLLERS_POD):
            with suppress(Refused):
                self.kube.call("DELETE", f"{pods_path(SYSTEM_NAMESPACE)}/{name}?gracePeriodSeconds=0")
        for each in self._objects:
            with suppress(Refused):
                self.kube.call("DELETE", f"{_place(each)}/{each['metadata']['name']}")


def variables(verb: str, pod: str, netns: str) -> dict[str, str]:
    """Return the variables of a runtime's call for a pod."""
    arguments = f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID=container-{pod}"
    return {
        "CNI_COMMAND": verb, "CNI_CONTAINERID": f"container-{pod}", "CNI_NETNS": netns, "CNI_IFNAME": "eth0",
        "CNI_PATH": str(BIN_DIR), "CNI_ARGS": arguments,
    }  # fmt: skip


def _place(each: Json) -> str | None:
    """Return the path of an object's collection; None for kinds that are not written here."""
    kind = each["kind"]
    if kind in _CLUSTER_PLACES:
        return f"{_RBAC}/{_CLUSTER_PLACES[kind]}"
    if kind not in _PLACES:
        return None
    root = "/api/v1" if each["apiVersion"] == "v1" else _RBAC
    return f"{root}/namespaces/{each['metadata']['namespace']}/{_PLACES[kind]}"


def _surroundings(kube: Kube) -> list[Json]:
    """Return what a cluster has, or its administrator writes."""

    def config_map(name: str, **data: str) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
            "data": data,
        }

    address = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(kube.port)}
    authority = {"ca.crt": kube.authority.read_text()}
    return [
        config_map("kube-root-ca.crt", **authority),
        config_map("kubernetes-services-endpoint", **address),
    ]
