"""`svcctl explain` and `svcctl ipam map|split` on the embedded store, without the Kubernetes API."""

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.svcctl import Cli
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService

POOL = '{"apiVersion": "svc.internal/v3", "kind": "IPPool", "metadata": {"name": "%s"}, "spec": {"cidr": "%s"}}'


@pytest.fixture
def netconf(tmp_path: Path) -> Path:
    path = tmp_path / "netconf.json"
    write(path)
    return path


@pytest.fixture
def cli(tmp_path: Path, netconf: Path) -> Cli:
    """Return svcctl on a store with the pools `p` and `q`."""
    cli = Cli(tmp_path, "--netconf", str(netconf))
    for name, cidr in (("p", "10.65.0.0/24"), ("q", "10.66.0.0/24")):
        cli.prints("pool", "apply", "-f", "-", stdin=POOL % (name, cidr))
    return cli


def write(path: Path, **changes: Any) -> None:
    config = {"cniVersion": "1.1.0", "name": "net", "type": "svc", "datastore_type": "embedded", "nodename": "n1"}
    path.write_text(json.dumps({**config, "ipam": {"type": "svc-ipam"}, **changes}))


def test_explanation_names_pools_blocks_limits_and_outcome(cli: Cli) -> None:
    lines = cli.prints("explain", "web-1").splitlines()
    assert lines[0] == "An ADD of pod default/web-1 on node n1, network net"
    assert [line.split()[:3] for line in lines if line.startswith(("p ", "q "))] == [
        ["p", "10.65.0.0/24", "serves"],
        ["q", "10.66.0.0/24", "serves"],
    ]
    assert "Limits: no strict affinity, 0 blocks of any number, cooldown 0 s" in lines
    assert lines[-1].startswith("The ADD would get: 10.65.0.")


def test_pools_of_the_network_are_the_only_ones(cli: Cli, netconf: Path) -> None:
    write(netconf, ipam={"type": "svc-ipam", "ipv4_pools": ["q"]})
    (document,) = json.loads(cli.prints("explain", "shop/web-1", "-o", "json"))
    verdicts = {pool["name"]: pool["verdict"] for pool in document["families"]["IPv4"]["pools"]}
    assert verdicts == {"q": "", "p": "is not asked for"}
    assert document["outcome"]["addresses"][0].startswith("10.66.0.")


def test_blocks_and_strict_settings_are_shown(cli: Cli, tmp_path: Path) -> None:
    with closing(EmbeddedStore(tmp_path / "state" / EMBEDDED_FILE)) as store:
        IpamService(store, "n1").assign(Assign("h", {"node": "n1"}))
    cli.prints("ipam", "configure", "--strictaffinity", "true", "--auto-allocate-blocks", "false")
    text = cli.prints("explain", "web-1")
    assert [line.split()[2:] for line in text.splitlines() if line.startswith("10.65.0.")] == [["1", "63", "0", "0"]]
    assert "strict affinity, no further blocks (autoAllocateBlocks is false), 1 blocks" in text


def test_refused_add_is_told_with_its_code(cli: Cli, netconf: Path) -> None:
    write(netconf, ipam={"type": "svc-ipam", "ipv4_pools": ["missing"]})
    assert "The ADD would fail with code 102: " in cli.prints("explain", "web-1")
    (document,) = json.loads(cli.prints("explain", "web-1", "-o", "json"))
    assert document["outcome"]["error"]["code"] == 102


def test_another_plugin_is_not_executed(cli: Cli, netconf: Path) -> None:
    write(netconf, ipam={"type": "host-local", "subnet": "10.9.0.0/24"})
    assert cli.prints("explain", "web-1").splitlines()[-1] == (
        "The ADD would get what IPAM plugin host-local assigns: it is not executed here"
    )


