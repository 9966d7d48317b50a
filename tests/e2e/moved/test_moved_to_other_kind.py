"""A datastore that moves by the procedure: the pods, pending releases and spooled DELs of a node follow it."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import kill_point
from harness.cluster_node import ClusterNode
from harness.datastores import EtcdSite, OrchSite, session
from harness.ipam import put_pool
from harness.move_procedure import MoveProcedure
from harness.move_sites import ETCD_NODE, KUBE_NODE, Sites, add_nodes, open_sites
from harness.moving import identify
from harness.netns import Netns
from harness.node import POOL4, agent_with
from harness.pod import Pod
from harness.polling import wait_until
from svc._core.cidr import Address
from svc.agent import maintenance, rehoming, server, spool
from svc.attach import teardown
from svc.attach.journal import Journal
from svc.attach.node_claim import RENEW_SECONDS
from svc.cni.call_io import CallInput
from svc.cni.frame import pack_request
from svc.cni.spool_file import NAME, file_name, pack, read
from svc.ipam.blocks import allocations
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.keys import BlockQuery, NodeClaimKey
from svc.move import marks
from svc.netconf.installed import Installed, add_installed

pytestmark = [pytest.mark.root, pytest.mark.server]

QUICK = {
    f"{server.__name__}.PERIOD_SECONDS": 0.5,
    f"{rehoming.__name__}.LOOK_SECONDS": 0.2,
    f"{rehoming.__name__}.RETRY_SECONDS": 0.5,
    f"{rehoming.__name__}.CLOSE_SECONDS": 0.5,
    f"{maintenance.__name__}.RETRY_SECONDS": 0.5,
    f"{spool.__name__}.RETRY_SECONDS": 0.5,
    f"{teardown.__name__}.ANSWER_SECONDS": 2.0,
}
AGENT = agent_with(QUICK)
MakePod = Callable[..., Pod]


@dataclass
class MovingNode:
    """A node, the two datastores, and the procedure."""

    node: ClusterNode
    sites: Sites
    procedure: MoveProcedure

    @property
    def old(self) -> dict[str, Any]:
        return {**self.procedure.etcd_site.config, "nodename": ETCD_NODE}

    @property
    def new(self) -> dict[str, Any]:
        return {**self.procedure.orch_site.config, "nodename": KUBE_NODE}

    def install(self, settings: dict[str, Any]) -> None:
        """Record the network with these settings, as `svcctl install` does."""
        path = self.node.directory / "net.conflist"
        plugin = self.node.netconf(**settings)
        if settings["datastore_type"] != "etcdv3":
            plugin.pop("etcd_endpoints", None)
        path.write_text(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]}))
        add_installed(self.node.state_dir, Installed("", str(self.node.bin_dir), (), str(path)))

    def move(self, *, back: bool = False) -> None:
        """Move the datastore; the node has not moved then."""
        moved = self.procedure.run("apply", "--timeout", "0s", back=back)
        assert moved.exit_code == 5, (moved.output, moved.exception)
        assert f"1 node has not moved: {ETCD_NODE if back else KUBE_NODE}" in moved.output

    def rows(self) -> dict[str, tuple[str, str, str]]:
        """Return kind of datastore, node and state of each row, by container."""
        with closing(Journal(self.node.state_dir / "journal.db")) as journal:
            return {row.id.container_id: (row.settings["kind"], row.node, row.state) for row in journal.all()}

    def allocated(self, *, etcd: bool = False) -> set[str]:
        with session(self.procedure.etcd_site if etcd else self.procedure.orch_site) as store:
            blocks = [entry.value for entry in store.list(BlockQuery())]
        return {str(address) for block in blocks for owner, address in allocations(block) if not owner.released_at}

    def spooled(self) -> list[Path]:
        folder = self.node.state_dir / "spool"
        return [path for path in folder.iterdir() if NAME.fullmatch(path.name)] if folder.exists() else []


@pytest.fixture
def moving(etcd_site: EtcdSite, orch_site: OrchSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MovingNode]:
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.1)
    with open_sites(etcd_site, orch_site, tmp_path) as sites:
        identify(sites.etcd.backend, "the-guid")
        put_pool(sites.etcd.backend, "pool4", POOL4)
        add_nodes(sites.etcd.backend, orch_site)
        procedure = MoveProcedure(sites, etcd_site, orch_site, tmp_path)
        with ClusterNode(tmp_path / "node", ETCD_NODE, etcd_site, orch_site, agent_program=AGENT) as node:
            made = MovingNode(node, sites, procedure)
            made.install(made.old)
            yield made
            assert "Traceback" not in node.log.read_text()
        procedure.forget()


@pytest.fixture
def pod_on(moving: MovingNode, sandbox: Callable[[], Netns]) -> MakePod:
    def make(name: str) -> Pod:
        moving.procedure.orch_site.add_pod(name, KUBE_NODE)
        pod = moving.node.pod(
            sandbox(), f"container-{name}", args=f"K8S_POD_NAME={name};K8S_POD_NAMESPACE=default", **moving.old
        )
        pod.add()
        return pod

    return make


def by_new(moving: MovingNode, pod: Pod) -> Pod:
    config = {name: value for name, value in pod.config.items() if name != "etcd_endpoints"} | moving.new
    made = pod.copy(config=config)
    made.result = pod.result
    return made


def release_in_new(moving: MovingNode, pod: Pod) -> None:
    """Release the addresses of a pod as another program does. In the former datastore the agent would claim them again."""
    with session(moving.procedure.orch_site) as store:
        IpamService(store, KUBE_NODE).release(Release(f"net.{pod.container}"))
    assert moving.allocated().isdisjoint(pod.addresses)


def write_del(moving: MovingNode, pod: Pod) -> None:
    """Leave the DEL of a pod in the spool, as the executable does without an agent."""
    variables = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": pod.container, "CNI_IFNAME": pod.ifname, "CNI_ARGS": pod.args}
    request = pack_request(CallInput("svc", variables, json.dumps(pod.config).encode()))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    data = pack(request, boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    path = moving.node.state_dir / "spool" / file_name(read(data).call)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)


def forget_row(moving: MovingNode, pod: Pod) -> None:
    with closing(Journal(moving.node.state_dir / "journal.db")) as journal:
        for row in journal.all():
            if row.id.container_id == pod.container:
                journal.remove(row)


def test_everything_of_a_node_follows(moving: MovingNode, pod_on: MakePod) -> None:
    """Live pods, a pending release, and spooled DELs with and without a row, of an agent that is down at its node's turn."""
    live, other, pending, spooled, rowless = (pod_on(name) for name in ("live", "other", "pending", "spooled", "rowless"))
    with moving.node.cut_off(moving.procedure.etcd_site):
        pending.delete()
    moving.node.stop_agent()
    forget_row(moving, rowless)
    for pod in (spooled, rowless):
        write_del(moving, pod)
    before = moving.allocated(etcd=True)
    moving.move()
    assert moving.allocated() == before
    moving.install(moving.new)
    moving.node.start_agent(recovered=False)
    wait_until(lambda: moving.rows().keys() == {"container-live", "container-other"} and not moving.spooled())
    wait_until(lambda: {kind for kind, _, _ in moving.rows().values()} == {"orch"})
    assert moving.allocated() == {*live.addresses, *other.addresses}
    moving.procedure.succeeds("apply")
    for pod in (live, other):
        checked = by_new(moving, pod).check()
        assert checked.status == 0, checked
    by_new(moving, other).delete()
    assert moving.allocated() == {*live.addresses}
    for valid in ([{"containerID": live.container, "ifname": "eth0"}], []):
        listed: dict[str, Any] = {"cni.dev/valid-attachments": valid}
        assert by_new(moving, live).call("GC", **listed).status == 0
        assert moving.allocated() == ({*live.addresses} if valid else set())
    assert moving.rows() == {}
    assert moving.allocated(etcd=True) == before, "nothing is written to the former datastore"


