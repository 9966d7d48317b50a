"""The systemd unit of the agent."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

RUNTIME_DIRECTORIES: Final = (Path("/run"), Path("/var/run"))  # empty after a start of the machine

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


def render_unit(plugin: str, command: Sequence[str], state_dir: Path, run_dir: Path, writable: Sequence[Path]) -> str:
    """Return the unit's text. The agent may write the two directories and those of `writable` that exist when it starts."""
    runtime = next((root for root in RUNTIME_DIRECTORIES if run_dir.is_relative_to(root) and run_dir != root), None)
    lines = [f"ReadWritePaths={_quote(str(state_dir))}", *(f"ReadWritePaths=-{_quote(str(path))}" for path in writable)]
    if runtime is None:
        lines.append(f"ReadWritePaths={_quote(str(run_dir))}")
    else:
        lines += [f"RuntimeDirectory={_quote(str(run_dir.relative_to(runtime)))}", "RuntimeDirectoryPreserve=yes"]
    return _UNIT.format(
        name=unit_name(plugin),
        plugin=plugin,
        command=" ".join(_quote(word).replace("$", "$$") for word in command),
        paths="\n".join(lines),
        capabilities=" ".join(CAPABILITIES),
    )


def _quote(text: str) -> str:
    """Quote a word as systemd.syntax(7) says; `%` would begin a specifier."""
    text = text.replace("%", "%%")
    if not any(char.isspace() or char in "\"'\\" for char in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