def test_explanation_needs_a_network(tmp_path: Path) -> None:
    assert "no network configuration is known" in Cli(tmp_path).fails("--embedded", "explain", "web-1")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "nothing to explain: give [NAMESPACE/]POD, such as default/web-1, or --container ID"),
        (["web-1", "--container", "c1"], "--container shows past calls: give neither a pod nor --node nor --ifname with it"),
        (["--node", "node1", "--container", "c1"], "--container shows past calls"),
        (["--container", ""], "is empty: give the ID of a container, or its beginning"),
    ],
)
def test_either_a_pod_or_a_container_is_explained(cli: Cli, arguments: list[str], error: str) -> None:
    assert error in " ".join(cli.fails("explain", *arguments, code=2).split())


@pytest.mark.parametrize("pod", ["a/b/c", "default/", ""])
def test_malformed_pod_is_an_error_of_use(cli: Cli, pod: str) -> None:
    assert "is not [NAMESPACE/]POD" in cli.fails("explain", pod, code=2)


def test_map_shows_the_blocks_of_this_node_as_its_own(cli: Cli, tmp_path: Path) -> None:
    """Its name is that of the network configuration, unless another node is given."""
    with closing(EmbeddedStore(tmp_path / "state" / EMBEDDED_FILE)) as store:
        IpamService(store, "n1").assign(Assign("net.c1", {"node": "n1"}, pools={4: ("p",)}))
    assert "10.65.0.0/26   o1" in cli.prints("ipam", "map", "p")
    cli.changes("node", "apply", "node2")
    assert "10.65.0.0/26   f1" in cli.prints("ipam", "map", "p", "--node", "node2")
    assert "node 'nosuch' does not exist, and has no blocks" in cli.fails("ipam", "map", "p", "--node", "nosuch")


def test_map_is_printed_and_drawn(cli: Cli, tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    assert cli.prints("ipam", "map", "p", "--svg", str(picture)).startswith("IP pool p 10.65.0.0/24: 4 blocks of /26")
    assert picture.read_text().startswith("<svg ")
    (document,) = json.loads(cli.prints("ipam", "map", "p", "-o", "json"))
    assert (document["count"], document["blocks"]) == (4, [])
    assert "cannot be written" in cli.fails("ipam", "map", "p", "--svg", str(tmp_path / "no" / "p.svg"))


def test_picture_replaces_regular_files_only(cli: Cli, tmp_path: Path) -> None:
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    target.write_text("kept")
    link.symlink_to(target)
    os.mkfifo(pipe, 0o600)
    assert f"--svg {str(link)!r} is a symbolic link" in cli.fails("ipam", "map", "p", "--svg", str(link))
    assert f"--svg {str(pipe)!r} is a named pipe" in cli.fails("ipam", "map", "p", "--svg", str(pipe))
    assert "--svg '-' is not the name of a file" in cli.fails("ipam", "map", "p", "--svg", "-")
    assert (link.is_symlink(), pipe.is_fifo(), target.read_text()) == (True, True, "kept")


def test_split_prints_the_new_pools(cli: Cli) -> None:
    assert "the datastore is not locked" in cli.fails("ipam", "split", "2", "--pool", "p")
    cli.prints("clusterinfo", "lock")
    lines = cli("ipam", "split", "2", "--pool", "p").stdout.splitlines()
    assert lines[:3] == ["split-p-0 created: 10.65.0.0/25", "split-p-1 created: 10.65.0.128/25", "p deleted"]


def test_node_that_does_not_exist_is_refused(cli: Cli) -> None:
    """That of the network configuration may have neither blocks nor a registration."""
    assert cli.prints("explain", "web-1", "--node", "n1").splitlines()[-1].startswith("The ADD would get: ")
    assert cli.fails("explain", "web-1", "--node", "nope").startswith("Error: node 'nope' does not exist, and has no blocks: ")


def test_error_of_a_picture_names_its_file(cli: Cli, tmp_path: Path) -> None:
    """Not the draft that is renamed to it."""
    path = tmp_path / "missing" / "map.svg"
    error = cli.fails("ipam", "map", "p", "--svg", str(path))
    assert f"picture {str(path)!r} cannot be written: No such file or directory: {str(path)!r}: " in error
