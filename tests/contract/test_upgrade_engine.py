"""The engine of upgrades on a real API server: a manifest with a ConfigMap and a DaemonSet."""

import itertools
import json
import os
import signal
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.api_proxy import ApiProxy, Fate, Order
from harness.fake_kubelets import FakeKubelets
from harness.guarded_writes import raced_writes, require_guards, watched_writes
from harness.kube import Kube
from harness.polling import eventually
from harness.upgrade_faults import FAULTS, Killer, fault_at, killing, turn_round
from harness.upgrade_fixtures import kubelets, server_with
from harness.upgrade_site import (
    CONFIG,
    CONFIG_STEP,
    DAEMON_SET,
    DAEMON_SET_STEP,
    LAST_APPLIED,
    SYSTEM,
    UpgradeSite,
    config,
    daemon_set,
    new,
    old,
    running_site,
    small_disk,
)
from svc.datastore.open import open_client
from svc.datastore.orch.client import Client
from svc.names import DEFAULT
from svc.upgrade import node_checks, stalled_nodes
from svc.upgrade.canary import CANARY
from svc.upgrade.node_checks import CHECK, check_nodes
from svc.upgrade.stalled_nodes import StalledNodes
from svc.upgrade.writer import Writer

__all__ = ["kubelets"]  # a fixture

pytestmark = pytest.mark.server
server = server_with("daemonset")


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with killing() as made:
        yield made


@pytest.fixture
def proxy(server: Kube) -> Iterator[ApiProxy]:
    with ApiProxy(server) as made:
        yield made


