"""A release of helm goes to a newer chart, and from the old layout to its own namespace. helm is real."""

import base64
import copy
import gzip
import itertools
import json
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.api_proxy import ApiProxy, Fate, Order
from harness.chart_site import (
    DEPLOYMENT,
    FORMER,
    HELM,
    INFORMATION,
    NAMESPACE_MARK,
    OWN,
    POLICY,
    RELEASE,
    ROLE,
    ChartSite,
    running_chart_site,
)
from harness.fake_kubelets import FakeKubelets
from harness.guarded_writes import nothing_written, raced_writes, require_guards, watched_writes
from harness.kube import ADMIN_TOKEN, Kube
from harness.polling import wait_until
from harness.upgrade_faults import FAULTS, PARTS, Killer, fault_at, killing, turn_round
from harness.upgrade_fixtures import server_with

pytestmark = pytest.mark.server
server = server_with("daemonset", "deployment", "replicaset")

ACK = ("--ack", "former-releases")
SECRETS = "/api/v1/namespaces/{}/secrets"
BY_HELM = "fieldManager=helm"
MAIN = "from svc.ctl.main import main; main()"
_MERGE = "application/merge-patch+json"


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
    with ApiProxy(server, ADMIN_TOKEN) as made:
        yield made


@pytest.fixture
def site(server: Kube, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChartSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    kubelets.stuck.clear()
    yield from running_chart_site(server, tmp_path)


def require_new(site: ChartSite) -> None:
    """Require the state after an upgrade from the old layout."""
    assert site.releases() == {f"{OWN}/v1": "deployed"}
    assert set(site.owners().values()) == {OWN}
    (container,) = site.kube.call("GET", DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "svc:0.1.1"


def test_from_the_old_layout_and_back(site: ChartSite) -> None:
    """Objects are adopted, helm installs the chart, and the Secrets of the former release go when the user consents."""
    site.install_old_layout()
    before, secrets = site.substance(), site.secrets()
    planned = site.upgrades("plan")
    assert "branch: from the old layout" in planned
    assert f"PodSecurityPolicy/svc-controllers: {NAMESPACE_MARK}: default -> {OWN}" in planned.replace('"', "")
    assert "destroys the revisions of the release in its former namespace" in planned
    assert site.substance() == before
    asked = site.upgrade("apply")
    assert asked.exit_code == 4, asked.output
    assert f"Secret/default/sh.helm.release.v1.{RELEASE}.v1 will be deleted" in asked.stderr
    assert site.releases() == {f"{FORMER}/v1": "deployed", f"{OWN}/v1": "deployed"}
    site.upgrades("apply", *ACK)
    require_new(site)
    assert set(site.owners()) == {"installations", "podsecuritypolicies", "deployments", "clusterroles"}
    state = site.generations()
    with nothing_written():
        assert "nothing to do" in site.upgrades("apply", *ACK)
    site.upgrades("verify")
    assert site.generations() == state
    site.upgrades("undo")
    assert site.substance() == before
    assert [each["data"] for each in site.secrets()] == [each["data"] for each in secrets]
    assert "nothing to undo" in site.upgrades("undo")
    site.run_helm("upgrade", RELEASE, str(site.write_old_chart()), "-n", FORMER, "--set", "image=svc:0.1.0")


def test_within_its_namespace_and_back(site: ChartSite) -> None:
    """helm upgrades the release; undoing is a rollback, which is a revision of its own."""
    site.install_own()
    before = site.substance()
    planned = site.upgrades("plan")
    assert "branch: within its namespace" in planned
    assert '"svc:0.1.0" -> "svc:0.1.1"' in planned
    site.upgrades("apply")
    assert site.releases() == {f"{OWN}/v1": "superseded", f"{OWN}/v2": "deployed"}
    state = site.generations()
    with nothing_written():
        assert "nothing to do" in site.upgrades("apply")
    assert site.generations() == state
    site.upgrades("undo")
    assert site.releases()[f"{OWN}/v3"] == "deployed"
    assert site.substance() == before
    assert "nothing to undo" in site.upgrades("undo")
    site.upgrades("apply")
    site.upgrades("undo")
    assert site.releases()[f"{OWN}/v5"] == "deployed"
    assert site.substance() == before


@pytest.mark.parametrize("layout", ["old", "own"])
def test_each_write_names_what_it_was_made_for(site: ChartSite, layout: str) -> None:
    """By a resourceVersion, a test or a UID. A write that another program was faster than is refused, and read again.

    helm makes its own writes."""
    site.install_old_layout() if layout == "old" else site.install_own()
    before = site.substance()
    for verb in ("apply", "undo"):
        with watched_writes() as found, raced_writes(site.kube) as races:
            site.upgrades(verb, *(ACK if verb == "apply" else ()))
        require_guards(found)
        races.require_conflicts()
    assert site.substance() == before


@pytest.mark.parametrize("has_helm_failed", [False, True], ids=["done", "only adopted"])
def test_undo_gives_fields_back_to_their_managers(site: ChartSite, *, has_helm_failed: bool) -> None:
    """Their next server-side apply meets no conflict: of what the chart has changed, and of what was adopted."""
    site.install_old_layout()
    containers = [{"name": "controllers", "image": "svc:0.1.0"}]
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": {"spec": {"containers": containers}}}}
    mark = {"metadata": {"annotations": {NAMESPACE_MARK: FORMER}}}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"} | mark
    policy = {"apiVersion": "policy/v1beta1", "kind": "PodSecurityPolicy"} | mark  # which the new chart does not have
    bodies = {DEPLOYMENT: workload, ROLE: role, POLICY: policy}

    def apply() -> None:
        for path, body in bodies.items():
            site.kube.call("PATCH", f"{path}?fieldManager=gitops", body, "application/apply-patch+yaml")

    def managers() -> list[dict[str, Any]]:
        found = (site.kube.call("GET", path)["metadata"]["managedFields"] for path in bodies)
        return [{each["manager"]: each["fieldsV1"] for each in entries if each["operation"] == "Apply"} for entries in found]

    apply()
    before = managers()
    if has_helm_failed:
        fake_helm(site, "[ -e {0} ] || {{ touch {0}; echo no luck >&2; exit 1; }}".format(site.folder / "tried"))
    assert site.upgrade("apply", *ACK).exit_code == (3 if has_helm_failed else 0)
    lost = managers()
    assert [now != then for now, then in zip(lost[1:], before[1:], strict=True)] == [True, True]
    assert (lost[0] == before[0]) == has_helm_failed
    site.upgrades("undo")
    assert managers() == before
    apply()


@pytest.mark.parametrize("layout", ["old", "own"])
def test_undo_stops_at_an_object_that_was_changed_since(site: ChartSite, layout: str) -> None:
    """A rollback, and the restoration of the former objects, would write over it."""
    site.install_old_layout() if layout == "old" else site.install_own()
    before = site.substance()
    site.upgrades("apply", *ACK)
    site.edit(DEPLOYMENT, {"spec": {"replicas": 3}})
    refused = site.upgrade("undo")
    assert refused.exit_code == 3, refused.output
    assert "Deployment/kube-system/svc-controllers was changed since" in refused.stderr
    assert "Deployment/kube-system/svc-controllers: spec.replicas: 1 -> 3" in refused.stderr
    assert site.kube.call("GET", DEPLOYMENT)["spec"]["replicas"] == 3
    site.edit(DEPLOYMENT, {"spec": {"replicas": 1}})
    site.upgrades("undo")
    assert site.substance() == before


@pytest.mark.parametrize("layout", ["old", "own"])
def test_undo_stops_at_an_edit_although_nothing_has_rolled_out(site: ChartSite, kubelets: FakeKubelets, layout: str) -> None:
    """The administrator has edited the workload because it does not start."""
    site.install_old_layout() if layout == "old" else site.install_own()
    before = site.substance()
    kubelets.stuck["node1"] = ("ImagePullBackOff", "no such image")
    late = site.upgrade("apply", *ACK, "--timeout", "1s")
    assert late.exit_code == 5, late.output
    site.edit(DEPLOYMENT, {"spec": {"replicas": 3}})
    refused = site.upgrade("undo")
    assert refused.exit_code == 3, refused.output
    assert "Deployment/kube-system/svc-controllers was changed since" in refused.stderr
    assert site.kube.call("GET", DEPLOYMENT)["spec"]["replicas"] == 3
    site.edit(DEPLOYMENT, {"spec": {"replicas": 1}})
    kubelets.stuck.clear()
    site.upgrades("undo")
    assert site.substance() == before


def test_values_of_the_release_stay_without_others(site: ChartSite) -> None:
    site.install_own()
    site.values = None
    site.upgrades("apply")
    assert site.payload(site.secrets()[-1])["config"] == {"image": "svc:0.1.0", "flavour": "operator"}
    assert site.releases()[f"{OWN}/v2"] == "deployed"


def test_packed_chart(site: ChartSite) -> None:
    """An archive of helm is as good as a folder."""
    site.install_own()
    site.run_helm("package", str(site.chart), "-d", str(site.folder))
    site.chart = site.folder / "svc-0.1.1.tgz"
    site.upgrades("apply")
    assert "nothing to do" in site.upgrades("apply")


def test_definitions_come_before_the_release(site: ChartSite) -> None:
    """Undoing restores them."""
    site.install_own()
    site.definitions = copy.deepcopy(site.definitions)
    site.definitions[0]["metadata"]["labels"] = {"release": "new"}
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{site.definitions[0]['metadata']['name']}"
    site.upgrades("apply")
    record = site.record()
    assert record
    assert [name for name, state in record["steps"].items() if state == "done"] == [
        f"CustomResourceDefinition/{site.definitions[0]['metadata']['name']}", "helm-release",
    ]  # fmt: skip
    assert site.kube.call("GET", path)["metadata"]["labels"] == {"release": "new"}
    site.upgrades("undo")
    assert "labels" not in site.kube.call("GET", path)["metadata"]


def test_another_machine_undoes(site: ChartSite, tmp_path: Path) -> None:
    """It has only what is in the cluster."""
    site.install_old_layout()
    before = site.substance()
    site.upgrades("apply", *ACK)
    site.state_dir = tmp_path / "another"
    site.upgrades("undo")
    assert site.substance() == before
    assert site.releases() == {f"{FORMER}/v1": "deployed"}


def blocked(site: ChartSite, release: str = RELEASE, status: int = 3) -> str:
    """Apply what is refused before the first write, and return why."""
    before = site.generations()
    refused = site.upgrade("apply", *ACK, release=release)
    assert refused.exit_code == status, refused.output
    assert site.generations() == before
    assert site.record() is None
    return refused.stderr


def test_wrong_name_of_the_release(site: ChartSite) -> None:
    site.install_own()
    assert f"release wrong does not exist; the cluster has: {OWN}/{RELEASE}" in blocked(site, "wrong")


def test_object_of_another_release(site: ChartSite) -> None:
    """Each of its three marks counts."""
    site.install_old_layout()
    for patch, reason in (
        ({"labels": {"app.kubernetes.io/managed-by": "me"}}, "label app.kubernetes.io/managed-by is 'me', not Helm"),
        ({"annotations": {"meta.helm.sh/release-name": "x"}}, f"annotation meta.helm.sh/release-name is 'x', not {RELEASE}"),
        ({"annotations": {NAMESPACE_MARK: "x"}}, f"annotation {NAMESPACE_MARK} is 'x', not default or {OWN}"),
    ):
        live = site.kube.call("GET", ROLE)["metadata"]
        site.kube.call("PATCH", ROLE, {"metadata": patch}, _MERGE)
        assert f"ClusterRole/svc-controllers is not of release {RELEASE}: {reason}" in blocked(site)
        site.kube.call("PATCH", ROLE, {"metadata": {name: live[name] for name in patch}}, _MERGE)


def test_damaged_release(site: ChartSite) -> None:
    site.install_own()
    path = f"{SECRETS.format(OWN)}/sh.helm.release.v1.{RELEASE}.v1"
    for text in (b"damaged", base64.b64encode(b"damaged")):
        site.kube.call("PATCH", path, {"data": {"release": base64.b64encode(text).decode()}}, _MERGE)
        refused = site.upgrade("apply")
        assert refused.exit_code == 3
        assert f"Secret/{OWN}/sh.helm.release.v1.{RELEASE}.v1 is damaged" in refused.stderr
        assert site.record() is None


def test_secret_that_only_looks_like_a_revision(site: ChartSite) -> None:
    """It has the labels of the release: a user, or another tool, has given them to it. It stays."""
    site.install_old_layout()
    labels = {"name": RELEASE, "owner": "helm"}
    for name, kind in (("mine", "Opaque"), ("sh.helm.release.v1.other.v1", "helm.sh/release.v1")):
        site.kube.call("POST", SECRETS.format(FORMER), {"metadata": {"name": name, "labels": labels}, "type": kind})
    output = site.upgrades("apply", *ACK)
    assert "Secret/default/mine has the labels of the release, and is not a revision: it stays" in output
    left = {each["metadata"]["name"] for each in site.kube.call("GET", SECRETS.format(FORMER))["items"]}
    assert left == {"mine", "sh.helm.release.v1.other.v1"}


def test_two_releases(site: ChartSite) -> None:
    """Those of another name are left alone. One name in several namespaces is not clear."""
    other = site.folder / "other"
    (other / "templates").mkdir(parents=True)
    (other / "Chart.yaml").write_text("apiVersion: v2\nname: svc\nversion: 0.1.0\n")
    site.install_own()
    site.run_helm("install", "second", str(other), "-n", FORMER)
    site.upgrades("apply")
    assert site.releases()[f"{FORMER}/v1"] == "deployed"
    site.upgrades("undo")
    site.run_helm("install", RELEASE, str(other), "-n", "kube-public")
    refused = site.upgrade("apply")
    assert refused.exit_code == 3
    assert f"release {RELEASE} exists in several namespaces" in refused.stderr
    site.kube.forget("secrets/kube-public/")


def test_chart_of_another_name(site: ChartSite) -> None:
    site.install_own()
    file = site.chart / "Chart.yaml"
    file.write_text(file.read_text().replace("name: svc", "name: other"))
    assert f"release {RELEASE} is of chart svc, and the chart given is other" in blocked(site)


def test_older_chart(site: ChartSite) -> None:
    site.install_own()
    site.kube.call("PATCH", f"{INFORMATION}/default", {"spec": {"svcVersion": "0.1.7"}}, _MERGE)
    assert "the chart is of version 0.1.1, older than 0.1.7 of the cluster" in blocked(site)


def test_values_that_the_chart_refuses(site: ChartSite) -> None:
    site.install_own()
    site.values = site.write_values(flavour="none")
    assert "helm refuses the chart" in blocked(site)


@pytest.mark.parametrize("missing", ["--chart", "--release"])
def test_missing_inputs(site: ChartSite, missing: str) -> None:
    words = site.chart_words("plan")
    place = words.index(missing)
    done = site.call(*words[:place], *words[place + 2 :])
    assert done.exit_code == 2
    assert f"{missing} is missing" in done.stderr


def test_file_that_is_no_chart(site: ChartSite) -> None:
    site.chart = site.folder / "values.yaml"
    done = site.upgrade("plan")
    assert done.exit_code == 2
    assert f"--chart {site.chart}" in done.stderr


def test_missing_helm(site: ChartSite) -> None:
    site.install_own()
    site.helm = "/nowhere/helm"
    assert "the program /nowhere/helm is not on PATH" in blocked(site)


def test_user_runs_helm(site: ChartSite) -> None:
    """The plan shows the command, and the run waits until its result is there. helm need not be here."""
    site.install_old_layout()
    site.helm = "/nowhere/helm"
    planned = site.upgrades("plan", "--external-install")
    command = f"helm upgrade --install {RELEASE} {site.chart} -n {OWN} -f {site.values} --reset-values"
    assert f"run this: {command}" in planned
    late = site.upgrade("apply", "--external-install", "--timeout", "1s")
    assert late.exit_code == 5, late.output
    assert f"release {RELEASE} is not made from the chart yet" in late.stderr
    site.run_helm(*command.split()[1:])
    site.upgrades("apply", "--external-install", *ACK)
    require_new(site)


def fake_helm(site: ChartSite, body: str) -> None:
    """Put a program before helm that fails in its first upgrade."""
    file = site.folder / "helm"
    file.write_text(f'#!/bin/sh\ncase "$1" in upgrade) {body};; esac\nexec {HELM} "$@"\n')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    site.helm = str(file)


def test_helm_that_fails(site: ChartSite) -> None:
    """The run says what helm has said, and the next one goes on."""
    site.install_own()
    fake_helm(site, "[ -e {0} ] || {{ touch {0}; echo no luck >&2; exit 1; }}".format(site.folder / "tried"))
    failed = site.upgrade("apply")
    assert failed.exit_code == 3
    assert "helm: no luck" in failed.stderr
    site.upgrades("apply")
    assert site.releases()[f"{OWN}/v2"] == "deployed"


def test_pending_release_of_another_program(site: ChartSite) -> None:
    """Only what this run has begun is removed."""
    site.install_own()
    secret = site.secrets()[-1]
    payload = site.payload(secret)
    payload["info"]["status"], payload["version"] = "pending-upgrade", 2
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(payload).encode()))).decode()
    name = f"sh.helm.release.v1.{RELEASE}.v2"
    labels = secret["metadata"]["labels"] | {"version": "2", "status": "pending-upgrade"}
    body = {"metadata": {"name": name, "labels": labels}, "type": secret["type"], "data": {"release": packed}}
    site.kube.call("POST", SECRETS.format(OWN), body)
    assert f"revision 2 of release {OWN}/{RELEASE} is pending-upgrade: helm is at work, or was killed" in blocked(site)


