"""Metrics of a real agent after known calls, on the embedded store and on etcd."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import prometheus
from harness.cluster_node import IMPATIENT, ClusterNode
from harness.datastores import Site, furnish, session
from harness.netns import Netns
from harness.node import BIN, Node
from harness.pod import Pod
from harness.polling import wait_until
from harness.prometheus import promtool
from harness.scrape import path_of, restart, scrape, text_of
from svc.datastore.api import Update
from svc.model.keys import BlockQuery

__all__ = ["promtool"]

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]


@pytest.fixture
def measured(node: Node) -> Node:
    restart(node)
    return node


def addresses(samples: dict[str, float], pool: str = "pool4") -> list[float]:
    return [samples[f'ipam_addresses{{pool="{pool}",state="{state}"}}'] for state in ("allocated", "cooldown", "free")]


def test_calls_and_addresses_are_counted(measured: Node, own_pods: MakePod) -> None:
    """The use of the pools is that of the datastore at once, because this node alone changes it."""
    pods = [own_pods() for _ in range(3)]
    for pod in pods:
        pod.add()
    assert pods[0].check().status == 0
    pods[0].delete()
    pods[1].failed("ADD", mtu="nonsense")
    wait_until(lambda: 'ipam_blocks{pool="pool4"}' in scrape(measured))
    found = scrape(measured)
    assert {verb: found[f'calls_total{{verb="{verb}",outcome="ok"}}'] for verb in ("ADD", "CHECK", "DEL")} == {
        "ADD": 3,
        "CHECK": 1,
        "DEL": 1,
    }
    assert (found['calls_total{verb="ADD",outcome="error"}'], found['errors_total{code="7"}']) == (1, 1)
    assert found['call_duration_seconds_count{verb="ADD",outcome="ok"}'] == 3
    assert 0 < found['call_phase_seconds_sum{verb="ADD",phase="kernel"}'] < 20
    assert found['call_duration_seconds_bucket{verb="ADD",outcome="ok",le="90.0"}'] == 3
    assert found["queue_seconds_count"] == 6
    assert (found['attachments{state="added"}'], found["pending_releases"], found["calls_in_flight"]) == (2, 0, 0)
    assert addresses(found) == [2, 0, 62]
    assert (found['ipam_blocks{pool="pool4"}'], found['ipam_pool_addresses{pool="pool4"}']) == (1, 65536)
    assert found['store_up{store="embedded"}'] == 1
    assert found['store_requests_total{store="embedded",op="write",outcome="ok"}'] >= 4
    assert found["ipam_batch_requests_sum"] == 4
    assert found["process_resident_memory_bytes"] > 1 << 20
    assert abs(found["process_start_time_seconds"] - time.time()) < 120
    assert found["oneshot_calls_total"] == 0


def test_calls_without_an_agent_are_counted(node: Node, own_pods: MakePod) -> None:
    """The next agent reads their number in the journal."""
    node.stop_agent()
    pod = own_pods()
    pod.add()
    pod.delete()
    node.start_agent(options=("--metrics", f"unix:{path_of(node)}"))
    found = scrape(node)
    assert found["oneshot_calls_total"] == 2
    assert 'calls_total{verb="ADD",outcome="ok"}' not in found


def test_reading_metrics_sends_no_request(measured: Node, own_pods: MakePod) -> None:
    """Not even to the embedded store."""
    own_pods().add()
    wait_until(lambda: 'ipam_blocks{pool="pool4"}' in scrape(measured))

    def requests() -> float:
        return sum(value for name, value in scrape(measured).items() if name.startswith("store_requests_total"))

    before, until = requests(), time.monotonic() + 1.0
    number = 0
    while time.monotonic() < until:
        requests()
        number += 1
    assert number > 10
    assert requests() - before < number / 2, "only the periodic tasks of the agent read the store"


def test_metrics_pass_the_checks_of_prometheus(measured: Node, own_pods: MakePod, promtool: str) -> None:
    pod = own_pods()
    pod.add()
    pod.failed("ADD", mtu="nonsense")
    wait_until(lambda: 'ipam_blocks{pool="pool4"}' in scrape(measured))
    done = prometheus.run(promtool, "check", "metrics", stdin=text_of(measured))
    assert (done.returncode, done.stdout) == (0, "")


def test_node_with_20_pools_has_few_series(measured: Node, own_pods: MakePod) -> None:
    """Each verb was called once."""
    for number in range(18):
        measured.apply_pool(f"more{number}", f"10.99.{number}.0/24")
    restart(measured)  # its first job reads the pools
    pod = own_pods()
    pod.add()
    assert pod.check().status == 0
    pod.delete()
    for verb in ("STATUS", "VERSION"):
        assert pod.call(verb).status == 0
    wait_until(lambda: 'ipam_pool_addresses{pool="more17"}' in scrape(measured))
    assert len(scrape(measured)) <= 400


@pytest.fixture
def cluster(etcd_site: Site, tmp_path: Path) -> Iterator[ClusterNode]:
    furnish(etcd_site, "node1", "node2")
    with ClusterNode(tmp_path / "node", "node1", etcd_site, agent_program=IMPATIENT) as node:
        restart(node, *IMPATIENT)
        yield node
    etcd_site.clear()


def test_pending_release_and_datastore_that_is_down_are_seen(cluster: ClusterNode, sandbox: Callable[[], Netns]) -> None:
    """A scrape does not wait for the datastore. After the outage the release is carried out."""
    pod = cluster.pod(sandbox())
    pod.add()
    found = scrape(cluster)
    assert (found['store_up{store="etcdv3"}'], found["pending_releases"]) == (1, 0)
    assert found["pending_release_oldest_seconds"] == 0
    with cluster.cut_off():
        pod.delete()
        began = time.monotonic()
        found = scrape(cluster)
        assert time.monotonic() - began < 1
        assert (found['store_up{store="etcdv3"}'], found["pending_releases"]) == (0, 1)
        assert found['attachments{state="deleting"}'] == 1
        assert found['store_requests_total{store="etcdv3",op="get",outcome="error"}'] > 0
        time.sleep(0.2)
        assert 0.2 <= scrape(cluster)["pending_release_oldest_seconds"] < 60


def test_conflicts_between_nodes_are_counted(cluster: ClusterNode, etcd_site: Site, sandbox: Callable[[], Netns]) -> None:
    """Another writer changes the node's block between two ADDs: the cached block is stale."""
    first, second = cluster.pod(sandbox(), "first"), cluster.pod(sandbox(), "second")
    first.add()
    before = scrape(cluster)
    with session(etcd_site) as store:
        for entry in store.list(BlockQuery()):
            store.write([Update(entry.key, entry.value, entry.revision)])
    second.add()
    found = scrape(cluster)
    assert found["ipam_conflicts_total"] > before["ipam_conflicts_total"]
    name = 'store_requests_total{store="etcdv3",op="write",outcome="conflict"}'
    assert found[name] > before.get(name, 0)
    second.delete()
    first.delete()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("unix:metrics.sock", "has no absolute path: give one, such as unix:/var/run/svc/metrics.sock"),
        ("unix:{directory}/file", "'unix:{directory}/file' cannot be used: another kind of file is there"),
        ("unix:/proc/none/metrics.sock", "cannot be used: No such file or directory: name a path with --metrics"),
        ("127.0.0.1:9405,unix:{socket}", "is the agent's own socket: name another path"),
    ],
)
def test_unusable_address_is_refused(node: Node, address: str, message: str) -> None:
    (node.directory / "file").write_text("")
    node.stop_agent()
    names = {"directory": str(node.directory), "socket": str(node.socket)}
    options = ("--state-dir", str(node.state_dir), "--run-dir", str(node.run_dir), "--socket", str(node.socket))
    done = node.netns.run(str(BIN / "svc-agent"), "run", *options, "--metrics", address.format(**names), check=False)
    assert done.returncode in (1, 2)
    assert message.format(**names) in done.stderr
    assert (node.directory / "file").read_text() == ""