@pytest.fixture
def site(server: Kube, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UpgradeSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.step_runner.PAUSE_SECONDS", 0.05)
    kubelets.stuck.clear()
    for made in running_site(server, tmp_path):
        made.install(old())
        yield made


def test_plan_apply_and_undo(site: UpgradeSite) -> None:
    """The new manifest replaces the former one, whose other fields go; undoing brings back what was there."""
    before = site.state(old())
    planned = site.run("plan")
    assert planned.exit_code == 0, planned.output
    assert 'spec.template.spec.containers[agent].image: "svc:0.1.0" -> "svc:0.1.1"' in planned.output
    assert site.state(old()) == before
    done = site.run("apply")
    assert done.exit_code == 0, done.output
    found = site.kube.call("GET", DAEMON_SET)
    assert (
        found["spec"]["template"]["spec"]["containers"][0]["env"]
        == new()[1]["spec"]["template"]["spec"]["containers"][0]["env"]
    )
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1500", "added": "y"}
    assert LAST_APPLIED not in found["metadata"].get("annotations", {})
    record = site.record()
    assert record
    assert (record["state"], record["from"], record["to"]) == ("done", "0.1.0", "0.1.1")
    assert record["steps"] == {
        "remove-references": "skipped", CONFIG_STEP: "done", DAEMON_SET_STEP: "done", "restore-references": "skipped",
    }  # fmt: skip
    assert site.run("verify").exit_code == 0
    undone = site.run("undo")
    assert undone.exit_code == 0, undone.output
    assert site.state(old()) == before


def test_second_apply_changes_nothing(site: UpgradeSite) -> None:
    """It writes nothing at all, and takes a few seconds at most."""
    site.succeeds("apply")
    before = site.everything()
    began = time.monotonic()
    again = site.run("apply")
    assert (again.exit_code, again.stdout) == (0, "nothing to do\n")
    assert time.monotonic() - began < 10
    assert site.everything() == before


def test_plan_writes_nothing(site: UpgradeSite) -> None:
    before = site.everything()
    assert site.run("plan", "-o", "json").exit_code == 0
    assert site.everything() == before


def test_wrong_files_of_a_plan_are_wrong_use(site: UpgradeSite, tmp_path: Path) -> None:
    """No status says that an error is another one than those of the documentation."""
    missing, text = tmp_path / "none" / "plan.json", tmp_path / "text"
    text.write_text("no plan")
    for words, message in (
        (
            ("plan", "--out", str(missing)),
            f"--out '{missing}' cannot be written: No such file or directory: name a file",
        ),
        (("plan", "--out", str(tmp_path)), f"Error: --out '{tmp_path}' is a directory"),
        (("apply", "--plan", str(text)), f"Error: {text} is not a plan"),
        (("apply", "--plan", str(missing)), f"Error: file '{missing}' cannot be read"),
    ):
        refused = site.run(*words)
        assert refused.exit_code == 2, words
        assert message in refused.stderr
    assert site.record() is None


def test_apply_refuses_another_cluster_than_that_of_the_plan(site: UpgradeSite, tmp_path: Path) -> None:
    """Steps of the plan that are done do not count, so an interrupted run can go on with its plan."""
    file = tmp_path / "plan.json"
    assert site.run("plan", "--out", str(file)).exit_code == 0
    site.edit(CONFIG, {"data": {"mtu": "1400"}})
    refused = site.run("apply", "--plan", str(file))
    assert refused.exit_code == 3
    assert f"{CONFIG_STEP} was changed since the plan was made" in refused.stderr
    assert site.record() is None
    site.edit(CONFIG, {"data": {"mtu": "1500"}})
    for _ in range(2):
        done = site.run("apply", "--plan", str(file))
        assert done.exit_code == 0, done.output


def test_edits_are_carried_over_or_in_conflict(site: UpgradeSite) -> None:
    """A field that the new manifest leaves as it was keeps its edit; another one asks for consent."""
    site.edit(CONFIG, {"data": {"mtu": "1400"}}, "first")
    site.edit(CONFIG, {"data": {"mtu": "1450"}}, "second")
    site.edit(DAEMON_SET, {"spec": {"template": {"spec": {"containers": [{"name": "agent", "image": "mirror/svc:0.1.0"}]}}}})
    asked = site.run("apply")
    assert asked.exit_code == 4, asked.output
    assert "containers[name=agent].image = 'mirror/svc:0.1.0', set by kubectl-edit" in asked.stderr
    assert f"--ack {DAEMON_SET_STEP}" in asked.stderr
    assert site.record() is None
    planned = site.run("plan")
    assert "data.mtu = '1450', set by second, is carried over" in planned.stdout
    done = site.run("apply", "--ack", DAEMON_SET_STEP, "--ack", "DaemonSet/other")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("note: --ack DaemonSet/other names no step of this run\n")
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1450", "added": "y"}
    (agent,) = site.kube.call("GET", DAEMON_SET)["spec"]["template"]["spec"]["containers"]
    assert agent["image"] == "svc:0.1.1"


PROGRAMS = ("gitops", "tuner")


def edited_by_three(site: UpgradeSite) -> None:
    """Let a person and two programs set one field to the same value: it belongs to all of them."""
    site.edit(CONFIG, {"data": {"mtu": "1450"}}, "person")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"mtu": "1450"}}
    for program in PROGRAMS:
        site.kube.call("PATCH", f"{CONFIG}?fieldManager={program}&force=true", body, "application/apply-patch+yaml")
    assert owners_of_mtu(site) == {"person", *PROGRAMS}


def owners_of_mtu(site: UpgradeSite) -> set[str]:
    managed = site.kube.call("GET", CONFIG)["metadata"]["managedFields"]
    return {each["manager"] for each in managed if "f:mtu" in each["fieldsV1"].get("f:data", {})}


def test_edit_by_three_managers_is_carried_over(site: UpgradeSite) -> None:
    """The field stays with all of them, also after the next release, and after undoing."""
    edited_by_three(site)
    planned = site.run("plan")
    assert planned.exit_code == 0, planned.output
    (note,) = (line for line in planned.stdout.splitlines() if "is carried over" in line)
    assert "data.mtu = '1450', set by " in note
    assert all(manager in note for manager in ("person", *PROGRAMS))
    site.succeeds("apply")
    assert owners_of_mtu(site) == {"person", *PROGRAMS}
    done = site.run("apply", documents=[config(mtu="1500", added="z"), daemon_set("svc:0.1.2")])
    assert done.exit_code == 0, done.output
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1450", "added": "z"}
    assert owners_of_mtu(site) == {"person", *PROGRAMS}
    site.succeeds("undo")
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1450", "added": "y"}


