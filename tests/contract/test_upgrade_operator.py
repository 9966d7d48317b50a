"""A newer manifest of the operator is applied. The operator is the real svc-controllers."""

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.api_proxy import ApiProxy
from harness.fake_kubelets import FakeKubelets
from harness.guarded_writes import nothing_written, raced_writes, require_guards, watched_writes
from harness.installations import MERGE
from harness.kube import Kube
from harness.operator_site import DEPLOYMENT, INFORMATION, INSTALLATIONS, OperatorSite, release
from harness.polling import eventually
from harness.upgrade_faults import FAULTS, Killer, fault_at, killing
from harness.upgrade_fixtures import WORKLOADS, server_with
from harness.upgrade_site import DAEMON_SET, SYSTEM

pytestmark = pytest.mark.server
server = server_with(*WORKLOADS)


@pytest.fixture(scope="module")
def kubelets(server: Kube) -> Iterator[FakeKubelets]:
    with FakeKubelets(server, ["node1"]).running() as made:
        yield made


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with killing() as made:
        yield made


@pytest.fixture
def proxy(server: Kube) -> Iterator[ApiProxy]:
    with ApiProxy(server) as made:
        yield made


@pytest.fixture
def site(server: Kube, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OperatorSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.engine.SETTLE_SECONDS", 30.0)
    site, own = OperatorSite(server, tmp_path), server.connected_again()
    try:
        with site.operating(own):
            site.prepare()
            yield site
    finally:
        own.stop()
        site.clear()


def upgrades(site: OperatorSite, verb: str, *arguments: str) -> str:
    done = site.call(*site.upgrade_words(verb, *arguments))
    assert done.exit_code == 0, done.output
    return done.output


def images(site: OperatorSite) -> set[str]:
    found = (site.kube.call("GET", path)["spec"]["template"]["spec"]["containers"] for path in (DEPLOYMENT, DAEMON_SET))
    return {each["image"] for containers in found for each in containers}


def settled(site: OperatorSite) -> dict[str, str]:
    """Return what a run without anything to do must not change. The operator renews its own Lease."""
    found = site.everything() | {"operator": str(site.kube.call("GET", DEPLOYMENT)["metadata"]["generation"])}
    return {name: revision for name, revision in found.items() if name != "leases/svc-controllers"}


def test_operator_and_back(site: OperatorSite) -> None:
    """The new operator reports its version. A second run changes nothing, and undoing brings the old one back."""
    before = site.state(release("0.1.0"))
    planned = upgrades(site, "plan")
    assert "from 0.1.0 to 0.1.1" in planned
    assert "Installation/default: spec.svcNetwork.ipPools = [{'cidr': '10.65.0.0/16'}], set by the user" in planned
    upgrades(site, "apply")
    assert (images(site), site.version()) == ({"svc:0.1.1"}, "0.1.1")
    upgrades(site, "verify")
    state = settled(site)
    with nothing_written():
        assert "nothing to do" in upgrades(site, "apply")
    assert settled(site) == state
    upgrades(site, "undo")
    assert site.state(release("0.1.0")) == before
    eventually(site.version, lambda version: version == "0.1.0")


def test_each_write_names_what_it_was_made_for(site: OperatorSite) -> None:
    """By a resourceVersion, a test or a UID. A write that another program was faster than is refused, and read again."""
    with watched_writes() as found, raced_writes(site.kube) as races:
        upgrades(site, "apply")
    require_guards(found)
    races.require_conflicts()
    with watched_writes() as found, raced_writes(site.kube) as races:
        upgrades(site, "undo")
    require_guards(found)
    races.require_conflicts()
    assert images(site) == {"svc:0.1.0"}


def test_overridden_fields_are_reported(site: OperatorSite) -> None:
    """What the operator writes over, and what the user has set beside the manifest."""
    site.starts = False
    env = [{"name": "LOG_LEVEL", "value": "debug"}]
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "controllers", "env": env}]}}}}
    site.edit(DEPLOYMENT, patch)
    planned = upgrades(site, "plan")
    assert "variable LOG_LEVEL of the operator = 'debug', which the manifest does not have" in planned
    upgrades(site, "plan", "-o", "json")


def test_edit_of_the_image_is_a_conflict(site: OperatorSite) -> None:
    """The user consents, or the run does not begin."""
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "controllers", "image": "mirror/svc:0.1.0"}]}}}}
    site.edit(DEPLOYMENT, patch)
    asked = site.call(*site.upgrade_words("apply"))
    assert asked.exit_code == 4, asked.output
    assert "--ack Deployment/kube-system/svc-controllers" in asked.stderr
    upgrades(site, "apply", "--ack", "Deployment/kube-system/svc-controllers")
    assert images(site) == {"svc:0.1.1"}


def test_definition_that_refuses_present_data(site: OperatorSite) -> None:
    documents = copy.deepcopy(release("0.1.1"))
    (definition,) = (each for each in documents if each["metadata"]["name"].startswith("installations."))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["svcNetwork"]["properties"]["ipPools"]["maxItems"] = 0
    refused = site.call(*site.upgrade_words("apply", documents=documents))
    assert refused.exit_code == 3, refused.output
    assert "Installation/default is refused by the new definition" in refused.stderr
    upgrades(site, "undo")
    assert images(site) == {"svc:0.1.0"}


