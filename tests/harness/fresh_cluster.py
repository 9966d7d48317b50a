"""A cluster as an administrator meets it: an API server, its controllers and scheduler, and one real node without svc."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from harness import kube as kubes
from harness import kubelet_node
from harness.built_image import BuiltImage
from harness.cluster_node import ClusterNode
from harness.kube import NODE_ADDRESS, Kube, Refused
from harness.kubelet_node import BIN_DIR, RealNode
from harness.netns import Netns, run
from harness.node import BIN, UPLINK
from harness.port_forward import PortForward
from harness.reference_plugins import REFERENCE, require_plugin
from harness.workloads import addresses, is_ready, read_pod
from svc import __version__
from svc.deploy.manifests.settings import SYSTEM_NAMESPACE

Json = dict[str, Any]

NODE = "node1"
IMAGE = f"svc:{__version__}"
_CONTROLLERS = ("daemonset", "deployment", "replicaset", "root-ca-cert-publisher", "nodelifecycle", "garbagecollector")
_PLUGINS = ("portmap", "bandwidth", "loopback", "host-local")
_DAEMON_SET = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/daemonsets/svc-node"
_RESTART = "tests/restarted"


class _Machine:
    """What a real node needs of its machine: a name, and a network that reaches the API server."""

    def __init__(self, kube: Kube) -> None:
        self.name = NODE
        self.netns = Netns("node")
        run("ip", "-n", self.netns.name, "-batch", "-", stdin=UPLINK)
        self._ways = [PortForward(self.netns, kube.port, host=host) for host in ("127.0.0.1", NODE_ADDRESS)]

    def reach(self, port: int) -> None:
        """Let the node and its pods reach a port of the test's loopback at the node's address."""
        self._ways.append(PortForward(self.netns, port, host=NODE_ADDRESS))

    def close(self) -> None:
        for way in self._ways:
            way.close()
        self.netns.delete()


class FreshCluster:
    """The cluster, and commands of its administrator."""

    def __init__(self, folder: Path, kube: Kube, real: RealNode, reach: Callable[[int], None]) -> None:
        self.kube, self.real, self.reach = kube, real, reach
        self.kubeconfig = kube.kubeconfig(folder / "administrator")

    def svcctl(self, *arguments: str, on_node: bool = False) -> str:
        """Run svcctl on the machine of the administrator, or in the network of the node, and return its output."""
        words = [*(self._enter if on_node else ()), str(BIN / "svcctl"), *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def svcctl_lines(self, *arguments: str) -> Iterator[str]:
        """Run svcctl in the network of the node, and yield each line of its output when it comes."""
        words, lines = [*self._enter, str(BIN / "svcctl"), *arguments], list[str]()
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                yield line.rstrip()
        assert process.returncode == 0, f"{arguments}: {''.join(lines)}"

    @property
    def _enter(self) -> tuple[str, ...]:
        return "nsenter", f"--net={self.real.node.netns.path}"

    def apply(self, *options: str) -> str:
        """Bring svc into the cluster by one command."""
        return self.svcctl("manifests", "--image", IMAGE, *options, "--kubeconfig", str(self.kubeconfig), "--apply")

    def pods(self) -> list[Json]:
        """Return the pods of svc."""
        found: list[Json] = self.kube.call("GET", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods")["items"]
        return found

    def await_svc(self, *workloads: str) -> None:
        """Wait until each workload has a pod, and all pods of svc are ready."""

        def ready() -> bool:
            found = self.pods()
            names = [pod["metadata"]["name"] for pod in found]
            return all(any(name.startswith(each) for name in names) for each in workloads) and all(map(is_ready, found))

        self._wait("svc is ready", ready)

    def await_address(self, name: str) -> str:
        """Wait until a pod is ready, and return its first address."""
        found: list[str] = self._wait(f"{name} has an address", lambda: addresses(read_pod(self.kube, name)))
        return found[0]

    def _wait(self, what: str, condition: Callable[[], Any]) -> Any:
        """Wait until the condition returns a true value, and return it. The failure has what the pods of svc say."""
        try:
            return self.real.wait(what, condition)
        except AssertionError as failure:
            states = [(each["metadata"]["name"], each["status"]) for each in self.pods()]
            logs = self.real.host("sh", "-c", "tail -n 20 /var/log/pods/kube-system_*/*/*.log", check=False).stdout
            raise AssertionError(f"{what}: not in time. {states} {logs}") from failure

    def daemon_set(self) -> Json:
        return self.kube.call("GET", _DAEMON_SET)

    def restart(self) -> None:
        """Begin a rolling update, as `kubectl rollout restart` does."""
        change = {"spec": {"template": {"metadata": {"annotations": {_RESTART: str(time.time())}}}}}
        self.kube.call("PATCH", _DAEMON_SET, change, "application/strategic-merge-patch+json")

    def is_updated(self) -> bool:
        """Return whether the rolling update has ended on all nodes."""
        found = self.daemon_set()
        status, generation = found["status"], found["metadata"]["generation"]
        counts = [status.get(name, 0) for name in ("updatedNumberScheduled", "numberAvailable")]
        return status.get("observedGeneration") == generation and counts == [status["desiredNumberScheduled"]] * 2


@contextmanager
def running(folder: Path, image: BuiltImage) -> Iterator[FreshCluster]:
    """Run a cluster whose node has the image, the plugins of other projects, and nothing of svc."""
    with ExitStack() as opened:
        (folder / "kube").mkdir()
        kube = opened.enter_context(kubes.running(folder / "kube", has_workloads=True, audits=True))
        opened.enter_context(kube.controllers(*_CONTROLLERS))
        opened.enter_context(kube.scheduler())
        machine = _Machine(kube)
        opened.callback(machine.close)
        (folder / "real").mkdir()
        node = cast("ClusterNode", machine)  # a real node without an agent of the harness uses no more of it
        real = opened.enter_context(kubelet_node.running(folder / "real", node, kube, archive=image.archive))
        _furnish(kube)
        real.wait("kubelet has registered the node", lambda: _is_registered(kube))
        for plugin in _PLUGINS:
            require_plugin(plugin)
            real.host("cp", str(REFERENCE / plugin), str(BIN_DIR / plugin))
        _await_image(real)
        yield FreshCluster(folder, kube, real, machine.reach)


def _furnish(kube: Kube) -> None:
    """Write what a cluster without a service proxy needs: the address at which pods reach the API server."""
    data = {"KUBERNETES_SERVICE_HOST": NODE_ADDRESS, "KUBERNETES_SERVICE_PORT": str(kube.port)}
    metadata = {"name": "kubernetes-services-endpoint", "namespace": SYSTEM_NAMESPACE}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    kube.call("POST", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps", body)


def _is_registered(kube: Kube) -> bool:
    with suppress(Refused):
        return bool(kube.call("GET", f"/api/v1/nodes/{NODE}"))
    return False


def _await_image(real: RealNode) -> None:
    def images() -> str:
        return real.host("ctr", "-a", "/run/containerd.sock", "-n", "k8s.io", "images", "list", "-q", check=False).stdout

    real.wait("containerd has the image", lambda: f"/{IMAGE}" in images())
