"""containerd and kubelet on a temporary node: real pods, attached by the plugin that is installed on it.

They run in the node's network namespace, and in their own mount and process namespace. When its first process ends, the kernel
ends everything else, including shims and containers, and removes every mount. Only control groups remain, and the harness
removes these.
"""

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness import image
from harness.cgroups import Groups, can_be_made
from harness.cluster_node import ClusterNode
from harness.etcd import RARE_COLLECTIONS
from harness.kube import CACHE, Kube, Refused
from harness.netns import run
from harness.node import BIN
from harness.orch import NODES
from harness.state import pod_links

Json = dict[str, Any]

IMAGE = "local/box:1"
BIN_DIR, CONF_DIR = Path("/opt/cni/bin"), Path("/etc/cni/net.d")
TIMEOUT_SECONDS = 100.0  # far longer than any successful wait
_POLL = 0.1
BUSYBOX = Path("/bin/busybox")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_CONTAINERD = """version = 2
root = "{folder}/root"
state = "/run/containerd"
[grpc]
  address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  netns_mounts_under_state_dir = {in_state_dir}
  # without CAP_SYS_RESOURCE a negative oom_score_adj is refused
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{bin_dir}"
    conf_dir = "{conf_dir}"
"""

_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "featureGates": {"IPv6DualStack": True},
    "kubeAPIQPS": 200,
    "kubeAPIBurst": 400,
    "nodeStatusUpdateFrequency": "1s",
    "syncFrequency": "1s",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
    "imageGCHighThresholdPercent": 100,  # images have no registry here: one that is removed never comes back
    "imageGCLowThresholdPercent": 99,
}

# /run is in memory, as on every machine; the data on disk survives a boot.
# With a file of images, the machine's /opt and /etc are the node's own, and mounts reach containers, as on every machine.
_PROGRAM = """set -eu
cd "$1"
if [ -n "$4" ]; then
    mount -t tmpfs tmpfs /opt
    mkdir -p etc.upper etc.work /opt/cni/bin
    mount -t overlay overlay -o lowerdir=/etc,upperdir="$1"/etc.upper,workdir="$1"/etc.work /etc
    mkdir -p /etc/cni/net.d
    rm -f /etc/cni/net.d/*  # networks of programs of this machine
fi
for place in lib log; do mkdir -p var/$place; mount --bind var/$place /var/$place; done
mount -t tmpfs tmpfs /run
[ -z "$4" ] || mount --make-rshared /
mount --bind boot_id /proc/sys/kernel/random/boot_id
mount --bind /dev/null /etc/resolv.conf  # kubelet looks for clouds, by name and at a well-known address
ip route replace unreachable 169.254.169.254
containerd -c containerd.toml >>containerd.log 2>&1 &
until ctr -a /run/containerd.sock version >/dev/null 2>&1; do sleep 0.1; done
ctr -a /run/containerd.sock -n k8s.io images import box.tar >/dev/null
[ -z "$4" ] || ctr -a /run/containerd.sock -n k8s.io images import "$4" >/dev/null
exec "$2" --config kubelet.json --kubeconfig kubeconfig --container-runtime=remote \\
  --container-runtime-endpoint=unix:///run/containerd.sock --root-dir="$1"/kubelet --cert-dir="$1"/certs \\
  --hostname-override="$3" --node-ip=192.0.2.1 >>kubelet.log 2>&1
"""

_AGENT = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'