def test_edit_by_three_managers_that_the_manifest_has_too(site: UpgradeSite) -> None:
    """svcctl owns the field beside them, without a question."""
    edited_by_three(site)
    done = site.run("apply", documents=[config(mtu="1450"), daemon_set("svc:0.1.1")])
    assert done.exit_code == 0, done.output
    assert "mtu" not in done.output
    assert owners_of_mtu(site) == {"svcctl", "person", *PROGRAMS}


def test_edit_by_three_managers_in_conflict(site: UpgradeSite) -> None:
    """All of them are named. With consent, the field belongs to svcctl alone."""
    edited_by_three(site)
    documents = [config(mtu="1300"), daemon_set("svc:0.1.1")]
    asked = site.run("apply", documents=documents)
    assert asked.exit_code == 4, asked.output
    assert "data.mtu = '1450', set by " in asked.stderr
    assert all(manager in asked.stderr for manager in ("person", *PROGRAMS))
    assert "the manifest has '1300', the former one: '1500'" in asked.stderr
    assert site.record() is None
    done = site.run("apply", "--ack", CONFIG_STEP, documents=documents)
    assert done.exit_code == 0, done.output
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1300"}
    assert owners_of_mtu(site) == {"svcctl"}
    site.succeeds("undo")
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1450", "gone": "x"}


def test_last_of_three_edits_counts(site: UpgradeSite) -> None:
    """Each has another value: the field belongs to the last one."""
    for manager, mtu in (("first", "1400"), ("second", "1450"), ("third", "1480")):
        site.edit(CONFIG, {"data": {"mtu": mtu}}, manager)
    planned = site.run("plan")
    assert "data.mtu = '1480', set by third, is carried over" in planned.stdout
    site.succeeds("apply")
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1480", "added": "y"}


def test_next_release_knows_what_this_one_applied(site: UpgradeSite) -> None:
    """The former run has the base of the three-way merge, which no annotation has any more."""
    site.succeeds("apply")
    site.edit(CONFIG, {"data": {"mtu": "1400"}})
    newer = [config(mtu="1500", added="z"), daemon_set("svc:0.1.2")]
    done = site.run("apply", documents=newer)
    assert done.exit_code == 0, done.output
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1400", "added": "z"}
    site.succeeds("undo")
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1400", "added": "y"}


def test_undo_stops_at_what_was_changed_since(site: UpgradeSite) -> None:
    site.succeeds("apply")
    site.edit(CONFIG, {"data": {"added": "by hand"}})
    refused = site.run("undo")
    assert refused.exit_code == 3
    assert f"{CONFIG_STEP} was changed since" in refused.stderr
    assert "data.added: 'y' -> 'by hand'" in refused.stderr
    (agent,) = site.kube.call("GET", DAEMON_SET)["spec"]["template"]["spec"]["containers"]
    assert agent["image"] == "svc:0.1.1", "its pods would read the ConfigMap as it is"
    site.edit(CONFIG, {"data": {"added": "y"}})
    site.succeeds("undo")
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1500", "gone": "x"}


def owners(site: UpgradeSite) -> dict[tuple[str, str], object]:
    """Return the fields of each manager of the DaemonSet, without its status."""
    found = site.kube.call("GET", DAEMON_SET)["metadata"]["managedFields"]
    return {(each["manager"], each["operation"]): each["fieldsV1"] for each in found if "f:status" not in each["fieldsV1"]}


def declare(site: UpgradeSite, image: str, *, force: bool) -> None:
    """Apply the image of the agent as a program does that applies a repository."""
    body = daemon_set(image)
    del body["spec"]["selector"], body["spec"]["template"]["metadata"]
    path = f"{DAEMON_SET}?fieldManager=gitops&force={str(force).lower()}"
    site.kube.call("PATCH", path, body, "application/apply-patch+yaml")