def cut_off(number: int) -> list[Order]:
    """Return the orders that let writes of helm pass, and then none until the end."""
    dead = Order(Fate.NEVER_SENT, rf"^(?!GET).*({BY_HELM}|/sh\.helm)", times=10_000)
    return [Order(Fate.LATE, BY_HELM, times=number - 1), dead]


def prepared(site: ChartSite, layout: str) -> None:
    site.reset()
    if layout == "old":
        site.install_old_layout()
    else:
        site.install_own()


@pytest.mark.parametrize("layout", ["old", "own"])
def test_kill_while_helm_is_at_work(site: ChartSite, proxy: ApiProxy, layout: str) -> None:
    """helm dies with svcctl, and leaves a pending revision. The next run completes it; undoing works as well."""
    for verb in ("apply", "undo"):
        prepared(site, layout)
        before = site.substance()
        proxy.arm(Order(Fate.LATE, r"^(POST|PATCH) .*/daemonsets", seconds=4.0))
        words = site.chart_words("apply", *ACK, server=proxy.url)
        process = subprocess.Popen([sys.executable, "-c", MAIN, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: any("pending" in status for status in site.releases().values()))
        time.sleep(0.5)
        (helm,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(partial(has_ended, helm))
        proxy.disarm()
        assert any("pending" in status for status in site.releases().values())
        if verb == "apply":
            site.upgrades("apply", *ACK)
            assert {"deployed"} <= set(site.releases().values())
            assert not any("pending" in status for status in site.releases().values())
        site.upgrades("undo")
        assert site.substance() == before


def has_ended(pid: str) -> bool:
    file = Path(f"/proc/{pid}/status")
    return not file.exists() or "State:\tZ" in file.read_text()


def test_helm_that_is_cut_off(site: ChartSite, proxy: ApiProxy) -> None:
    """All its writes fail from the third one on."""
    site.install_old_layout()
    before = site.substance()
    for order in cut_off(3):
        proxy.arm(order)
    failed = site.upgrade("apply", *ACK, server=proxy.url)
    proxy.disarm()
    assert failed.exit_code == 3, failed.output
    site.upgrades("apply", *ACK)
    require_new(site)
    site.upgrades("undo")
    assert site.substance() == before


@pytest.mark.long
@pytest.mark.parametrize("layout", ["old", "own"])
@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.parametrize("first", range(1, PARTS + 1))
def test_kill_at_each_write(site: ChartSite, killer: Killer, layout: str, verb: str, first: int) -> None:
    """The next call completes what was written, and the end is the same. The tests share the writes of a run."""
    words = site.chart_words(verb, *(ACK if verb == "apply" else ()))

    def prepare() -> None:
        prepared(site, layout)
        if verb == "undo":
            done = killer.run(*site.chart_words("apply", *ACK))
            assert done.returncode == 0, done.stderr

    prepare()
    done = killer.run(*words)
    assert done.returncode == 0, done.stderr
    end, kills, writes = (site.substance(), site.releases()), 0, killer.writes
    for number in range(first, writes + 1, PARTS):
        for when in ("before", "after"):
            prepare()
            killed = killer.run(*words, kill_at=number, when=when)
            if killed.returncode == 0:  # there are fewer notes of waiting than before
                assert number > killer.writes
                continue
            assert killed.returncode == -9, (number, when, killed.stderr)
            resumed = killer.run(*words)
            assert resumed.returncode == 0, (number, when, resumed.stderr)
            assert (site.substance(), site.releases()) == end, (number, when)
            record = site.record()
            assert record
            assert record["state"] == ("done" if verb == "apply" else "undone"), (number, when)
            kills += 1
    print(f"{layout}, {verb}: {kills} kills, before and after every {PARTS}. of {writes} writes from {first} on")


@pytest.mark.long
@pytest.mark.parametrize("layout", ["old", "own"])
@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_kill_and_turn_round(site: ChartSite, killer: Killer, layout: str, verb: str) -> None:
    """Of a run that was killed, undo brings back what was there, and apply what an undone one has taken back."""

    def words(verb: str) -> list[str]:
        return site.chart_words(verb, *(ACK if verb == "apply" else ()))

    assert turn_round(killer, words, verb, site.substance, lambda: prepared(site, layout)) > 6


def run_with_fault(site: ChartSite, proxy: ApiProxy, number: int, name: str) -> int | None:
    """Apply with one write that fails, of svcctl or of helm. The run ends well or is blocked; the next one ends well.

    Return the exit status of the first run; None if it has made fewer writes."""
    prepared(site, "old")
    before = site.substance()
    orders = fault_at(number, name)
    for order in orders:
        proxy.arm(order)
    first = site.upgrade("apply", *ACK, server=proxy.url)
    proxy.disarm()
    if any(order.times for order in orders):
        return None
    assert first.exit_code in (0, 3), (number, name, first.output)
    second = site.upgrade("apply", *ACK, server=proxy.url)
    assert second.exit_code == 0, (number, name, first.output, second.output)
    assert set(site.owners().values()) == {OWN}
    undone = site.upgrade("undo")
    assert undone.exit_code == 0, (number, name, undone.output)
    assert site.substance() == before, (number, name)
    return first.exit_code


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("first", range(1, PARTS + 1))
def test_fault_at_each_write(site: ChartSite, proxy: ApiProxy, name: str, first: int) -> None:
    """The tests share the writes of a run."""
    found = []
    for number in itertools.count(first, PARTS):
        status = run_with_fault(site, proxy, number, name)
        if status is None:
            break
        found.append(status)
    assert len(found) > 1
    print(f"{name}: {len(found)} faults from write {first} on, {found.count(3)} blocked the run")