class RealNode:
    """A node that runs the pods of the API server that are assigned to it, with plugins and networks of these directories.

    With an `archive`, which has an image, these are the usual ones, and nothing is in them: pods install what is needed.
    """

    def __init__(
        self, folder: Path, node: ClusterNode, kube: Kube, conf_dir: Path = CONF_DIR, archive: Path | None = None
    ) -> None:
        self.node = node
        self._kube = kube
        self._folder = folder
        self._archive = archive
        self._groups = Groups()
        texts = {
            "containerd.toml": _CONTAINERD.format(
                folder=folder,
                image=IMAGE,
                bin_dir=BIN_DIR if archive else node.bin_dir,
                conf_dir=conf_dir,
                in_state_dir="false" if archive else "true",
            ),
            "kubelet.json": json.dumps({**_KUBELET, "cgroupRoot": self._groups.parent}),
            "boot_id": _BOOT_ID.read_text(),
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        kube.kubeconfig(folder / "kubeconfig")
        image.write(folder / "box.tar", IMAGE, BUSYBOX)
        self._start()

    def _start(self) -> None:
        archive = str(self._archive or "")
        arguments = str(self._folder), str(CACHE / "bin" / "kubelet"), self.node.name, archive
        self._process = subprocess.Popen(
            [
                "nsenter", f"--net={self.node.netns.path}",
                "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                "sh", "-c", _PROGRAM, "sh", *arguments,
            ],
            stdin=subprocess.DEVNULL, env=os.environ | RARE_COLLECTIONS,
        )  # fmt: skip

    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        """Wait until the condition returns a true value, and return it."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while not (found := condition()):
            assert self._process.poll() is None, self.logs()
            assert time.monotonic() < until, f"{what}: not in time. {self.logs()}"
            time.sleep(_POLL)
        return found

    def wait_ready(self) -> None:
        """Wait until pods can be started."""
        self.wait("the node is ready", self._is_ready)

    def _is_ready(self) -> bool:
        try:
            node = self._kube.call("GET", f"{NODES}/{self.node.name}")
        except Refused:  # kubelet has not registered it yet
            return False
        return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", ()))

    def wait_none(self, what: str, found: Callable[[], list[str]]) -> None:
        """Wait until nothing is found any more; the failure lists what is still found."""
        try:
            self.wait(what, lambda: not found())
        except AssertionError:
            assert found() == [], what
            raise

    def logs(self) -> str:
        files = [file for name in ("containerd.log", "kubelet.log") if (file := self._folder / name).exists()]
        return "\n".join(file.read_text()[-4000:] for file in files)

    def runtime_log(self) -> str:
        """Return the log of containerd."""
        return (self._folder / "containerd.log").read_text()

    @contextmanager
    def rebooted(self) -> Iterator[None]:
        """Simulate a power failure, and boot after the `with` block. Data on disk stays, and the state of the kernel is lost.

        After the boot the agent, containerd and kubelet start.
        """
        self.node.kill_agent()
        self.close()
        self._await_kernel()
        _reset_kernel(self.node)
        yield
        (self._folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self.start_agent()
        self._start()

    def start_agent(self) -> None:
        """Start the agent in the current boot."""
        self.node.start_agent("unshare", "--mount", "sh", "-c", _AGENT, str(self._folder / "boot_id"), str(BIN / "svc-agent"))

    def host(
        self, *command: str, stdin: str = "", check: bool = True, **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program of the node, outside of containers."""
        (first,) = self.wait("the first process has started", self._first_process)
        done = subprocess.run(
            ["nsenter", f"--target={first}", "--mount", "--pid", "--net", *command],
            env={**os.environ, **environment}, input=stdin, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    @property
    def library(self) -> Path:
        """The directory that is /var/lib on the node."""
        return self._folder / "var" / "lib"

    @property
    def root(self) -> str:
        """The path of the node's file system, as processes outside of its namespaces see it."""
        (first,) = self.wait("the first process has started", self._first_process)
        return f"/proc/{first}/root"

    def _first_process(self) -> list[str]:
        pid = self._process.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def _await_kernel(self) -> None:
        """Wait until the kernel has removed the namespaces of ended containers and their links."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while links := pod_links(self.node):
            assert time.monotonic() < until, links
            time.sleep(_POLL)

    def close(self) -> None:
        """End the first process inside. Its parent `unshare` waits for it."""
        for child in self._first_process():
            os.kill(int(child), signal.SIGKILL)
        self._process.wait(TIMEOUT_SECONDS)
        self._groups.remove()


def _reset_kernel(node: ClusterNode) -> None:
    """Remove what a boot starts without: queues, redirections and rules of other plugins, and forwarding."""
    for link in node.netns.links():
        if link != "uplink":
            run("ip", "-n", node.netns.name, "link", "delete", link)
    for tool in ("iptables", "ip6tables"):
        for action in ("-F", "-X"):
            node.netns.run(tool, "-t", "nat", action)
    for path in ("ipv4/conf/all", "ipv6/conf/all"):
        node.netns.run("sh", "-c", f"echo 0 >/proc/sys/net/{path}/forwarding")


def why_not() -> str:
    """Return why such a node cannot run here, or an empty text if it can."""
    missing = [name for name in ("containerd", "ctr", "runc", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: containerd, runc)"
    if not (CACHE / "bin" / "kubelet").exists():
        return "needs kubelet: `make kube-programs` builds it"
    if not can_be_made():
        return "needs control groups that can be written"
    return why_no_busybox()


def why_no_busybox() -> str:
    if not BUSYBOX.exists() or b"/ld-linux" in BUSYBOX.read_bytes():
        return "needs a static busybox (Debian: busybox-static)"
    return ""


@contextmanager
def running(
    folder: Path, node: ClusterNode, kube: Kube, conf_dir: Path = CONF_DIR, archive: Path | None = None
) -> Iterator[RealNode]:
    """Run a node. Skip the test if that is not possible."""
    if reason := why_not():
        pytest.skip(f"no containers: {reason}")
    real = RealNode(folder, node, kube, conf_dir, archive)
    try:
        yield real
    finally:
        real.close()
