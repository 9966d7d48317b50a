"""The systemd units: of the agent, one for each state directory and all names profiles that it serves, and of svc-routes."""

import re
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

# Network interfaces, routes and sysctls; entering the network namespaces of pods; precedence of short calls.
CAPABILITIES: Final = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_NICE")

ROUTES_CAPABILITY: Final = "CAP_NET_ADMIN"
ROUTES_MARK: Final = "-routes."  # in the name of a unit of svc-routes

_NO_NAME: Final = re.compile(r"[^\w.]+", re.ASCII)  # what a unit's name does not have here
_COMMAND: Final = " -m svc.{}.main run --state-dir "  # in the unit of each agent

_REST: Final = """\
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
RestrictNamespaces={namespaces}
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""

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
{rest}"""

_ROUTES_UNIT: Final = """\
# Written by `svcctl install --systemd --routes`. Changes belong into a drop-in: systemctl edit {name}
[Unit]
Description=Routes between nodes for the CNI plugin {plugin}
After=network.target
StartLimitIntervalSec=0

[Service]
Type=exec
Environment=SVC_ROUTES_MODE=auto
ExecStart={command}
Restart=always
RestartSec=5
TimeoutStopSec=30
KillMode=mixed
OOMScoreAdjust=-900
UMask=0077
{paths}
{rest}"""


def find_unit(folder: Path, plugin: str, state_dir: Path, program: str = "agent") -> Path:
    """Return the path of the unit that belongs to a main plugin and a state directory. Raise OSError.

    Its name has the state directory if the program of another one has the unit with the name of the plugin alone."""
    path = folder / f"{plugin}-{program}.service"
    own = folder / f"{plugin}-{program}.{_NO_NAME.sub('-', str(state_dir)[1:])}.service"
    text, command = path.read_text(errors="replace") if path.exists() else "", _COMMAND.format(program)
    is_of_another = command in text and f"{command}{_word(str(state_dir))} " not in text
    return own if is_of_another or own.exists() else path


def plugin_of(name: str) -> str:
    """Return the main plugin that a unit's name belongs to."""
    return name.partition("-agent.")[0]


def make_directories(paths: Sequence[Path]) -> None:
    """Make the directories that systemd does not make when the unit starts. Raise OSError."""
    for path in paths:
        if _kind_of(path) is None:
            create_directories(path)


def _kind_of(path: Path) -> tuple[str, Path] | None:
    """Return the unit's option by which systemd makes a directory, and its value; None if it cannot make this one."""
    root = next((root for root in _ROOTS if path.is_relative_to(root) and path != root), None)
    return (_ROOTS[root], path.relative_to(root)) if root else None


def render_unit(name: str, command: Sequence[str], state_dir: Path, run_dir: Path, writable: Sequence[Path]) -> str:
    """Return the unit's text. The agent may write all of these directories.

    Those that systemd does not make must exist when the unit starts (see `make_directories`): a missing one of `writable` is
    not writable, and without another one the unit does not start."""
    return _UNIT.format(
        name=name,
        plugin=plugin_of(name),
        command=" ".join(map(_word, command)),
        paths="\n".join(_path_lines(state_dir, run_dir, writable)),
        rest=_REST.format(capabilities=" ".join(CAPABILITIES), namespaces="net"),
    )


def render_routes_unit(name: str, command: Sequence[str], state_dir: Path, run_dir: Path, writable: Sequence[Path]) -> str:
    """Return the text of the unit of svc-routes, with the same rules for directories.

    The mode is a variable, so that a drop-in can change it."""
    return _ROUTES_UNIT.format(
        name=name,
        plugin=name.partition(ROUTES_MARK)[0],
        command=" ".join(map(_word, command)),
        paths="\n".join(_path_lines(state_dir, run_dir, writable)),
        rest=_REST.format(capabilities=ROUTES_CAPABILITY, namespaces="yes"),
    )


def _path_lines(state_dir: Path, run_dir: Path, writable: Sequence[Path]) -> list[str]:
    lines = {f"ReadWritePaths={_quote(str(state_dir))}": None}  # in order, each once
    lines |= {directory_line(path, "" if path == run_dir else "-"): None for path in (run_dir, *writable)}
    is_preserved = any(line.startswith("RuntimeDirectory=") for line in lines)
    return [*lines, "RuntimeDirectoryPreserve=yes"] if is_preserved else [*lines]


def directory_line(path: Path, sign: str = "-") -> str:
    """Return the line of a unit whose agent may write a directory; with the sign, the directory may be missing."""
    kind = _kind_of(path)
    return f"{kind[0]}={_quote(str(kind[1]))}" if kind else f"ReadWritePaths={sign}{_quote(str(path))}"


def _word(text: str) -> str:
    """Quote a word of a command, in which `$` would begin a variable."""
    return _quote(text).replace("$", "$$")


def _quote(text: str) -> str:
    """Quote a word as systemd.syntax(7) says; `%` would begin a specifier."""
    text = text.replace("%", "%%")
    if not any(char.isspace() or char in "\"'\\" for char in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
