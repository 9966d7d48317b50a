"""Root file systems with a Python, from packages of Debian and Ubuntu. Needs root and mmdebstrap.

The packages are unpacked and not configured, so those of another machine need no emulation.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wheels.headers import Package, Unavailable, fetch

_DEBIAN: Final = "http://deb.debian.org/debian"
_UBUNTU: Final = "http://archive.ubuntu.com/ubuntu"
_UBUNTU_PORTS: Final = "http://ports.ubuntu.com/ubuntu-ports"
_KEYRING_PACKAGE: Final = Package(
    f"{_UBUNTU}/pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb",
    "0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f",
)
_KEYRING: Final = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_SYSTEM: Final = ("base-files", "base-passwd", "dash", "coreutils", "grep", "sed", "util-linux", "mount", "libc-bin")
_PROGRAMS: Final = ("bash", "iproute2", "iputils-ping", "procps", "openssl", "nftables", "iptables", "libstdc++6", "musl")
_KEPT: Final = ("PIP_INDEX_URL", "PIP_CERT", "PIP_DEFAULT_TIMEOUT")  # variables
_OF_HOST: Final = ("passwd", "group", "hosts", "resolv.conf", "nsswitch.conf", "ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class _Release:
    name: str
    is_debian: bool

    def mirror(self, architecture: str) -> str:
        if self.is_debian:
            return _DEBIAN
        return _UBUNTU if architecture == "amd64" else _UBUNTU_PORTS


_RELEASES: Final = {
    "3.10": _Release("jammy", is_debian=False),
    "3.11": _Release("bookworm", is_debian=True),
    "3.12": _Release("noble", is_debian=False),
    "3.13": _Release("trixie", is_debian=True),
    "3.14": _Release("resolute", is_debian=False),
}


def root_with(python: str, machine: str, cache: Path) -> Path:
    """Return a root file system with a Python, made once in the cache. Raise Unavailable."""
    release, architecture = _RELEASES[python], _MACHINES[machine]
    root = cache / f"{release.name}-{architecture}"
    if root.exists():
        return root
    if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
        raise Unavailable("a root file system needs root and mmdebstrap (Debian: mmdebstrap)")
    cache.mkdir(parents=True, exist_ok=True)
    draft = root.with_name(f"{root.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    packages = ",".join((f"python{python}", f"python{python}-venv", *_SYSTEM, *_PROGRAMS))
    command = ["mmdebstrap", "--quiet", "--variant=extract", f"--architectures={architecture}", f"--include={packages}"]
    if not release.is_debian:
        command += [f"--keyring={_ubuntu_keyring(cache)}", "--components=main,universe"]
    done = subprocess.run(
        [*command, release.name, str(draft), release.mirror(architecture)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        shutil.rmtree(draft, ignore_errors=True)
        raise Unavailable(f"mmdebstrap cannot make {release.name} for {architecture}: {' '.join(done.stderr.split())[-300:]}")
    if not (draft / "bin/sh").is_symlink():  # older releases make it when they configure dash
        (draft / "bin/sh").symlink_to("dash")
    for name in _OF_HOST:
        if (source := Path("/etc") / name).exists():
            (draft / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / "etc" / name).unlink(missing_ok=True)
            shutil.copy(source, draft / "etc" / name)
    draft.rename(root)
    return root


def run_in(
    root: Path, command: list[str], emulator: str = "", variables: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a root file system, whose mounts end with it. `emulator` is a program of that root."""
    mounts = f"mount --bind {root} {root} && "  # `ip netns` wants the root to be a mount
    mounts += "".join(f"mount --rbind /{name} {root}/{name} && " for name in ("proc", "sys", "dev"))
    mounts += f"mount -t tmpfs none {root}/run && "
    script = f'{mounts}exec chroot {root} "$@"'
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *filter(None, [emulator]), *command]
    kept = {name: value for name, value in os.environ.items() if name in _KEPT}
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **kept, **(variables or {})}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)


def _ubuntu_keyring(cache: Path) -> Path:
    """Return the keys that sign Ubuntu's archive. Debian 12 has no package of them."""
    folder = cache / f"ubuntu-keyring-{_KEYRING_PACKAGE.sha256[:12]}"
    if not folder.exists():
        archive = cache / "keyring.deb"
        archive.write_bytes(fetch(_KEYRING_PACKAGE))
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
        archive.unlink()
    return folder / _KEYRING