def test_running_agent_follows_without_a_restart(moving: MovingNode, pod_on: MakePod) -> None:
    """Until it has the new configuration, calls are refused, and the error names the successor and the next step."""
    pod, late = pod_on("web"), pod_on("late")
    moving.move()
    for call in (pod.copy(container="container-new").call("ADD"), late.call("DEL"), pod.check()):
        assert call.status != 0
        assert call.output["code"] == 105, call
        assert f"has moved to {moving.sites.kube.backend.place}" in call.output["msg"]
        assert "svcctl install" in call.output["details"]
    assert moving.rows().keys() == {"container-web", "container-late"}
    moving.install(moving.new)
    wait_until(lambda: {row[:2] for row in moving.rows().values()} == {("orch", KUBE_NODE)})
    moving.procedure.succeeds("apply")
    assert by_new(moving, pod).check().status == 0
    for _ in range(2):
        pod.delete()  # by the former configuration, which a runtime may have kept
    by_new(moving, late).delete()
    assert moving.allocated() == set()


def claim_grows(moving: MovingNode) -> bool:
    """Return whether the agent renews its claim in etcd."""
    with session(moving.procedure.etcd_site) as store:
        first = store.get(NodeClaimKey(ETCD_NODE)).value
        time.sleep(RENEW_SECONDS + 0.5)
        return store.get(NodeClaimKey(ETCD_NODE)).value != first


