"""Handles on every datastore: two attachments never share one, for any names of networks and containers."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode, audit
from harness.datastores import Site, site_called
from harness.netns import Netns
from harness.pod import Pod

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]


@pytest.fixture(scope="module", params=["embedded", "etcdv3", "orch"])
def site(request: pytest.FixtureRequest, home: Path) -> Site:
    return site_called(request, home)


@pytest.fixture
def make(cluster_node: ClusterNode, sandbox: Callable[[], Netns]) -> Iterator[MakePod]:
    """Return a function that makes attachments of pods `web-NUMBER`."""
    made: list[Pod] = []

    def attach(network: str, container: str) -> Pod:
        name = f"web-{len(made)}"
        cluster_node.site.add_pod(name)
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}"
        made.append(cluster_node.pod(sandbox(), container, args=args, name=network))
        return made[-1]

    yield attach
    for pod in made:
        pod.call("DEL")


def delete_journal_entries(node: ClusterNode) -> None:
    with closing(sqlite3.connect(node.state_dir / "journal.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM attachments")


def run_gc(pod: Pod, *valid: Pod) -> Any:
    attachments: Any = [{"containerID": each.container, "ifname": each.ifname} for each in valid]
    return pod.call("GC", **{"cni.dev/valid-attachments": attachments})


def test_names_with_dots_have_different_handles(make: MakePod, cluster_node: ClusterNode) -> None:
    """DEL of one attachment keeps the other, with and without its journal entry."""
    one, other = make("net", "a.b"), make("net.a", "b")
    one.add()
    other.add()
    assert audit([cluster_node]).allocations == {one.addresses[0]: "net.a.b", other.addresses[0]: "net..a.b"}
    one.delete()
    assert audit([cluster_node]).allocations == {other.addresses[0]: "net..a.b"}
    one.add()
    delete_journal_entries(cluster_node)
    other.delete()
    assert list(audit([cluster_node]).allocations) == one.addresses


def test_gc_releases_addresses_of_containers_with_dots(make: MakePod, cluster_node: ClusterNode) -> None:
    """GC keeps the addresses of a network whose name begins with the same text."""
    invalid, valid, other = make("net", "a.b"), make("net", "c.d"), make("net.a", "b")
    for pod in (invalid, valid, other):
        pod.add()
    delete_journal_entries(cluster_node)
    called = run_gc(invalid, valid)
    assert called.status == 0, called
    assert set(audit([cluster_node]).allocations) == {*valid.addresses, *other.addresses}


@pytest.mark.parametrize(
    ("network", "container"), [("Net_1", "a_B"), ("n-.t.", "c-"), ("n" * 124, "c" * 128), ("n." * 62, "c." * 64)]
)
def test_every_valid_name_has_a_handle(make: MakePod, cluster_node: ClusterNode, network: str, container: str) -> None:
    pod = make(network, container)
    pod.add()
    assert list(audit([cluster_node]).allocations) == pod.addresses
    assert pod.check().status == 0, pod.check()
    assert pod.add() == pod.result
    pod.delete()
    assert audit([cluster_node]).allocations == {}
    pod.add()
    delete_journal_entries(cluster_node)
    pod.delete()
    assert audit([cluster_node]).allocations == {}