def blocked(site: OperatorSite, documents: list[dict[str, object]] | None = None) -> str:
    refused = site.call(*site.upgrade_words("apply", documents=documents))
    assert refused.exit_code == 3, refused.output
    assert site.record() is None
    return refused.stderr


def test_manifest_without_an_operator(site: OperatorSite) -> None:
    documents = [each for each in release("0.1.1") if each["kind"] != "Deployment"]
    assert f"the manifest has no Deployment/{SYSTEM}/svc-controllers" in blocked(site, documents)


def test_older_manifest(site: OperatorSite) -> None:
    site.kube.call("PATCH", f"{INFORMATION}/default", {"spec": {"svcVersion": "0.1.7"}}, MERGE)
    assert "the manifest is of version 0.1.1, older than 0.1.7 of the cluster" in blocked(site)
    site.kube.call("PATCH", f"{INFORMATION}/default", {"spec": {"svcVersion": "0.1.0"}}, MERGE)


def test_cluster_without_an_installation(site: OperatorSite) -> None:
    site.kube.call("DELETE", f"{INSTALLATIONS}/default")
    assert "Installation/default does not exist: the operator has nothing to upgrade" in blocked(site)


def test_cluster_without_an_operator(site: OperatorSite) -> None:
    site.kube.call("DELETE", DEPLOYMENT)
    assert f"Deployment/{SYSTEM}/svc-controllers does not exist: svc was not installed by an operator" in blocked(site)


def test_operator_that_is_not_content(site: OperatorSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is not as it should be until the new operator says so."""
    monkeypatch.setattr("svc.upgrade.engine.SETTLE_SECONDS", 1.0)
    site.starts = False
    late = site.call(*site.upgrade_words("apply"))
    assert late.exit_code == 6, late.output
    assert "Installation/default has version '0.1.0', not 0.1.1" in late.stderr
    site.starts = True
    eventually(site.version, lambda version: version == "0.1.1")
    upgrades(site, "apply")


@pytest.mark.long
@pytest.mark.parametrize(("verb", "step"), [("apply", 6), ("undo", 6), ("apply", 1), ("undo", 1)])
def test_kill_at_each_write(site: OperatorSite, killer: Killer, verb: str, step: int) -> None:
    """The next call completes what was written, and the end is the same. With a larger step only some writes are tried."""

    def prepare() -> None:
        site.prepare()
        if verb == "undo":
            done = killer.run(*site.upgrade_words("apply"))
            assert done.returncode == 0, done.stderr

    prepare()
    done = killer.run(*site.upgrade_words(verb))
    assert done.returncode == 0, done.stderr
    end, kills, writes = site.state(release("0.1.1")), 0, killer.writes
    for number in range(1, writes + 1, step):
        for when in ("before", "after"):
            prepare()
            killed = killer.run(*site.upgrade_words(verb), kill_at=number, when=when)
            if killed.returncode == 0:  # fewer writes than before were repeated because of a controller
                assert number > killer.writes
                continue
            assert killed.returncode == -9, (number, when, killed.stderr)
            resumed = killer.run(*site.upgrade_words(verb))
            assert resumed.returncode == 0, (number, when, resumed.stderr)
            assert site.state(release("0.1.1")) == end, (number, when)
            kills += 1
    assert kills > writes // step
    print(f"{verb}: {kills} kills, before and after every {step}. of {writes} writes")


def run_with_fault(site: OperatorSite, proxy: ApiProxy, number: int, name: str) -> int | None:
    """Apply with one write that fails. The run ends well or is blocked; the next one ends well."""
    site.prepare()
    orders = fault_at(number, name)
    for order in orders:
        proxy.arm(order)
    first = site.call(*site.upgrade_words("apply", server=proxy.url))
    proxy.disarm()
    if any(order.times for order in orders):
        return None
    assert first.exit_code in (0, 3), (number, name, first.output)
    second = site.call(*site.upgrade_words("apply", server=proxy.url))
    assert second.exit_code == 0, (number, name, first.output, second.output)
    assert images(site) == {"svc:0.1.1"}
    upgrades(site, "undo")
    assert images(site) == {"svc:0.1.0"}
    return first.exit_code


@pytest.mark.long
def test_some_faults(site: OperatorSite, proxy: ApiProxy) -> None:
    for number, name in ((3, "conflict"), (6, "reply lost"), (9, "forbidden")):
        assert run_with_fault(site, proxy, number, name) is not None


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_at_each_write(site: OperatorSite, proxy: ApiProxy, name: str) -> None:
    found = []
    for number in itertools.count(1):
        status = run_with_fault(site, proxy, number, name)
        if status is None:
            break
        found.append(status)
    assert len(found) > 8
    print(f"{name}: {len(found)} faults, {found.count(3)} blocked the run")
