"""Networks whose addresses Debian's host-local gives."""

from pathlib import Path
from typing import Any

from harness.node import Node
from harness.reference_plugins import REFERENCE, require_plugin

PLUGIN = "host-local"


def offer(node: Node) -> None:
    """Puts the plugin where the node's runtime looks for plugins, unless it is there."""
    require_plugin(PLUGIN)
    link = node.bin_dir / PLUGIN
    if not link.exists():
        link.symlink_to(REFERENCE / PLUGIN)


def withdraw(node: Node) -> None:
    (node.bin_dir / PLUGIN).unlink()


def data_dir(node: Node) -> Path:
    return node.directory / "networks"


def section(node: Node, *groups: str | list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The `ipam` section with these ranges, a subnet standing for a group of one."""
    ranges = [[{"subnet": group}] if isinstance(group, str) else group for group in groups]
    return {"type": PLUGIN, "dataDir": str(data_dir(node)), "ranges": ranges, **more}


def held(node: Node, network: str = "net") -> dict[str, str]:
    """Which address which container has, by the files of the plugin."""
    files = (data_dir(node) / network).glob("*")
    kept = (file for file in files if not file.name.startswith(("lock", "last_reserved_ip")))
    return {file.name: file.read_text().splitlines()[0] for file in kept}
