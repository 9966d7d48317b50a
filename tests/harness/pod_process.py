"""Containers of a pod as processes: command, variables, mounts and capabilities of its specification, without a runtime.

Each process has a mount namespace of its own, and a root directory that has the programs of this machine and the mounts of the
container, and nothing else. It runs in the network namespace of its node.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

from harness.netns import Netns
from harness.node import BIN
from harness.shim import ROOT

Json = dict[str, Any]

STOP_SECONDS = 20.0
_OF_MACHINE = ("/proc", "/sys", "/run/netns")  # those that the node shares with the machine

# The arguments are the root directory, the mounts as SOURCE=TARGET, `--`, and the command.
_ENTER = """set -eu
root=$1; shift
mount -t tmpfs tmpfs "$root"
for each in /bin /sbin /lib /lib32 /lib64 /usr; do
    if [ -L $each ]; then cp -P $each "$root$each"
    elif [ -d $each ]; then mkdir "$root$each"; mount --bind $each "$root$each"
    fi
done
for each in /proc /sys /dev; do mkdir "$root$each"; mount --rbind $each "$root$each"; done
mkdir "$root"/etc "$root"/run "$root"/var
cp -RP /etc/alternatives /etc/passwd "$root"/etc
ln -s ../run "$root"/var/run
while [ "$1" != -- ]; do
    source=${1%%=*} target=$root${1#*=}; shift
    if [ -d "$source" ]; then mkdir -p "$target"; else mkdir -p "${target%/*}"; : >"$target"; fi
    mount --rbind "$source" "$target"
done
shift
exec chroot "$root" "$@"
"""


class PodProcesses:
    """The pod of a template on one node. `folder` has the node's directories, `root` those of the host.

    `projected` returns a folder with the content of a volume that is not one of the host."""

    def __init__(self, folder: Path, netns: Netns, template: Json, projected: Callable[[Json], Path], **fields: str) -> None:
        self.folder = folder
        self.root = folder / "host"
        self._netns = netns
        self._spec: Json = template["spec"]
        self._projected = projected
        self._fields = fields
        self._volumes = {each["name"]: each for each in self._spec["volumes"]}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def log(self, name: str) -> str:
        """Return what a container has written."""
        file = self.folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def run_init(self, variables: Mapping[str, str]) -> None:
        """Run each init container to its end."""
        for container in self._spec["initContainers"]:
            process = self._begin(container, variables)
            assert process.wait(60) == 0, self.log(container["name"])

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the other containers."""
        for container in self._spec["containers"]:
            self._running[container["name"]] = self._begin(container, variables)

    def require_running(self) -> None:
        """Require that no container has ended."""
        ended = [name for name, process in self._running.items() if process.poll() is not None]
        assert not ended, [(name, self.log(name)) for name in ended]

    def host(
        self, *command: str, stdin: str = "", check: bool = True, variables: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program of the host, which has the directories that the pod mounts."""
        paths = [each["hostPath"]["path"] for each in self._volumes.values() if "hostPath" in each]
        line = self._line("host", {path: self._source(path) for path in paths}, list(command))
        environment = {"PATH": f"{BIN}:{os.environ['PATH']}", **(variables or {})}
        process = self._netns.begin(*line, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment)
        out, err = (each.decode() for each in process.communicate(stdin.encode()))
        assert not check or process.returncode == 0, f"{command}: {out}{err}"
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def close(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _begin(self, container: Json, variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        name = container["name"]
        given = {each["name"]: each.get("value") or self._field(each) for each in container.get("env", ())}
        environment = {**(variables if container.get("envFrom") else {}), **given, "PATH": f"{BIN}:{os.environ['PATH']}"}
        mounts = {each["mountPath"]: self._content(name, each["name"]) for each in container["volumeMounts"]}
        added = container["securityContext"]["capabilities"].get("add", ())
        bounding = ",".join(["-all", *(f"+{each.lower()}" for each in added)])
        command = ["setpriv", f"--bounding-set={bounding}", "--inh-caps=-all", *container["command"], *container["args"]]
        with (self.folder / f"{name}.log").open("ab") as log:
            return self._netns.begin(*self._line(name, mounts, command), stdout=log, stderr=log, stdin=DEVNULL, env=environment)

    def _line(self, name: str, mounts: Mapping[str, Path], command: list[str]) -> list[str]:
        """Return the command that mounts everything and then runs the command. Outer directories are mounted first."""
        root = self.folder / f"{name}-root"
        root.mkdir(exist_ok=True)
        own = {str(path): path for path in _programs()}
        words = [f"{source}={target}" for target, source in (*sorted(mounts.items()), *sorted(own.items()))]
        return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _ENTER, "sh", str(root), *words, "--", *command]

    def _content(self, container: str, name: str) -> Path:
        volume = self._volumes[name]
        if "hostPath" in volume:
            return self._source(volume["hostPath"]["path"], is_file=volume["hostPath"]["type"].startswith("File"))
        if "emptyDir" not in volume:
            return self._projected(volume)
        path = self.folder / f"{container}-{name}"
        path.mkdir(exist_ok=True)
        return path

    def _source(self, path: str, *, is_file: bool = False) -> Path:
        """Return the directory of the host, which is made if it does not exist."""
        if path.startswith(_OF_MACHINE):
            return Path(path)
        found = self.root / path.removeprefix("/").replace("var/run/", "run/", 1)
        if found.exists():
            return found
        found.parent.mkdir(parents=True, exist_ok=True)
        if is_file:
            found.touch()
        else:
            found.mkdir()
        return found

    def _field(self, variable: Json) -> str:
        return self._fields[variable["valueFrom"]["fieldRef"]["fieldPath"].rpartition(".")[2]]


def _programs() -> list[Path]:
    """Return the directories with Python and svc, which may be anywhere."""
    found = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    return [path for path in found if not any(path.is_relative_to(other) for other in (Path("/usr"), *(found - {path})))]
