"""A cluster that has svc by one command: a real API server, and nodes that run the containers of the applied DaemonSet.

kubelet and a runtime are too heavy to run three times. Everything that they take from the API server is taken from there.
"""

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.kube import Kube
from harness.netns import Netns
from harness.node import BIN
from harness.pod_installer import issue
from harness.pod_process import PodProcesses
from harness.polling import TIMEOUT_SECONDS, wait_until
from harness.port_forward import PortForward
from harness.reference_plugins import REFERENCE, require_plugin
from harness.routed_node import Fabric, addresses_of
from svc.admin.routes_report import read_report
from svc.deploy.manifests.settings import BIN_DIR, CONF_DIR, SYSTEM_NAMESPACE
from svc.model.errors import Code, PeerError
from svc.names import DEFAULT

Json = dict[str, Any]

_SYSTEM = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}"
_DAEMON_SET = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/daemonsets/svc-node"
_PLUGINS = ("portmap", "bandwidth")


class ManifestCluster:
    """The cluster. It has no node at first."""

    def __init__(self, folder: Path, kube: Kube, stack: ExitStack) -> None:
        self.folder, self.kube, self._stack = folder, kube, stack
        self.fabric = Fabric()
        stack.callback(self.fabric.close)
        self.nodes: dict[str, ManifestNode] = {}
        self._kubeconfig = kube.kubeconfig(folder / "administrator")
        data = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(kube.port)}
        metadata = {"name": "kubernetes-services-endpoint", "namespace": SYSTEM_NAMESPACE}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        kube.call("POST", f"{_SYSTEM}/configmaps", body)

    def apply(self, *options: str) -> str:
        """Bring svc into the cluster by one command, and return its output."""
        command = [str(BIN / "svcctl"), "manifests", *options, "--kubeconfig", str(self._kubeconfig), "--apply"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def add_node(self, name: str, subnet: str, number: int) -> "ManifestNode":
        """Register a node, as kubelet does, and start the containers of the DaemonSet there."""
        given = [{"type": "InternalIP", "address": text} for text in addresses_of(subnet, number).values()]
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        self.kube.call("POST", "/api/v1/nodes", body)
        patch = {"status": {"addresses": given}}
        self.kube.call("PATCH", f"/api/v1/nodes/{name}/status", patch, "application/merge-patch+json")
        netns = self._stack.enter_context(Netns("node"))
        self.fabric.connect(netns, subnet, number)
        way = PortForward(netns, self.kube.port)
        self._stack.callback(way.close)
        node = ManifestNode(self.folder / name, name, netns, self.kube, addresses_of(subnet, number))
        self._stack.callback(node.pod.close)
        self.nodes[name] = node
        return node


class ManifestNode:
    """A node with a pod of the DaemonSet."""

    def __init__(self, folder: Path, name: str, netns: Netns, kube: Kube, addresses: dict[int, str]) -> None:
        folder.mkdir()
        self.name, self.netns, self.addresses = name, netns, addresses
        self._folder, self._kube = folder, kube
        template: Json = kube.call("GET", _DAEMON_SET)["spec"]["template"]
        self._account = template["spec"]["serviceAccountName"]
        self.pod = PodProcesses(folder, netns, template, self._projected, nodeName=name)
        self._bring_plugins()
        variables = kube.call("GET", f"{_SYSTEM}/configmaps/kubernetes-services-endpoint")["data"]
        self.pod.run_init(variables)
        self.pod.start(variables)
        wait_until(self._has_agent)

    def attach(self, sandbox: Netns, pod: str) -> list[str]:
        """Attach a pod by the installed executable, as a runtime does. Return its addresses."""
        spec = {"nodeName": self.name, "containers": [{"name": "c", "image": "c"}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": spec}
        self._kube.call("POST", "/api/v1/namespaces/default/pods", body)
        variables = {
            "CNI_COMMAND": "ADD", "CNI_CONTAINERID": f"container-{pod}", "CNI_NETNS": sandbox.path, "CNI_IFNAME": "eth0",
            "CNI_PATH": BIN_DIR, "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}",
        }  # fmt: skip
        network = json.loads((self.pod.root / CONF_DIR[1:] / DEFAULT.conflist).read_text())
        entry = network["plugins"][0] | {"name": network["name"], "cniVersion": network["cniVersion"]}
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:  # as kubelet does: install-watch initialises the datastore after the agent has started
            done = self.pod.host(f"{BIN_DIR}/{DEFAULT.plugin}", stdin=json.dumps(entry), variables=variables, check=False)
            answer = json.loads(done.stdout)
            if answer.get("code") != Code.DATASTORE_LOCKED:
                break
            assert time.monotonic() < until, (answer, self.pod.log("install-watch"))
            time.sleep(0.2)
        assert done.returncode == 0, answer
        return [ip["address"].partition("/")[0] for ip in answer["ips"]]

    def report(self) -> Json:
        """Return what svc-routes reports; empty while it does not answer."""
        try:
            return read_report(self.pod.root / "run/svc/routes.sock")
        except PeerError:
            return {}

    def await_report(self, condition: Callable[[Json], bool]) -> Json:
        """Return the first report that meets the condition."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while not condition(found := self.report()):
            self.pod.require_running()
            assert time.monotonic() < until, (self.name, found, self.pod.log("routes"))
            time.sleep(0.1)
        return found

    def _has_agent(self) -> bool:
        self.pod.require_running()
        return (self.pod.root / "run/svc/agent.sock").exists()

    def _bring_plugins(self) -> None:
        """Copy the plugins of another project, which most installations of Kubernetes bring."""
        folder = self.pod.root / BIN_DIR[1:]
        folder.mkdir(parents=True)
        for plugin in _PLUGINS:
            require_plugin(plugin)
            (folder / plugin).write_bytes((REFERENCE / plugin).read_bytes())
            (folder / plugin).chmod(0o755)

    def _projected(self, volume: Json) -> Path:
        """Return the content of a ConfigMap, or that of the folder of an account."""
        path = self._folder / f"volume-{volume['name']}"
        path.mkdir(exist_ok=True)
        if "configMap" in volume:
            found = self._kube.call("GET", f"{_SYSTEM}/configmaps/{volume['configMap']['name']}")["data"]
        else:
            token = issue(self._kube, self._account)
            found = {"token": token, "ca.crt": self._kube.authority.read_text(), "namespace": SYSTEM_NAMESPACE}
        for name, text in found.items():
            (path / name).write_text(text)
        return path
