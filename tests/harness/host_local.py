"""Networks with addresses from Debian's host-local."""

from pathlib import Path
from typing import Any

from harness.node import Node
from harness.reference_plugins import REFERENCE, require_plugin

PLUGIN = "host-local"


def offer(node: Node) -> None:
    """Put the plugin into the node's plugin directory, unless it is there."""
    require_plugin(PLUGIN)
    link = node.bin_dir / PLUGIN
    if not link.exists():
        link.symlink_to(REFERENCE / PLUGIN)


def withdraw(node: Node) -> None:
    (node.bin_dir / PLUGIN).unlink()


def data_dir(node: Node) -> Path:
    return node.directory / "networks"


def section(node: Node, *groups: str | list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return the `ipam` section with these ranges. A subnet stands for a group of one range."""
    ranges = [[{"subnet": group}] if isinstance(group, str) else group for group in groups]
    return {"type": PLUGIN, "dataDir": str(data_dir(node)), "ranges": ranges, **more}


def held(node: Node, network: str = "net") -> dict[str, str]:
    """Return the addresses with their containers, from the files of the plugin."""
    files = (data_dir(node) / network).glob("*")
    kept = (file for file in files if not file.name.startswith(("lock", "last_reserved_ip")))
    return {file.name: file.read_text().splitlines()[0] for file in kept}