@pytest.mark.parametrize("interrupted", [False, True])
def test_undo_gives_fields_back_to_their_managers(
    site: UpgradeSite, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """What consent has taken from a manager is its own again: its next apply needs no force."""
    declare(site, "mirror/svc:0.1.0", force=True)
    site.edit(CONFIG, {"data": {"mtu": "1400"}})
    before = owners(site)
    site.succeeds("apply", "--ack", DAEMON_SET_STEP)
    assert owners(site) != before
    if interrupted:
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "patch", interrupt)
            assert site.run("undo").exit_code == 130
    site.succeeds("undo")
    assert owners(site) == before
    declare(site, "mirror/svc:0.1.9", force=False)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_another_machine_continues_and_undoes(site: UpgradeSite, tmp_path: Path) -> None:
    """It has only what is in the cluster."""
    before = site.state(old())
    site.succeeds("apply")
    site.state_dir = tmp_path / "another"
    site.succeeds("undo")
    assert site.state(old()) == before


def test_backup_is_private_and_complete(site: UpgradeSite) -> None:
    site.succeeds("apply")
    record = site.record()
    assert record
    folder = site.state_dir / "upgrade" / record["run"]
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    steps = [json.loads(line)[0] for line in file.read_text().splitlines()]
    assert steps == [CONFIG_STEP, DAEMON_SET_STEP]


