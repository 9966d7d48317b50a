"""The controller `operator`: it brings about what the Installation asks for, and reports it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.datastores import Site, set_ready
from harness.driven_part import Driven, driven
from harness.installations import (
    AGENT,
    CONFIG_MAP,
    CONTROLLERS,
    FOUR,
    PATH,
    PROXY,
    V4,
    V6,
    InstalledCluster,
    document,
    host_local,
    installed_cluster,
)
from harness.ipam import free, put_pool, take
from harness.kube import Kube, Refused
from harness.polling import wait_until
from harness.running_controller import Running, running
from svc.controllers.assembly import Part
from svc.controllers.controller import Shared, Unsettled
from svc.controllers.operator.installation_controller import InstallationController
from svc.datastore.orch.client import Client
from svc.ipam.service import IpamService
from svc.leader.election import NotLeading
from svc.model.errors import CallerError, SvcError

pytestmark = pytest.mark.server


@pytest.fixture
def cluster(kube: Kube, site: Site, tmp_path: Path) -> Iterator[InstalledCluster]:
    with installed_cluster(kube, site, tmp_path) as made:
        yield made


def settings_of(cluster: InstalledCluster) -> dict[str, str]:
    kind = str(cluster.site.config["datastore_type"])
    return {"kind": kind, **{key: str(text) for key, text in cluster.site.config.items() if key.startswith("etcd_")}}


def make(cluster: InstalledCluster, shared: Shared, _clock: object = None) -> Part:
    return InstallationController(shared, settings_of(cluster))


@pytest.fixture
def part(client: Client, cluster: InstalledCluster) -> Iterator[Driven]:
    with driven(client, cluster.store, partial(make, cluster)) as made:
        yield made


@pytest.fixture
def live(client: Client, cluster: InstalledCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr("svc.controllers.controller._POLL_SECONDS", 0.02)
    with running(client, cluster.store, partial(make, cluster)) as made:
        yield made
        assert made.failures == []


def test_same_state_as_the_command_makes(cluster: InstalledCluster, part: Driven) -> None:
    """A second round writes nothing, and neither does the command afterwards."""
    cluster.make(*FOUR)
    cluster.create(host_local({"ipPools": [V4]}))
    part.round()
    assert cluster.environment(PROXY) == {"USE_POD_CIDR": "true"}
    assert cluster.conditions() == {"Ready": "False", "Progressing": "True", "Degraded": "False"}
    cluster.roll_out(AGENT, CONTROLLERS)
    part.round()
    assert cluster.conditions() == {"Ready": "True", "Progressing": "False", "Degraded": "False"}
    before, written = cluster.revisions(), part.shared.tally.written
    part.round()
    assert part.part.tally.written == part.part.tally.written
    assert (cluster.revisions(), part.shared.tally.written) == (before, written)
    assert "would be" not in cluster.call("diff", host_local({"ipPools": [V4]}))


def test_without_a_resource_nothing_happens(cluster: InstalledCluster, part: Driven) -> None:
    cluster.make(*FOUR)
    part.round()
    assert cluster.pools() == {}
    with pytest.raises(Refused, match="404"):
        cluster.kube.call("GET", CONFIG_MAP)


def test_foreign_pool_degrades_and_is_not_changed(cluster: InstalledCluster, part: Driven) -> None:
    put_pool(cluster.store, "mine", V4["cidr"])
    before = cluster.pools()
    cluster.create(document({"ipPools": [V4]}))
    with pytest.raises(CallerError, match="mine"):
        part.round()
    assert cluster.conditions()["Degraded"] == "True"
    assert "'mine': spec.natOutgoing" in cluster.message("Degraded")
    assert cluster.pools() == before
    put_pool(cluster.store, "mine", V4["cidr"], ipipMode="Always", natOutgoing=True)
    part.round()
    assert cluster.conditions()["Degraded"] == "False"


def test_invalid_resource_degrades(cluster: InstalledCluster, part: Driven) -> None:
    cluster.create(document({"ipPools": [V4, {"cidr": "10.65.128.0/17"}]}))
    with pytest.raises(CallerError):
        part.round()
    assert "overlaps ipPools[0]" in cluster.message("Degraded")
    assert cluster.pools() == {}


@pytest.mark.usefixtures("live")
def test_log_names_each_field_once(cluster: InstalledCluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.create(document({"ipPools": [V4, {"cidr": "10.65.128.0/17"}]}))
    wait_until(lambda: "is tried again" in caplog.text)
    line = next(text for record in caplog.records if "is tried again" in (text := record.getMessage()))
    assert line.count("ipPools[1].cidr = '10.65.128.0/17' overlaps ipPools[0] (10.65.0.0/16): give ranges") == 1
    assert line.count("ipPools[1]") == 1


def test_conflict_of_a_workload_degrades(cluster: InstalledCluster, part: Driven) -> None:
    cluster.make(AGENT)
    cluster.make(PROXY, USE_POD_CIDR="false")
    cluster.create(host_local({"ipPools": [V4]}))
    with pytest.raises(Unsettled, match=PROXY[1]):
        part.round()
    assert cluster.environment(AGENT)["USE_POD_CIDR"] == "true"
    assert PROXY[1] in cluster.message("Degraded")


def test_process_that_does_not_lead_writes_nothing(cluster: InstalledCluster, part: Driven) -> None:
    cluster.create(document({"ipPools": [V4]}))
    part.shared.election.resign()
    with pytest.raises(NotLeading):
        part.round()
    assert cluster.pools() == {}


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
@pytest.mark.parametrize("number", [0, 1])
def test_round_ends_when_its_resource_is_deleted(
    cluster: InstalledCluster, part: Driven, monkeypatch: pytest.MonkeyPatch, number: int, again: bool
) -> None:
    """The next write is not sent: after the deletion, undoing brings back what was there before."""
    cluster.make(*FOUR)
    cluster.create(document({"ipPools": [V4]}))
    looks, read = 0, InstallationController._read

    def deleting(self: InstallationController) -> Any:
        nonlocal looks
        if looks == number + 1:  # the first look begins the round, and each of the others precedes a write
            cluster.kube.call("DELETE", PATH)
            if again:
                cluster.create(document({"ipPools": [V6]}))
        looks += 1
        return read(self)

    monkeypatch.setattr(InstallationController, "_read", deleting)
    assert isinstance(part.part, InstallationController)
    part.part.settle("default")
    assert looks == number + 2
    assert [*cluster.pools()] == (["default-ipv4-ippool"] if number else [])
    config_maps = cluster.kube.call("GET", CONFIG_MAP.rpartition("/")[0])["items"]
    assert not any(each["metadata"]["name"] == "cni-config" for each in config_maps)
    assert "CLUSTER_TYPE" not in cluster.environment(AGENT)


def test_locked_datastore_stops_it(cluster: InstalledCluster, part: Driven) -> None:
    cluster.create(document({"ipPools": [V4]}))
    set_ready(cluster.store, ready=False)
    with pytest.raises(SvcError, match=r"locked|ready"):
        part.round()
    assert cluster.pools() == {}
    assert "status" not in cluster.resource


def test_it_follows_resource_workloads_and_released_addresses(cluster: InstalledCluster, live: Running) -> None:
    cluster.site.add_node("node1")
    cluster.create(document({"ipPools": [V4]}))
    wait_until(lambda: len(cluster.pools()) == 1)
    wait_until(lambda: cluster.conditions().get("Progressing") == "True")
    cluster.make(*FOUR)
    wait_until(lambda: "CLUSTER_TYPE" in cluster.environment(AGENT))
    cluster.await_ready(AGENT, CONTROLLERS)
    take(IpamService(cluster.store, "node1"), "h")
    cluster.change(document({"ipPools": [V6]}))
    wait_until(lambda: cluster.pools().get("default-ipv4-ippool", {}).get("disabled") is True)
    wait_until(lambda: "default-ipv6-ippool" in cluster.pools())
    wait_until(lambda: "default-ipv4-ippool" in cluster.message("Progressing"))
    free(IpamService(cluster.store, "node1"), "h")
    wait_until(lambda: list(cluster.pools()) == ["default-ipv6-ippool"])
