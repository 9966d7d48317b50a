"""Edits that were made in a manifest before it was applied are found by the manifest as it was published."""

import copy
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.api_proxy import ApiProxy, Order
from harness.fake_kubelets import FakeKubelets
from harness.kube import Kube
from harness.upgrade_faults import FAULTS
from harness.upgrade_fixtures import server_with
from harness.upgrade_site import CONFIG, DAEMON_SET, DAEMON_SET_STEP, UpgradeSite, config, daemon_set, running_site
from svc.upgrade.adoption import EDITS

pytestmark = pytest.mark.server
server = server_with("daemonset")

Json = dict[str, Any]


@pytest.fixture(scope="module")
def kubelets(server: Kube) -> Iterator[FakeKubelets]:
    with FakeKubelets(server, ["node1"]).running() as made:
        yield made


@pytest.fixture
def site(server: Kube, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UpgradeSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    yield from running_site(server, tmp_path)


def published(version: str, **more: str) -> list[Json]:
    """Return a release as it is published."""
    return [config(mtu="0", backend="on", **more), daemon_set(f"svc:{version}", LEVEL="info", TRACE="off")]


def edited(documents: list[Json]) -> list[Json]:
    """Return a manifest with what a user has changed in it: values, an own variable, limits, and a removed variable."""
    found = copy.deepcopy(documents)
    found[0]["data"] |= {"mtu": "1400", "own": "x"}
    pod = found[1]["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 5
    pod["containers"][0]["env"] = [{"name": "MINE", "value": "1"}, {"name": "LEVEL", "value": "debug"}]
    pod["containers"][0]["resources"] = {"limits": {"memory": "1024Mi"}}
    pod["tolerations"] = [{"operator": "Exists"}]
    return found


def variables(site: UpgradeSite) -> dict[str, str]:
    (container,) = site.kube.call("GET", DAEMON_SET)["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


def require_edits(site: UpgradeSite, image: str) -> None:
    """Require the edits beside a release."""
    pod = site.kube.call("GET", DAEMON_SET)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == image
    assert variables(site) == {"MINE": "1", "LEVEL": "debug"}
    assert container["resources"] == {"limits": {"memory": "1Gi"}}
    assert (pod["terminationGracePeriodSeconds"], pod["tolerations"][0]) == (5, {"operator": "Exists"})
    assert site.kube.call("GET", CONFIG)["data"].items() >= {"mtu": "1400", "own": "x", "backend": "on"}.items()


@pytest.fixture(params=["kubectl-client-side-apply", "svcctl"])
def installed(site: UpgradeSite, request: pytest.FixtureRequest) -> UpgradeSite:
    """Return a cluster with an edited manifest, which kubectl or svcctl has applied."""
    site.install(edited(published("0.1.0")), request.param)
    return site


def base_of(site: UpgradeSite, version: str) -> list[str]:
    return ["--base", str(site.manifest(published(version), "base.json"))]


def test_edits_in_the_manifest_are_carried_over(installed: UpgradeSite) -> None:
    """They stay for the releases after the next one, without the option."""
    site, newer = installed, published("0.1.1", added="y")
    base = base_of(site, "0.1.0")
    planned = site.run("plan", *base, documents=newer)
    assert planned.exit_code == 0, planned.output
    for text in ("data.mtu = '1400', set by ", "data.own = 'x', set by ", "env[name=TRACE] was removed, stays out"):
        assert text in planned.stdout
    assert "dnsPolicy" not in planned.stdout, "a default does not count as an edit"
    done = site.run("apply", *base, documents=newer)
    assert done.exit_code == 0, done.output
    require_edits(site, "svc:0.1.1")
    assert site.kube.call("GET", CONFIG)["data"]["added"] == "y"
    again = site.run("apply", *base, documents=newer)
    assert again.stdout == "nothing to do\n", again.output
    next_one = site.run("apply", documents=published("0.1.2"))
    assert next_one.exit_code == 0, next_one.output
    require_edits(site, "svc:0.1.2")
    site.succeeds("undo")
    require_edits(site, "svc:0.1.1")


def test_undo_brings_the_edited_manifest_back(installed: UpgradeSite) -> None:
    site, newer = installed, published("0.1.1", added="y")
    before = site.state(newer)
    assert site.run("apply", *base_of(site, "0.1.0"), documents=newer).exit_code == 0
    site.succeeds("undo")
    assert site.state(newer) == before
    assert site.run("apply", *base_of(site, "0.1.0"), documents=newer).exit_code == 0
    require_edits(site, "svc:0.1.1")


def test_without_the_base_they_are_fields_of_the_former_release(site: UpgradeSite) -> None:
    site.install(edited(published("0.1.0")))
    assert site.run("apply", documents=published("0.1.1")).exit_code == 0
    assert variables(site) == {"LEVEL": "info", "TRACE": "off"}


def test_edit_of_a_field_that_the_release_changes_is_a_conflict(installed: UpgradeSite) -> None:
    site, newer = installed, published("0.1.1")
    newer[1] = daemon_set("svc:0.1.1", LEVEL="warning")
    base = base_of(site, "0.1.0")
    asked = site.run("apply", *base, documents=newer)
    assert asked.exit_code == 4, asked.output
    assert "env[name=LEVEL].value = 'debug', set by" in asked.stderr
    assert "the manifest has 'warning', the former one: 'info'" in asked.stderr
    done = site.run("apply", *base, "--ack", DAEMON_SET_STEP, documents=newer)
    assert done.exit_code == 0, done.output
    assert variables(site) == {"LEVEL": "warning", "MINE": "1"}
    owners = {each["manager"] for each in site.kube.call("GET", DAEMON_SET)["metadata"]["managedFields"]}
    assert EDITS in owners


@pytest.mark.parametrize(
    ("request_line", "right"),
    [
        (r"^POST .*/daemonsets\?.*dryRun", "svc-upgrade-probe: the right to create it is missing"),
        (r"^GET .*/daemonsets/svc-node", "svc-node: the right to get it is missing"),
    ],
)
def test_missing_right_is_named(installed: UpgradeSite, server: Kube, request_line: str, right: str) -> None:
    """The comparison is blocked: it neither takes the defaults of the server for edits, nor writes anything."""
    forbidden = FAULTS["forbidden"]
    with ApiProxy(server) as proxy:
        proxy.arm(Order(forbidden.fate, request_line, times=100, status=forbidden.status, body=forbidden.body))
        refused = installed.run("apply", *base_of(installed, "0.1.0"), documents=published("0.1.1"), server=proxy.url)
    assert refused.exit_code == 3, refused.output
    assert f"DaemonSet/kube-system/{right}" in refused.stderr
    assert installed.record() is None


def test_removed_object_stays_out_as_a_whole(site: UpgradeSite) -> None:
    """Neither it nor a part of it comes back with a release that changes one of its fields, without consent."""
    site.install(probed("0.1.0", 10))
    container = {"name": "agent", "livenessProbe": None}
    site.edit(DAEMON_SET, {"spec": {"template": {"spec": {"containers": [container]}}}})
    base = ["--base", str(site.manifest(probed("0.1.0", 10), "base.json"))]
    same = site.run("apply", *base, documents=probed("0.1.1", 10))
    assert same.exit_code == 0, same.output
    assert probe_of(site) is None
    base = ["--base", str(site.manifest(probed("0.1.1", 10), "base.json"))]
    asked = site.run("apply", *base, documents=probed("0.1.2", 20))
    assert asked.exit_code == 4, asked.output
    assert asked.stderr.count("livenessProbe") == 1
    done = site.run("apply", *base, "--ack", DAEMON_SET_STEP, documents=probed("0.1.2", 20))
    assert done.exit_code == 0, done.output
    probe = probe_of(site)
    assert probe
    assert (probe["exec"], probe["periodSeconds"]) == ({"command": ["true"]}, 20)


def probed(version: str, seconds: int) -> list[Json]:
    """Return a release whose container has a probe."""
    found = published(version)
    found[1]["spec"]["template"]["spec"]["containers"][0]["livenessProbe"] = {
        "exec": {"command": ["true"]},
        "periodSeconds": seconds,
    }
    return found


def probe_of(site: UpgradeSite) -> Json | None:
    (container,) = site.kube.call("GET", DAEMON_SET)["spec"]["template"]["spec"]["containers"]
    found: Json | None = container.get("livenessProbe")
    return found


def test_base_needs_its_digest_and_fits_the_procedure(site: UpgradeSite) -> None:
    site.install(published("0.1.0"))
    file = site.manifest(published("0.1.0"), "base.json")
    right = hashlib.sha256(file.read_bytes()).hexdigest()
    for given, told in (
        (["--base", str(file), "--base-sha256", "0" * 64], "has the digest"),
        (["--base", "https://localhost/x"], "give it with --base-sha256"),
        (["--base-sha256", right], "--base is missing"),
    ):
        refused = site.run("plan", *given)
        assert refused.exit_code == 2, refused.output
        assert told in refused.stderr
    assert site.run("plan", "--base", str(file), "--base-sha256", right).exit_code == 0
