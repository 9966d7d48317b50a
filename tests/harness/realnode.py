"""containerd and kubelet on a throw-away node: real pods, wired by the plugin that is installed on it.

They live in the node's network namespace, and in a mount and a process namespace of their own: when the first process of that
ends, everything ends, shims and containers included, and every mount is gone. What they would write to /run, /var/lib and
/var/log is in memory. Only control groups are left, and removed.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from harness import image
from harness.cluster_node import ClusterNode
from harness.kube import CACHE, Kube

Json = dict[str, Any]

IMAGE = "local/box:1"
PATIENCE = 120.0  # seconds; nothing waits that long unless it is broken
_BUSYBOX = Path("/bin/busybox")
_CGROUPS = Path("/sys/fs/cgroup")

_CONTAINERD = """version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/cd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  netns_mounts_under_state_dir = true
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
    "nodeStatusUpdateFrequency": "1s",
    "syncFrequency": "1s",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
}

_PROGRAM = """set -eu
cd "$1"
for place in /run /var/lib /var/log; do mount -t tmpfs tmpfs $place; done
mount --bind /dev/null /etc/resolv.conf  # kubelet looks for clouds, by name and at a well-known address
ip route add unreachable 169.254.169.254
containerd -c containerd.toml >containerd.log 2>&1 &
until ctr -a cd.sock version >/dev/null 2>&1; do sleep 0.1; done
ctr -a cd.sock -n k8s.io images import box.tar >/dev/null
exec "$2" --config kubelet.json --kubeconfig kubeconfig --container-runtime=remote \\
  --container-runtime-endpoint=unix://"$1"/cd.sock --root-dir="$1"/kubelet --cert-dir="$1"/certs \\
  --hostname-override="$3" --node-ip=192.0.2.1 >kubelet.log 2>&1
"""


class RealNode:
    """Runs pods of the API server that are meant for this node, with plugins and networks of these directories."""

    def __init__(self, folder: Path, node: ClusterNode, kube: Kube, conf_dir: Path) -> None:
        self._folder = folder
        self._kube = kube
        texts = {
            "containerd.toml": _CONTAINERD.format(folder=folder, image=IMAGE, bin_dir=node.bin_dir, conf_dir=conf_dir),
            "kubelet.json": json.dumps(_KUBELET),
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        kube.kubeconfig(folder / "kubeconfig")
        image.write(folder / "box.tar", IMAGE, _BUSYBOX)
        self._groups = _groups()
        self._process = subprocess.Popen(
            [
                "nsenter", f"--net={node.netns.path}",
                "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                "sh", "-c", _PROGRAM, "sh", str(folder), str(CACHE / "bin" / "kubelet"), node.name,
            ],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        """What the condition gives when it is not nothing any more."""
        until = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert self._process.poll() is None, self.logs()
            assert time.monotonic() < until, f"{what}: in vain. {self.logs()}"
            time.sleep(0.1)
        return found

    def logs(self) -> str:
        files = [file for name in ("containerd.log", "kubelet.log") if (file := self._folder / name).exists()]
        return "\n".join(file.read_text()[-4000:] for file in files)

    def close(self) -> None:
        """The first process inside is ended, not `unshare`, whose child it is: it waits for it."""
        pid = self._process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        self._process.wait(PATIENCE)
        until = time.monotonic() + PATIENCE
        while (left := _groups() - self._groups) and time.monotonic() < until:
            for group in sorted(left, reverse=True):
                with suppress(OSError):  # not empty yet
                    group.rmdir()


def why_not() -> str:
    """Why there can be no such node here; empty when there can."""
    missing = [name for name in ("containerd", "ctr", "runc", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: containerd, runc)"
    if not _BUSYBOX.exists() or b"/ld-linux" in _BUSYBOX.read_bytes():
        return "needs a static busybox (Debian: busybox-static)"
    if not (CACHE / "bin" / "kubelet").exists():
        return "needs kubelet, which is built with the API server"
    if not any(os.access(group, os.W_OK) for group in _CGROUPS.glob("**/")):
        return "needs control groups that can be written"
    return ""


@contextmanager
def running(folder: Path, node: ClusterNode, kube: Kube, conf_dir: Path) -> Iterator[RealNode]:
    """Skips where there can be none."""
    if reason := why_not():
        pytest.skip(f"no containers: {reason}")
    real = RealNode(folder, node, kube, conf_dir)
    try:
        yield real
    finally:
        real.close()


def _groups() -> set[Path]:
    """Control groups of containers."""
    tops = [top for pattern in ("k8s.io", "*/k8s.io") for top in _CGROUPS.glob(pattern)]
    return {path for top in tops for path in (top, *top.glob("**/")) if path.is_dir()}
