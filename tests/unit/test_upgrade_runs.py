"""Parts of runs without a cluster: identities, parts of a backup, plans, programs on PATH, records."""

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from svc.ctl.commands.upgrade import _read_plan
from svc.leader.election import Holding
from svc.model.errors import CallerError
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile
from svc.upgrade.backup import _complete_batches
from svc.upgrade.bundle import Bundle, container_of, version_of
from svc.upgrade.client_versions import installed, older
from svc.upgrade.engine import _joined
from svc.upgrade.etcd_access import accesses
from svc.upgrade.manifest_procedure import flavour_of, pattern_of
from svc.upgrade.manifest_source import read_manifest
from svc.upgrade.outcomes import Blocked, Waits
from svc.upgrade.plan import changes_since
from svc.upgrade.procedures import procedure_of
from svc.upgrade.request import Request
from svc.upgrade.run_lease import _OneLead, is_alive, is_dead, own_identity
from svc.upgrade.run_record import Run, run_from
from svc.upgrade.step import PARTS
from svc.upgrade.writer import Writer


def test_process_of_this_machine_is_known_to_live_or_not() -> None:
    mine = own_identity()
    assert (is_alive(mine), is_dead(mine)) == (True, False)
    ended = subprocess.run(
        [sys.executable, "-c", "from svc.upgrade.run_lease import own_identity; print(own_identity())"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert (is_alive(ended), is_dead(ended)) == (False, True)


@pytest.mark.parametrize("holder", ["", "elsewhere/boot/pid:[1]/1/2", "a text"])
def test_other_holders_neither_live_nor_are_dead(holder: str) -> None:
    assert (is_alive(holder), is_dead(holder)) == (False, False)


@pytest.mark.parametrize("found", [None, Holding("", 15, "2"), Holding("another", 15, "2")])
def test_lost_lease_is_not_taken_again(found: Holding | None) -> None:
    """Another run may have changed since what this one has looked at."""
    clock = [1000.0]
    election = _OneLead("mine", lambda: clock[0])
    assert election.observe(None)
    election.renewed(clock[0])
    assert election.observe(Holding("mine", 15, "1"))
    clock[0] += 100
    assert not election.observe(found)
    clock[0] += 100
    assert not election.observe(found)
    assert not election.leads


def test_parts_of_a_backup_are_joined_in_the_order_of_their_numbers() -> None:
    """The tenth part comes after the second. A batch without all of its parts does not count."""
    parts = sorted((1, number, 11, str(number).encode()) for number in range(11, 0, -1))
    assert _complete_batches([*parts, (2, 1, 2, b"x")]) == {1: b"1234567891011"}


def test_record_survives_a_round_trip() -> None:
    run = Run("r", "manifests", "0.1.0", "0.1.1", {"manifest": "x"}, "running", {"a": "done"})
    assert run_from(run.to_json()) == run


WHOLE = Run("r", "p", "", "", {}, "done", {}).to_json()


@pytest.mark.parametrize(
    "data", [{}, {"run": "r"}, WHOLE | {"steps": "{"}, WHOLE | {"steps": "null"}, WHOLE | {"inputs": "[1]"}]
)
def test_damaged_record_blocks(data: dict[str, str]) -> None:
    with pytest.raises(Blocked, match="is damaged"):
        run_from(data)


def test_plan_allows_what_it_planned() -> None:
    step = {"name": "a", "state": "to do", "before": "1", "after": "2"}
    plan = {"procedure": "manifests", "inputs": {}, "source": "1", "target": "2", "steps": [step]}
    assert list(changes_since(plan, plan)) == []
    assert list(changes_since(plan, plan | {"steps": [step | {"before": "2"}]})) == []
    assert list(changes_since(plan, plan | {"steps": [step | {"before": "3"}]})) == ["a was changed since the plan was made"]
    assert list(changes_since(plan, plan | {"steps": [step | {"before": "3", "state": "done"}]})) == []
    assert list(changes_since(plan, plan | {"steps": []})) == ["step a is only in the plan"]
    assert list(changes_since(plan | {"steps": []}, plan)) == ["step a is not in the plan"]


def test_plan_allows_a_part_of_what_it_planned() -> None:
    """An interrupted run has removed some references. What was added since is not planned."""
    one, other = ({"field": name, "before": name, "after": None} for name in ("one", "other"))
    step = {"name": "a", "state": "to do", "before": PARTS, "after": "", "changes": [one, other]}
    plan = {"procedure": "manifests", "inputs": {}, "source": "1", "target": "2", "steps": [step]}
    assert list(changes_since(plan, plan | {"steps": [step | {"changes": [other]}]})) == []
    planned = plan | {"steps": [step | {"changes": [one]}]}
    assert list(changes_since(planned, plan)) == ["a was changed since the plan was made"]


def test_step_that_is_not_found_any_more_stays_in_its_place() -> None:
    """A workload without pods has no restart, and undoing needs it, after that of the template."""
    known = {"template": "done", "restart/a": "waiting", "restart/never": "pending", "former-template": "pending"}
    states = {"template": "done", "restart/b": "pending", "former-template": "pending"}
    assert list(_joined(known, states)) == ["template", "restart/a", "restart/b", "former-template"]
    assert _joined({}, states) == states


def test_target_that_is_no_version() -> None:
    with pytest.raises(CallerError, match="--to 'latest' is not a version"):
        procedure_of("", cast("Writer", None), Request(to="latest"))


def test_consent_is_named() -> None:
    assert "run again with --ack DaemonSet/x" in str(Waits("DaemonSet/x", ["why"]))


def test_programs_on_the_path(tmp_path: Path) -> None:
    """Two links to one file count once. A program that fails has no version."""
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    program = folders[0] / "svcctl"
    program.write_text("#!/bin/sh\necho svcctl 0.0.1\n")
    program.chmod(0o755)
    (folders[1] / "svcctl").symlink_to(program)
    (folders[2] / "svcctl").write_text("#!/bin/sh\nexit 1\n")
    (folders[2] / "svcctl").chmod(0o755)
    path = os.pathsep.join(map(str, folders))
    assert list(installed(path)) == [(str(program), "0.0.1"), (str(folders[2] / "svcctl"), "")]
    assert older(path)[0].startswith(f"{program} is svcctl 0.0.1")


@pytest.mark.parametrize(
    ("image", "version"),
    [("svc:0.1.0", "0.1.0"), ("host:5000/a/svc", ""), ("host:5000/svc:1@sha256:00", "1"), ("svc@sha256:00", "")],
)
def test_version_of_an_image(image: str, version: str) -> None:
    assert version_of(image) == version


@pytest.mark.parametrize(
    ("profile", "to", "version", "fits"),
    [
        ("calico", "", "v3.29.1", True),
        ("calico", "", "v3.30.0", False),
        ("calico", "v3.30.2", "v3.30.0", True),
        ("calico", "", "v3.290.0", False),
        ("", "v0.2.0", "0.2.7", True),
    ],
)
def test_form_of_the_version_afterwards(profile: str, to: str, version: str, fits: bool) -> None:
    assert (pattern_of(load_profile(profile), to).match(version) is not None) is fits


def workload(name: str, **variables: str) -> dict[str, object]:
    env = [{"name": key, "value": value} for key, value in variables.items()]
    pod = {"containers": [{"name": "helper", "image": "h:1"}, {"name": name, "image": "a:1", "env": env}]}
    return {"metadata": {"name": name}, "spec": {"template": {"spec": pod}}}


@pytest.mark.parametrize(
    ("agent", "flavour"),
    [
        (workload("calico-node"), "networking"),
        (workload("calico-node", USE_POD_CIDR="true"), "policy-only"),
        (workload("canal", USE_POD_CIDR="true"), "overlay"),
        (workload("calico-node", USE_POD_CIDR="true", CLUSTER_TYPE="k8s,overlay"), "overlay"),
    ],
)
def test_flavour_of_an_agent(agent: dict[str, object], flavour: str) -> None:
    assert flavour_of(agent, load_profile("calico")) == flavour
    assert container_of(agent)["image"] == "a:1"


def test_workloads_come_last_and_nodes_before_controllers() -> None:
    kinds = ("Deployment", "ConfigMap", "DaemonSet", "CustomResourceDefinition", "Namespace", "ClusterRole")
    pod = {"containers": [{"name": "x", "image": "x:1"}]}
    spec = {"group": "g", "versions": [], "names": {}, "template": {"spec": pod}}
    documents = [{"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec} for kind in kinds]
    found = [each["kind"] for each in Bundle(documents).documents]
    assert found == ["Namespace", "CustomResourceDefinition", "ConfigMap", "ClusterRole", "DaemonSet", "Deployment"]
    assert Bundle(documents).agent(DEFAULT) is None


@pytest.mark.parametrize(
    ("kind", "spec", "reason"),
    [
        ("DaemonSet", None, "spec is missing"),
        ("DaemonSet", {"template": {"spec": {"containers": []}}}, "DaemonSet x: list index out of range"),
        ("Deployment", {"template": {"spec": {"containers": [{"name": "x"}]}}}, "image is missing"),
        ("Deployment", {"template": {"spec": {"containers": [{"name": "x", "image": "x", "env": ["A=1"]}]}}}, "Deployment x: "),
        ("CustomResourceDefinition", {"group": "g", "names": {"kind": "X"}}, "versions is missing"),
        ("CustomResourceDefinition", "text", "CustomResourceDefinition x: "),
    ],
)
def test_object_that_is_not_whole(kind: str, spec: object, reason: str) -> None:
    """It is refused before the server sees it, and not by a traceback."""
    document = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}} | ({} if spec is None else {"spec": spec})
    with pytest.raises(CallerError, match=reason):
        Bundle([document])


@pytest.mark.parametrize("text", ["metadata: text", "kind: ConfigMap\ndata: [x]", "data: text"])
def test_manifest_with_other_types(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(CallerError, match=r"m\.yaml: "):
        read_manifest(str(tmp_path / "m.yaml"), "")


def test_full_disk_behind_standard_error_changes_no_status(tmp_path: Path) -> None:
    """What a run tells is not worth its end."""
    program = """
import sys
from svc.ctl.commands.upgrade import _statuses
from svc.ctl.terminal import tell
from svc.upgrade.outcomes import Blocked
tell("a step is done")
with _statuses():
    raise Blocked(["a reason"])
"""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full, open(tmp_path / "log", "w+") as log:
        for stream in (full, log):
            assert subprocess.run([sys.executable, "-c", program], stderr=stream, check=False, env=environment).returncode == 3
    assert (tmp_path / "log").read_text() == "a step is done\nError: a reason\n"


def test_url_without_a_server_is_named_with_the_cause() -> None:
    with pytest.raises(CallerError) as caught:
        read_manifest("http://127.0.0.1:1/x", "0" * 64)
    assert str(caught.value) == "http://127.0.0.1:1/x cannot be read: Connection refused: fetch the file yourself, and name it"


@pytest.mark.parametrize("plan", ['{"steps": 5}', '{"steps": [{"name": "a"}]}', "[]", "text"])
def test_file_that_is_no_plan(tmp_path: Path, plan: str) -> None:
    (tmp_path / "plan.json").write_text(plan)
    with pytest.raises(CallerError, match="is not a plan"):
        _read_plan(tmp_path / "plan.json")


def test_plugins_of_another_type_name_no_servers() -> None:
    texts = ('["etcd_endpoints"]', '{"plugins": ["etcd_endpoints"]}', '{"plugins": {"etcd_endpoints": 1}}')
    data = {str(number): text for number, text in enumerate(texts)}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": data}
    assert list(accesses([document])) == []