def test_pods_follow_there_and_back(moving: MovingNode, pod_on: MakePod) -> None:
    pod = pod_on("web")
    moving.move()
    moving.install(moving.new)
    wait_until(lambda: {row[:2] for row in moving.rows().values()} == {("orch", KUBE_NODE)})
    moving.procedure.succeeds("apply")
    wait_until(lambda: not claim_grows(moving))
    moving.move(back=True)
    moving.install(moving.old)
    wait_until(lambda: {row[:2] for row in moving.rows().values()} == {("etcdv3", ETCD_NODE)})
    moving.procedure.succeeds("apply", back=True)
    assert pod.check().status == 0
    pod.delete()
    assert moving.allocated(etcd=True) == set()


def test_row_without_its_address_stays_and_is_reported(moving: MovingNode, pod_on: MakePod) -> None:
    """The log, STATUS and svcctl status name it. It follows when the datastore has its address."""
    lost, kept = pod_on("lost"), pod_on("kept")
    moving.move()
    release_in_new(moving, lost)
    moving.install(moving.new)
    told = f"does not have {lost.addresses[0]} under the handle net.container-lost"
    wait_until(lambda: told in moving.node.log.read_text())
    assert moving.rows()["container-lost"][0] == "etcdv3"
    wait_until(lambda: moving.rows()["container-kept"][0] == "orch")
    assert told in by_new(moving, kept).call("STATUS").stderr
    assert told in " ".join(moving.node.svcctl("status", check=False).stdout.split())  # it breaks lines
    with session(moving.procedure.orch_site) as store:
        ipam = IpamService(store, KUBE_NODE)
        owner = {"node": KUBE_NODE, "pod": "lost", "namespace": "default"}
        ipam.assign(Assign("net.container-lost", owner, addresses=(Address(lost.addresses[0]),)))
    wait_until(lambda: moving.rows()["container-lost"][0] == "orch")
    assert told not in by_new(moving, kept).call("STATUS").stderr


def test_row_without_its_address_is_deleted(moving: MovingNode, pod_on: MakePod) -> None:
    """Another program may have released the address in the new datastore, before the node has moved."""
    lost = pod_on("lost")
    moving.move()
    release_in_new(moving, lost)
    moving.install(moving.new)
    assert by_new(moving, lost).check().status != 0
    by_new(moving, lost).delete()
    assert moving.rows() == {}
    assert moving.allocated() == set()


def test_calls_without_an_agent_follow(moving: MovingNode, pod_on: MakePod) -> None:
    checked, deleted, pending = (pod_on(name) for name in ("checked", "deleted", "pending"))
    moving.node.stop_agent()
    with moving.node.cut_off(moving.procedure.etcd_site):
        pending.delete()
    moving.move()
    by_new(moving, deleted).delete()
    assert moving.allocated() == {*checked.addresses, *pending.addresses}
    listed: dict[str, Any] = {"cni.dev/valid-attachments": [{"containerID": checked.container, "ifname": "eth0"}]}
    assert by_new(moving, checked).call("GC", **listed).status == 0
    assert moving.allocated() == {*checked.addresses}
    assert by_new(moving, checked).check().status == 0
    by_new(moving, checked).delete()
    assert moving.rows() == {}
    assert moving.allocated() == set()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "place", ["svc.attach.journal:Journal.change_settings", "svc.agent.spool_directory:SpoolDirectory.remove"]
)
def test_agent_is_killed_while_it_follows(moving: MovingNode, pod_on: MakePod, place: str, when: str) -> None:
    """A write of the journal, and the removal of a file of the spool: the next agent goes on."""
    live, spooled = pod_on("live"), pod_on("spooled")
    moving.node.stop_agent()
    forget_row(moving, spooled)
    write_del(moving, spooled)
    moving.move()
    moving.install(moving.new)
    program = Path(kill_point.__file__).read_text().replace('if __name__ == "__main__":', "if True:")
    quick = "\n".join(f"import {name.rpartition('.')[0]}; {name} = {value}" for name, value in QUICK.items())
    arguments = ["svc-agent", place, when, "svc.agent.main"]
    code = f"import svc.agent.main\n{quick}\nimport sys\nsys.argv = {arguments!r} + sys.argv[1:]\n{program}"
    with suppress(RuntimeError):  # it ends before it has answered
        moving.node.start_agent(sys.executable, "-c", code, recovered=False)
        assert moving.node.wait_agent() == -9
    moving.node.start_agent(recovered=False)
    wait_until(lambda: not moving.spooled())
    wait_until(lambda: moving.rows() == {"container-live": ("orch", KUBE_NODE, "added")})
    assert moving.allocated() == {*live.addresses}
    assert by_new(moving, live).check().status == 0
