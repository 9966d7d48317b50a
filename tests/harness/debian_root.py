"""Root file systems of the Debian release of this machine, in which Debian packages are installed."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pytest

from harness.enter_netns import entered
from harness.netns import Netns, run
from harness.node import UPLINK, netconf
from harness.polling import wait_until
from harness.shim import ROOT
from harness.skips import NO_DEBIAN_TOOLS

PROGRAMS: Final = ("dpkg-buildpackage", "dh", "dh_python3", "lintian", "help2man", "mmdebstrap")
_CACHE: Final = Path(os.environ.get("SVC_TESTCACHE", "/var/cache/svc-tests")) / "deb"
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_SOURCES: Final = ("CMakeLists.txt", "pyproject.toml", "_core", "svc", "wheels/debian", "wheels/deb.py", "requirements")
_PACKAGES: Final = "python3,libstdc++6"
_TRIM: Final = 'cd "$1" && rm -rf usr/share/doc usr/share/locale usr/share/i18n usr/share/man var/lib/apt/lists var/cache/apt'
_MOUNTS: Final = ("proc", "dev", "run/netns")


def require_tools() -> None:
    """Skip the test if this machine cannot build Debian packages."""
    if any(shutil.which(name) is None for name in PROGRAMS):
        pytest.skip(NO_DEBIAN_TOOLS)


def build_packages() -> list[Path]:
    """Return the packages of the checkout. Build and check them unless they exist for these sources."""
    folder = _CACHE / f"packages-{_key()}"
    if not folder.exists():
        for path in _CACHE.glob("packages-*"):
            shutil.rmtree(path)
        draft = _CACHE / f"draft-{os.getpid()}"
        command = [sys.executable, "-m", "wheels.deb", "--out", str(draft)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
        folder.mkdir()
        for path in draft.glob("*.deb"):
            path.rename(folder / path.name)
        shutil.rmtree(draft)
    return sorted(folder.glob("*.deb"))


def _key() -> str:
    """Return the hash of what the packages are built from."""
    paths = [path for name in _SOURCES for path in (ROOT / name).rglob("*")] + [ROOT / name for name in _SOURCES]
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file() and path.suffix not in (".so", ".pyc")):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def base_archive() -> Path:
    """Return a root file system with the essential packages and Python, made once."""
    release = subprocess.run(["lsb_release", "-cs"], capture_output=True, text=True, check=False).stdout.strip() or "bookworm"
    archive = _CACHE / f"base-{release}.tar"
    if not archive.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        draft = archive.with_suffix(f".{os.getpid()}")
        options = ["--variant=minbase", "--format=tar", f"--include={_PACKAGES}", f"--customize-hook={_TRIM}"]
        run("mmdebstrap", "--quiet", *options, release, str(draft))
        draft.rename(archive)
    return archive


class DebianRoot:
    """A new root file system with an uplink of its own, removed at the end of the `with` block."""

    def __init__(self, directory: Path, *sandboxes: Netns) -> None:
        self.directory = directory
        self.netns = Netns("node")
        self._agent: subprocess.Popen[bytes] | None = None
        assert sandboxes, "the directory of namespaces is mounted now"
        run("ip", "-n", self.netns.name, "-batch", "-", stdin=UPLINK)
        directory.mkdir()
        run("tar", "-xf", str(base_archive()), "-C", str(directory))
        (directory / "run/netns").mkdir(parents=True)
        for name in _MOUNTS:
            run("mount", "--rbind", f"/{name}", str(directory / name))
            run("mount", "--make-rslave", str(directory / name))

    def __enter__(self) -> "DebianRoot":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop_agent()
        for name in _MOUNTS:
            run("umount", "--lazy", "--recursive", str(self.directory / name))
        self.netns.delete()
        shutil.rmtree(self.directory)

    def call(self, *command: str, stdin: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a program inside."""
        with entered(self.netns):
            return subprocess.run(
                ["chroot", str(self.directory), *command],
                capture_output=True,
                text=True,
                check=False,
                input=stdin,
                env={"PATH": _PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **variables},
            )

    def run(self, *command: str, stdin: str = "") -> str:
        """Run a program that must succeed. Return what it printed."""
        done = self.call(*command, stdin=stdin)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def install(self, *packages: Path) -> str:
        """Install packages. Return what that printed."""
        for path in packages:
            shutil.copy(path, self.directory / "tmp")
        return self.run("dpkg", "--install", *(f"/tmp/{path.name}" for path in packages))

    def start_agent(self) -> None:
        """Start the agent by the command of its unit, and wait until it listens."""
        unit = (self.directory / "lib/systemd/system/svc-agent.service").read_text()
        (command,) = [line.partition("=")[2].split() for line in unit.splitlines() if line.startswith("ExecStart=")]
        with entered(self.netns):
            self._agent = subprocess.Popen(["chroot", str(self.directory), *command], stderr=subprocess.DEVNULL)
        wait_until(lambda: (self.directory / "run/svc/agent.sock").exists())

    def stop_agent(self) -> None:
        """Stop the agent, as systemd does."""
        if self._agent:
            self._agent.terminate()
            self._agent.wait()
            self._agent = None

    def files(self) -> set[str]:
        """Return all files but those of running programs."""
        found = set()
        for folder, folders, names in os.walk(self.directory):
            if Path(folder) == self.directory:
                folders[:] = [name for name in folders if name not in ("proc", "dev", "sys", "tmp", "run")]
            found |= {str((Path(folder) / name).relative_to(self.directory)) for name in names}
        return found

    def cni(self, verb: str, container: str, sandbox: Netns) -> Any:
        """Call the installed plugin, which must succeed. Return its result."""
        variables = {"CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_NETNS": sandbox.path, "CNI_IFNAME": "eth0"}
        done = self.call("/usr/lib/cni/svc", stdin=json.dumps(netconf()), CNI_PATH="/usr/lib/cni", **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout or "null")