@pytest.mark.root
def test_full_disk_at_the_backup_changes_nothing(site: UpgradeSite, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as folder:
        site.state_dir = folder / "state"
        before = site.state(old())
        refused = site.run("apply")
    assert refused.exit_code == 3, refused.output
    assert "the backup cannot be written" in refused.stderr
    assert site.state(old()) == before
    assert site.record() is None


def test_deleted_record_is_written_again(site: UpgradeSite, kubelets: FakeKubelets, killer: Killer) -> None:
    """Without it, the next run finds the backup of the interrupted one."""
    before = site.state(old())
    assert killer.run(*site.words("apply"), kill_at=9, when="after").returncode == -9
    site.kube.uproot("configmaps/kube-system/svc-upgrade")
    site.succeeds("apply")
    site.succeeds("undo")
    assert site.state(old()) == before


def test_undo_without_a_record(site: UpgradeSite) -> None:
    """The Secrets are enough."""
    before = site.state(old())
    site.succeeds("apply")
    site.kube.uproot("configmaps/kube-system/svc-upgrade")
    site.succeeds("undo")
    assert site.state(old()) == before
    assert site.run("undo").stdout == "nothing to undo\n"


def test_one_run_at_a_time(site: UpgradeSite, kubelets: FakeKubelets, killer: Killer) -> None:
    """A second run is refused while the first one waits."""
    kubelets.stuck["node2"] = ("ImagePullBackOff", "no such image")
    first = threading.Thread(target=killer.run, args=site.words("apply"))
    first.start()
    try:
        eventually(site.record, lambda found: found and found["steps"][DAEMON_SET_STEP] == "waiting")
        second = site.run("apply")
        assert second.exit_code == 3
        assert "another run of svcctl upgrade is at work" in second.stderr
    finally:
        kubelets.stuck.clear()
        first.join()
    assert site.run("verify").exit_code == 0


def test_stuck_node_is_named(site: UpgradeSite, kubelets: FakeKubelets) -> None:
    """The run ends after its time, and the next one goes on."""
    kubelets.stuck["node2"] = ("ImagePullBackOff", "no such image")
    late = site.run("apply", "--timeout", "3s")
    assert late.exit_code == 5, late.output
    assert "node node2, pod svc-node-" in late.stderr
    assert "ImagePullBackOff: no such image" in late.stderr
    assert "its log cannot be read" in late.stderr
    kubelets.stuck.clear()
    site.succeeds("apply")


def test_stuck_node_is_named_with_the_end_of_its_log(site: UpgradeSite, kubelets: FakeKubelets, proxy: ApiProxy) -> None:
    """Kubelets of tests serve no logs: the proxy answers in their place."""
    kubelets.stuck["node2"] = ("CrashLoopBackOff", "back-off 10s")
    proxy.arm(Order(Fate.ANSWERED, r"GET .*/log", times=99, status=200, body=b"starting\ncannot read /etc/x\n"))
    late = site.run("apply", "--timeout", "3s", server=proxy.url)
    proxy.disarm()
    kubelets.stuck.clear()
    assert late.exit_code == 5, late.output
    assert "CrashLoopBackOff: back-off 10s; its log ends with: starting | cannot read /etc/x" in late.stderr


def test_run_with_other_inputs_is_not_continued(site: UpgradeSite, kubelets: FakeKubelets) -> None:
    kubelets.stuck["node2"] = ("Pending", "")
    assert site.run("apply", "--timeout", "0s").exit_code == 5
    kubelets.stuck.clear()
    other = [config(mtu="1500"), daemon_set("svc:0.1.2")]
    refused = site.run("apply", documents=other)
    assert refused.exit_code == 3
    assert "is not finished, and had other inputs" in refused.stderr
    site.succeeds("undo")
    assert site.run("apply", documents=other).exit_code == 0


@pytest.mark.parametrize(
    ("verb", "step"),
    [
        pytest.param("apply", 1, marks=pytest.mark.long),
        pytest.param("undo", 1, marks=pytest.mark.long),
        pytest.param("apply", 4, marks=pytest.mark.slow),
        pytest.param("undo", 4, marks=pytest.mark.slow),
    ],
)
def test_kill_at_each_write(site: UpgradeSite, killer: Killer, verb: str, step: int) -> None:
    """The next call completes what was written, and the end is the same. With a larger step only some writes are tried."""

    def prepare() -> None:
        site.clear()
        site.install(old())
        if verb == "undo":
            assert killer.run(*site.words("apply")).returncode == 0

    prepare()
    done = killer.run(*site.words(verb))
    assert done.returncode == 0, done.stderr
    end, kills = site.state([*old(), *new()]), 0
    writes = killer.writes
    for number in range(1, writes + 1, step):
        for when in ("before", "after"):
            prepare()
            killed = killer.run(*site.words(verb), kill_at=number, when=when)
            if killed.returncode == 0:  # fewer writes than before were repeated because of a controller
                assert number > killer.writes
                continue
            assert killed.returncode == -9, (number, when, killed.stderr)
            resumed = killer.run(*site.words(verb))
            assert resumed.returncode == 0, (number, when, resumed.stderr)
            assert site.state([*old(), *new()]) == end, (number, when)
            record = site.record()
            assert record
            assert record["state"] == ("done" if verb == "apply" else "undone"), (number, when)
            kills += 1
    assert kills > writes // step
    print(f"{verb}: {kills} kills, before and after every {step}. of {writes} writes")


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_kill_and_turn_round(site: UpgradeSite, killer: Killer, verb: str) -> None:
    """Of a run that was killed, undo brings back what was there, and apply what an undone one has taken back."""
    documents = [*old(), *new()]
    assert turn_round(killer, site.words, verb, lambda: site.state(documents), lambda: None) > 6


def run_with_fault(site: UpgradeSite, proxy: ApiProxy, verb: str, number: int, name: str) -> int | None:
    """Apply or undo with one write that fails. The run ends well or is blocked; the next one ends well.

    Return the exit status of the first run; None if it has made fewer writes."""
    site.clear()
    site.install(old())
    if verb == "undo":
        site.succeeds("apply")
    orders = fault_at(number, name)
    for order in orders:
        proxy.arm(order)
    first = site.run(verb, server=proxy.url)
    proxy.disarm()
    if any(order.times for order in orders):
        return None
    assert first.exit_code in (0, 3), (number, name, first.output)
    second = site.run(verb, server=proxy.url)
    assert second.exit_code == 0, (number, name, first.output, second.output)
    if verb == "apply":
        assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1500", "added": "y"}
        undone = site.run("undo")
        assert undone.exit_code == 0, (number, name, undone.output)
    assert site.kube.call("GET", CONFIG)["data"] == {"mtu": "1500", "gone": "x"}
    record = site.record()
    assert record
    assert record["state"] == "undone", (number, name)
    return first.exit_code


def run_with_faults(site: UpgradeSite, proxy: ApiProxy, verb: str, names: Iterator[str]) -> None:
    """Let each write of a run fail, one after the other."""
    found = []
    for number, name in enumerate(names, 1):
        status = run_with_fault(site, proxy, verb, number, name)
        if status is None:
            break
        found.append(status)
    assert len(found) > 6
    print(f"{verb}: {len(found)} faults, {found.count(3)} blocked the run")


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_fault_at_each_write(site: UpgradeSite, proxy: ApiProxy, verb: str) -> None:
    """Each write gets one of the faults."""
    run_with_faults(site, proxy, verb, itertools.cycle(FAULTS))


@pytest.mark.long
@pytest.mark.parametrize("verb", ["apply", "undo"])
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_at_each_write(site: UpgradeSite, proxy: ApiProxy, verb: str, name: str) -> None:
    run_with_faults(site, proxy, verb, itertools.repeat(name))


def test_interrupt_stops_after_the_current_request(site: UpgradeSite, kubelets: FakeKubelets, killer: Killer) -> None:
    """The Lease is free at once, and the next run goes on."""
    kubelets.stuck["node2"] = ("ImagePullBackOff", "no such image")
    done = killer.run(*site.words("apply"), kill_at=8, when="interrupt")
    kubelets.stuck.clear()
    assert done.returncode == 130, done.stderr
    lease = site.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/svc-upgrade")
    assert lease
    assert not lease["spec"].get("holderIdentity")
    site.succeeds("apply")


def test_upgraded_node_that_gives_no_address(
    site: UpgradeSite, kubelets: FakeKubelets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that gets no address makes the run fail. The next run tries again."""
    monkeypatch.setattr("svc.upgrade.canary.CANARY_SECONDS", 1.0)
    kubelets.without_address.add("svc-upgrade-canary")
    failed = site.run("apply")
    assert failed.exit_code == 6, failed.output
    assert f"Pod/{SYSTEM}/svc-upgrade-canary on node node" in failed.stderr
    kubelets.without_address.clear()
    site.succeeds("apply")
    assert site.get(f"/api/v1/namespaces/{SYSTEM}/pods/svc-upgrade-canary") is None


def test_interrupted_proof_leaves_no_pod(site: UpgradeSite, kubelets: FakeKubelets) -> None:
    """The run ends at once, and its pod with it."""
    kubelets.without_address.add(CANARY.name)
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{CANARY.name}"

    def interrupt_at_the_pod() -> None:
        eventually(lambda: [each for each in kubelets.pods() if each["metadata"]["name"] == CANARY.name], bool)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt_at_the_pod)
    thread.start()
    try:
        stopped = site.run("apply")
    finally:
        thread.join()
        kubelets.without_address.clear()
    assert stopped.exit_code == 130, stopped.output
    assert eventually(lambda: site.get(path) is None, bool)
    site.succeeds("apply")


def test_undo_removes_the_pod_of_a_failed_proof(
    site: UpgradeSite, kubelets: FakeKubelets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc.upgrade.canary.CANARY_SECONDS", 1.0)
    kubelets.without_address.add(CANARY.name)
    assert site.run("apply").exit_code == 6
    kubelets.without_address.clear()
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{CANARY.name}"
    assert site.get(path) is not None
    site.succeeds("undo")
    assert eventually(lambda: site.get(path) is None, bool)


def test_each_write_names_what_it_was_made_for(site: UpgradeSite) -> None:
    """By a resourceVersion, a test or a UID: those of a run, of an undoing, and of the next run."""
    with watched_writes() as found:
        site.succeeds("apply")
        site.succeeds("undo")
        site.succeeds("apply")
    require_guards(found)
    assert {method for method, _, _ in found} == {"POST", "PUT", "PATCH", "DELETE"}


def test_undo_restores_settings_before_the_workload_that_reads_them(site: UpgradeSite) -> None:
    """Its pods read them when they start. Settings that the run has created go after the pods that read those."""
    added = config(mtu="1")
    added["metadata"]["name"] = "svc-added"
    place = "/api/v1/namespaces/kube-system/configmaps/svc-added"
    done = site.run("apply", documents=[added, *new()])
    assert done.exit_code == 0, done.output
    with watched_writes() as found:
        site.succeeds("undo")
    paths = [path for method, path, _ in found if method in ("PUT", "DELETE")]
    assert [path for path in paths if path in (CONFIG, DAEMON_SET, place)] == [CONFIG, DAEMON_SET, place]


def test_change_between_read_and_write_is_read_again(site: UpgradeSite) -> None:
    """The server refuses the write, and the next one is made from what was read since."""
    before = site.state(old())
    with raced_writes(site.kube) as races:
        site.succeeds("apply")
    races.require_conflicts()
    with raced_writes(site.kube) as races:
        site.succeeds("undo")
    races.require_conflicts()
    assert site.state(old()) == before


def test_backup_is_durable_before_the_first_write(site: UpgradeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and its folder are synchronised before a request changes something; the Lease was taken before."""
    events, sync = list[str](), os.fsync

    def synchronised(descriptor: int) -> None:
        sync(descriptor)
        events.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")

    monkeypatch.setattr(os, "fsync", synchronised)
    send = Client._call

    def call(self: Client, method: str, path: str, body: object = None, *more: Any, **options: Any) -> Any:
        params = options.get("params") or (more[1] if len(more) > 1 else {}) or {}
        if method != "GET" and "dryRun" not in params and "/leases" not in path:
            events.append(f"{method} {path.partition('?')[0]}")
        return send(self, method, path, body, *more, **options)

    monkeypatch.setattr(Client, "_call", call)
    site.succeeds("apply")
    record = site.record()
    assert record
    number = next(index for index, event in enumerate(events) if not event.startswith("fsync"))
    draft, folder = events[:number][-2:]
    assert draft.startswith("fsync .1.jsonl.")
    assert folder == f"fsync {record['run']}"
    assert events[number] == f"POST /api/v1/namespaces/{SYSTEM}/secrets"
    assert "jsonl" not in "".join(events[number:])


@pytest.mark.parametrize("verb", ["plan", "status"])
def test_yaml_says_the_same_as_json(site: UpgradeSite, verb: str) -> None:
    if verb == "status":
        site.succeeds("apply")
    printed = [site.run(verb, "-o", form) for form in ("json", "yaml")]
    assert [each.exit_code for each in printed] == [0, 0], printed[1].output
    (document,) = json.loads(printed[0].stdout)
    assert yaml.safe_load(printed[1].stdout) == document
    assert document["steps"]


def test_large_backup_is_divided(site: UpgradeSite, tmp_path: Path) -> None:
    """It takes several Secrets, which another machine joins."""
    site.kube.uproot(f"configmaps/{SYSTEM}/svc-settings")
    site.kube.call("POST", f"{CONFIG.rpartition('/')[0]}?fieldManager=before-first-apply", config(large="x" * 600_000))
    newer = [config(large="y" * 600_000), daemon_set("svc:0.1.1")]
    before = site.state(newer)
    done = site.run("apply", documents=newer)
    assert done.exit_code == 0, done.output
    secrets = site.kube.call("GET", f"/api/v1/namespaces/{SYSTEM}/secrets?labelSelector=svc-upgrade-run")["items"]
    sizes = [len(b64decode(each["data"]["entries"])) for each in secrets]
    assert len(sizes) >= 2
    assert max(sizes) <= 900_000
    assert sum(sizes) > 1_200_000
    site.state_dir = tmp_path / "another"
    site.succeeds("undo")
    assert site.state(newer) == before


@pytest.mark.long
def test_next_run_removes_the_secrets_of_this_one(site: UpgradeSite) -> None:
    site.succeeds("apply")
    first = site.record()
    done = site.run("apply", documents=[config(mtu="1500"), daemon_set("svc:0.1.2")])
    assert done.exit_code == 0, done.output
    second = site.record()
    assert first
    assert second
    secrets = site.kube.call("GET", f"/api/v1/namespaces/{SYSTEM}/secrets?labelSelector=svc-upgrade-run")["items"]
    assert {each["metadata"]["labels"]["svc-upgrade-run"] for each in secrets} == {second["run"]}
    assert first["run"] != second["run"]
    status = site.run("status")
    assert f"run {second['run']}: manifests, from 0.1.1 to 0.1.2: done" in status.stdout


FINDING = "attachment-unallocated  net c1 eth0  1 min  10.65.0.7 is not allocated (pod a/b)  recreate its workload"


def test_agents_of_sample_nodes_check_their_attachments(site: UpgradeSite, kubelets: FakeKubelets) -> None:
    """A pod asks each of them. What was known before does not count."""
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{CHECK.name}"
    agent = {"name": "agent", "command": ["svc-agent"], "args": ["run", "--run-dir", "/run/mine"]}
    site.edit(DAEMON_SET, {"spec": {"template": {"spec": {"containers": [agent]}}}})
    with closing(open_client({"kubeconfig": str(site.kubeconfig)})) as client:
        writer = Writer(client, DEFAULT, nullcontext)
        eventually(lambda: {node for node, _ in node_checks._samples(writer)}, lambda nodes: nodes == {"node1", "node2"})
        kubelets.ended[CHECK.name] = ("Succeeded", "")
        assert check_nodes(writer, time.sleep) == []
        kubelets.ended[CHECK.name] = ("Failed", f"ID  OBJECT  SINCE\n{FINDING}\njournal: 3 rows\n")
        found = check_nodes(writer, time.sleep)
        assert sorted(found) == [
            f"node {node}: `svcctl reconcile` there: {' '.join(FINDING.split())}" for node in ("node1", "node2")
        ]
        assert check_nodes(writer, time.sleep, ["10.65.0.7"]) == []
        (found_on_one,) = check_nodes(writer, time.sleep, (), ["node1"])
        assert found_on_one.startswith("node node2: ")
    assert eventually(lambda: site.get(path) is None, bool)


def test_nodes_that_do_not_follow(site: UpgradeSite, kubelets: FakeKubelets, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is that of each node, and counts when it has lasted."""
    monkeypatch.setattr(stalled_nodes, "LOOK_SECONDS", 0.0)
    names = ["gone", "node1", "node2"]
    with closing(open_client({"kubeconfig": str(site.kubeconfig)})) as client:
        stalled = StalledNodes(Writer(client, DEFAULT, nullcontext))
        eventually(lambda: stalled.reasons(names), lambda found: found == {"gone": "it is gone"})
        assert not stalled.has_lasted(["gone"])
        site.edit(DAEMON_SET, {"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node2"}}}}})
        site.edit("/api/v1/nodes/node2", {"spec": {"unschedulable": True}})
        try:
            wanted = {"gone": "it is gone", "node1": "it has no agent of svc", "node2": "it is cordoned"}
            eventually(lambda: stalled.reasons(names), lambda found: found == wanted)
            monkeypatch.setattr(stalled_nodes, "GRACE_SECONDS", 0.0)
            assert stalled.has_lasted(names)
        finally:
            site.edit("/api/v1/nodes/node2", {"spec": {"unschedulable": None}})


def said(*lines: str) -> list[str]:
    """Return what counts of a pod that has failed with these lines."""
    state = {"terminated": {"message": "\n".join(lines)}}
    return node_checks._said({"status": {"phase": "Failed", "containerStatuses": [{"state": state}]}})


def test_what_a_check_of_a_node_says() -> None:
    """A line about waiting does not count as a finding. A pod that fails without a finding has checked nothing."""
    waiting = "waiting 60 s, to see again what a call in flight may explain: 1 attachment-unallocated"
    assert said(waiting, "ID  OBJECT", FINDING, "journal: 3 rows") == [" ".join(FINDING.split())]
    assert said(waiting) == said() == ["it has failed without a finding"]
    assert node_checks._said({"status": {"phase": "Succeeded"}}) == []


def test_check_asks_the_agent_of_the_node() -> None:
    """It has the socket, and nothing else of the node."""
    pod = node_checks._pod("node1", {"image": "svc:1", "args": ["run", "--run-dir", "/run/mine"]})["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["svcctl", "--state-dir", DEFAULT.state_dir, "--run-dir", "/run/mine", "reconcile"]
    assert {each["hostPath"]["path"] for each in pod["volumes"]} == {DEFAULT.state_dir, "/run/mine"}
    assert all(each["readOnly"] for each in container["volumeMounts"])
