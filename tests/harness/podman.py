"""podman on a temporary node, with CNI for its networks: containers without Kubernetes.

Its mounts and processes are in their own namespaces, which end with it. Only control groups remain, and the harness removes
these.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.cgroups import Groups, can_be_made
from harness.image import unpack
from harness.kubelet_node import BUSYBOX, why_no_busybox
from harness.node import Node

TIMEOUT_SECONDS = 20.0

_CONTAINERS = """[network]
network_backend = "cni"
cni_plugin_dirs = ["{bin_dir}"]
network_config_dir = "{conf_dir}"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
[containers]
log_driver = "none"
"""
_PLACES = 'for place in /run /var/lib /var/log; do mount -t tmpfs tmpfs $place; done; touch "$0"; exec sleep 1000000'


class Podman:
    """Runs containers of one file system, which contains busybox, in the networks of `conf_dir`."""

    def __init__(self, folder: Path, node: Node, conf_dir: Path) -> None:
        self._folder = folder
        self._rootfs = folder / "rootfs"
        self._settings = folder / "containers.conf"
        self._settings.write_text(_CONTAINERS.format(bin_dir=node.bin_dir, conf_dir=conf_dir))
        unpack(self._rootfs, BUSYBOX)
        self._groups = Groups()
        ready = folder / "ready"
        self._process = subprocess.Popen(
            [
                "nsenter", f"--net={node.netns.path}", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                "sh", "-c", _PLACES, str(ready),
            ],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + TIMEOUT_SECONDS
        while not ready.exists():
            assert self._process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)

    @property
    def _pid(self) -> int:
        """Return the pid of the first process inside."""
        outer = self._process.pid
        return int(Path(f"/proc/{outer}/task/{outer}/children").read_text())

    def __call__(self, *arguments: str, check: bool = True) -> str:
        """Return the output of a podman command. Raise AssertionError if it fails."""
        places = "--root", str(self._folder / "root"), "--runroot", "/run/podman", "--storage-driver", "vfs"
        done = subprocess.run(
            ["nsenter", f"--target={self._pid}", "--mount", "--pid", "--net", "podman", *places, *arguments],
            env={**os.environ, "CONTAINERS_CONF": str(self._settings)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run(self, name: str, network: str, *options: str, command: tuple[str, ...] = ("sleep", "1000000")) -> None:
        """Start a container that keeps running."""
        fixed = "--detach", "--name", name, "--network", network, "--cgroup-parent", self._groups.parent
        self("run", *fixed, *options, "--rootfs", str(self._rootfs), *command)

    def address(self, name: str, network: str, kind: str = "IPAddress") -> str:
        return self("inspect", name, "--format", f'{{{{(index .NetworkSettings.Networks "{network}").{kind}}}}}')

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._process.wait(TIMEOUT_SECONDS)
        self._groups.remove()


def why_not() -> str:
    """Return why podman with CNI cannot run here, or an empty text if it can."""
    missing = [name for name in ("podman", "runc", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: podman, runc)"
    if not can_be_made():
        return "needs control groups that can be written"
    return why_no_busybox()


@contextmanager
def running(folder: Path, node: Node, conf_dir: Path) -> Iterator[Podman]:
    """Run podman. Skip the test if that is not possible."""
    if reason := why_not():
        pytest.skip(f"no podman: {reason}")
    podman = Podman(folder, node, conf_dir)
    try:
        if podman("info", "--format", "{{.Host.NetworkBackend}}", check=False) != "cni":
            pytest.skip(NO_CNI)
        yield podman
    finally:
        podman.close()


NO_CNI = "podman here does not use CNI, as those from 5.0 on"
