"""Section 2.10: the network list with chained plugins. test_chain.py tests their function."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.node import Node
from harness.reference_plugins import REFERENCE, require_plugin
from harness.spec_rows import statement

pytestmark = pytest.mark.root

Json = dict[str, Any]


@pytest.fixture
def install(shared_node: Node, tmp_path: Path) -> Iterator[Callable[..., Json]]:
    """Return a function that makes the network list of svcctl with the chained plugins installed."""
    for plugin in ("portmap", "bandwidth"):
        require_plugin(plugin)
        (shared_node.bin_dir / plugin).symlink_to(REFERENCE / plugin)

    def run(*options: str) -> Json:
        folders = ("--bin-dir", str(shared_node.bin_dir), "--conf-dir", str(tmp_path), "--socket", str(shared_node.socket))
        shared_node.svcctl("install", *folders, *options)
        written: Json = json.loads((tmp_path / "10-svc.conflist").read_text())
        return written

    yield run
    for plugin in ("portmap", "bandwidth"):
        (shared_node.bin_dir / plugin).unlink()


@statement(
    "2.10",
    "shipped",
    "Both plugins are in the shipped network list.",
    "`svcctl install --conf-dir` writes them after svc; `--without` omits one.",
    choice="The version of the list is the newest one that all three speak, not 0.3.0 as in the specification's examples.",
)
def test_installed_list_has_both_plugins(install: Callable[..., Json]) -> None:
    portmap = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
    bandwidth = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
    assert install()["plugins"][1:] == [portmap, bandwidth]
    assert install("--without", "portmap")["plugins"][1:] == [bandwidth]
