"""The systemd unit of the agent: one for each state directory, shared by all names profiles that it serves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from svc.private_directory import create_directories

# systemd makes directories below these when the unit starts, and lets the service write them. The first two are empty after
# the machine starts.
_ROOTS: Final = {
    Path("/run"): "RuntimeDirectory",
    Path("/var/run"): "RuntimeDirectory",
    Path("/var/log"): "LogsDirectory",
    Path("/var/lib"): "StateDirectory",
}

HOST_LOCAL_DIR: Final = Path("/var/lib/cni")  # where host-local keeps its addresses

# Network interfaces, routes and sysctls; and entering the network namespaces of pods.
CAPABILITIES: Final = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN")

_UNIT: Final = """\
# Written by `svcctl install --systemd`. Changes belong into a drop-in: systemctl edit {name}
[Unit]
Description=Agent of the CNI plugin {plugin}
After=local-fs.target
Before=containerd.service crio.service kubelet.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
WatchdogSec=60
Restart=always
RestartSec=1
TimeoutStopSec=30
KillMode=mixed
OOMScoreAdjust=-900
Nice=-10
UMask=0077
{paths}
CapabilityBoundingSet={capabilities}
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
DevicePolicy=closed
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6
RestrictNamespaces=net
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""


def unit_name(plugin: str) -> str:
    """Return the name of the unit that belongs to a main plugin."""
    return f"{plugin}-agent.service"


def plugin_of(name: str) -> str:
    """Return the main plugin that a unit's name belongs to."""
    return name.removesuffix("-agent.service")


def make_directories(paths: Sequence[Path]) -> None:
    """Make the directories that systemd does not make when the unit starts. Raise OSError."""
    for path in paths:
        if _kind_of(path) is None:
            create_directories(path)


def _kind_of(path: Path) -> tuple[str, Path] | None:
    """Return the unit's option by which systemd makes a directory, and its value; None if it cannot make this one."""
    root = next((root for root in _ROOTS if path.is_relative_to(root) and path != root), None)
    return (_ROOTS[root], path.relative_to(root)) if root else None


def render_unit(plugin: str, command: Sequence[str], state_dir: Path, run_dir: Path, writable: Sequence[Path]) -> str:
    """Return the unit's text. The agent may write all of these directories.

    Those that systemd does not make must exist when the unit starts (see `make_directories`): a missing one of `writable` is
    not writable, and without another one the unit does not start."""
    return _UNIT.format(
        name=unit_name(plugin),
        plugin=plugin,
        command=" ".join(_quote(word).replace("$", "$$") for word in command),
        paths="\n".join(_path_lines(state_dir, run_dir, writable)),
        capabilities=" ".join(CAPABILITIES),
    )


def _path_lines(state_dir: Path, run_dir: Path, writable: Sequence[Path]) -> list[str]:
    lines = {f"ReadWritePaths={_quote(str(state_dir))}": None}  # in order, each once
    for path in (run_dir, *writable):
        kind = _kind_of(path)
        sign = "" if path == run_dir else "-"
        lines[f"{kind[0]}={_quote(str(kind[1]))}" if kind else f"ReadWritePaths={sign}{_quote(str(path))}"] = None
    is_preserved = any(line.startswith("RuntimeDirectory=") for line in lines)
    return [*lines, "RuntimeDirectoryPreserve=yes"] if is_preserved else [*lines]


def _quote(text: str) -> str:
    """Quote a word as systemd.syntax(7) says; `%` would begin a specifier."""
    text = text.replace("%", "%%")
    if not any(char.isspace() or char in "\"'\\" for char in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
