"""The folders of `deploy/` that are made from the model: none is stale, and each form has the objects of `svcctl manifests`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.skips import NO_HELM, NO_KUBECTL, NO_KUSTOMIZE
from svc import __version__
from svc.deploy.crds import definitions
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import (
    ETCD,
    NETWORKING,
    NONE,
    OPERATOR,
    ORCH,
    OVERLAY,
    POLICY_ONLY,
    POLICY_V1BETA1,
    Settings,
)
from svc.names import DEFAULT

Json = dict[str, Any]

CHECKOUT = Path(__file__).parents[2]
DEPLOY, TOOL = CHECKOUT / "deploy", CHECKOUT / "tools" / "deploy_folders.py"
CACHE = Path(os.environ.get("SVC_TESTCACHE", "/var/cache/svc-tests"))
HELM = CACHE / "helm" / "helm"
OLD_KUSTOMIZE = CACHE / "kustomize" / "kustomize"
IMAGE = f"svc:{__version__}"
ENDPOINTS = "https://10.0.0.1:2379,https://10.0.0.2:2379"
PAIRS = [(NETWORKING, ORCH), (OVERLAY, ORCH), (POLICY_ONLY, ORCH), (OPERATOR, ORCH), (NETWORKING, ETCD), (OVERLAY, ETCD)]
EVERY_PAIR = pytest.mark.parametrize(("flavour", "store"), PAIRS)
EVERY_KUSTOMIZE = pytest.mark.parametrize("release", ["2.0.3", "5"])


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)


def by_name(documents: Any) -> dict[tuple[str, str, str], Json]:
    return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in documents if each}


def test_folders_are_fresh() -> None:
    """After a change of the model, `make deploy-folders` writes them again."""
    done = run(sys.executable, TOOL, "--check")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("change", ["edited", "missing", "surplus"])
def test_check_finds_a_stale_folder(change: str, tmp_path: Path) -> None:
    """Writing the folders makes them fresh."""
    for name in ("manifests", "kustomize", "chart", "crd-chart", "systemd"):
        shutil.copytree(DEPLOY / name, tmp_path / name)
    file = tmp_path / "manifests" / "networking-orch.yaml"
    if change == "missing":
        file.unlink()
    elif change == "edited":
        file.write_text(file.read_text() + "\n")
    else:
        file = file.with_name("other.yaml")
        file.write_text("")
    found = run(sys.executable, TOOL, "--check", tmp_path)
    assert (found.stdout, found.returncode) == (f"stale: {file}: run `make deploy-folders`\n", 1)
    assert run(sys.executable, TOOL, tmp_path).returncode == 0
    assert run(sys.executable, TOOL, "--check", tmp_path).returncode == 0


def kustomize(release: str, folder: Path) -> list[Json]:
    """Return the objects of a kustomization. kubectl has kustomize 5; before 1.21 it has 2.0.3."""
    program = ("kubectl", "kustomize") if release == "5" else (str(OLD_KUSTOMIZE), "build")
    if shutil.which(program[0]) is None:
        pytest.skip(NO_KUBECTL if release == "5" else NO_KUSTOMIZE)
    done = run(*program, folder)
    assert (done.returncode, done.stderr) == (0, "")
    return [*yaml.safe_load_all(done.stdout)]


@EVERY_KUSTOMIZE
@EVERY_PAIR
def test_kustomize_has_the_objects_of_the_model(flavour: str, store: str, release: str) -> None:
    found = kustomize(release, DEPLOY / "kustomize" / f"{flavour}-{store}")
    endpoints = "https://etcd.example:2379" if store == ETCD else ""
    assert by_name(found) == by_name(objects(Settings(flavour, store, IMAGE, etcd_endpoints=endpoints)))


@EVERY_KUSTOMIZE
def test_kustomize_changes_the_image_in_an_overlay(release: str, tmp_path: Path) -> None:
    """kustomize 2.0.3 takes a folder from `bases` alone, which later ones call `resources`."""
    base = tmp_path / "base"
    shutil.copytree(DEPLOY / "kustomize" / f"{NETWORKING}-{ORCH}", base)
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    images = [{"name": IMAGE.partition(":")[0], "newName": "registry.example/svc", "newTag": "9"}]
    (overlay / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources" if release == "5" else "bases": ["../base"], "images": images})
    )
    wanted = by_name(objects(Settings(NETWORKING, ORCH, "registry.example/svc:9")))
    assert by_name(kustomize(release, overlay)) == wanted


def helm(chart: str, *values: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    if not HELM.exists():
        pytest.skip(NO_HELM)
    return run(HELM, "template", "release", DEPLOY / chart, *options, *(word for each in values for word in ("--set", each)))


@pytest.mark.parametrize("namespace", ["kube-system", "net"])
@pytest.mark.parametrize("has_tls", [False, True])
@EVERY_PAIR
def test_chart_has_the_objects_of_the_model(flavour: str, store: str, has_tls: bool, namespace: str) -> None:
    """Definitions are in a chart of their own, and the namespace is that of the release."""
    values, options = [f"flavour={flavour}", f"datastore={store}", "image=registry.example/svc:9"], {}
    if store == ETCD:
        values += [f"etcd.endpoints={ENDPOINTS.replace(',', chr(92) + ',')}", f"etcd.tls={str(has_tls).lower()}"]
        options = {"etcd_endpoints": ENDPOINTS, "etcd_tls": has_tls}
    done = helm("chart", *values, options=("--namespace", namespace))
    if (flavour, namespace) == (OPERATOR, "net"):
        assert "flavour operator needs the namespace kube-system" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    settings = Settings(flavour, store, "registry.example/svc:9", namespace=namespace, crds=NONE, **options)  # type: ignore[arg-type]
    wanted = by_name(each for each in objects(settings) if each["kind"] != "Namespace")
    assert by_name(yaml.safe_load_all(done.stdout)) == wanted


def test_chart_has_slots() -> None:
    agent = {"name": "policy", "image": "policy:1"}
    proxy = [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "proxy", "namespace": "kube-system"}}]
    values = ["flavour=policy-only", "policyAgent.name=policy", "policyAgent.image=policy:1"]
    values += ["proxy[0].apiVersion=v1", "proxy[0].kind=Service"]
    values += ["proxy[0].metadata.name=proxy", "proxy[0].metadata.namespace=kube-system"]
    done = helm("chart", *values, options=("--namespace", "kube-system"))
    assert done.returncode == 0, done.stderr
    settings = Settings(POLICY_ONLY, ORCH, IMAGE, crds=NONE, policy_agent=agent, proxy=proxy)
    assert by_name(yaml.safe_load_all(done.stdout)) == by_name(objects(settings))


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (["flavour=operator", "datastore=etcd", "etcd.endpoints=http://a"], "flavour and datastore operator-etcd: give"),
        (["flavour=none"], "flavour and datastore none-orch: give"),
        (["datastore=etcd"], "etcd.endpoints is missing: give URLs"),
        (["image="], "image: Does not match pattern"),
        (["image=a b"], "image: Does not match pattern"),
        (["image=7"], "image: Invalid type. Expected: string, given: integer"),
        (["imgae=a"], "Additional property imgae is not allowed"),
        (["etcd.tsl=true"], "Additional property tsl is not allowed"),
        (["etcd.endpoints=https://a"], "etcd.endpoints: etcd.endpoints does not match"),
        (["etcd.tls=true"], "etcd.tls: etcd.tls does not match"),
        (["datastore=etcd", "etcd.endpoints=foo"], "etcd.endpoints: Does not match pattern"),
        (["datastore=etcd", "etcd.endpoints=http://a", "etcd.tls=true"], "etcd.endpoints: Does not match pattern"),
        (["policyAgent.name=policy"], "policyAgent: image is required"),
        (["policyAgent.name=agent", "policyAgent.image=a"], "policyAgent.name: Must not validate the schema (not)"),
        (["proxy=a"], "proxy: Invalid type. Expected: array, given: string"),
        (["proxy[0].kind=Service"], "proxy.0: apiVersion is required"),
    ],
)
def test_chart_refuses_contradictory_values(values: list[str], error: str) -> None:
    done = helm("chart", *values)
    assert done.returncode != 0
    assert error in done.stderr


@pytest.mark.parametrize("with_rules", [False, True])
def test_chart_of_definitions_has_both_forms(with_rules: bool) -> None:
    done = helm("crd-chart", f"rules={str(with_rules).lower()}")
    assert done.returncode == 0, done.stderr
    found = by_name(yaml.safe_load_all(done.stdout))
    wanted = by_name(definitions(DEFAULT, DEFAULT.crd_api_version, with_rules=with_rules))
    assert {name: each for name, each in found.items() if name in wanted} == wanted
    assert [name[2] for name in found.keys() - wanted.keys()] == ["installations.operator.svc.internal"]


@pytest.mark.parametrize(("value", "error"), [("rules=yes", "rules: Invalid type"), ("rule=true", "property rule is not")])
def test_chart_of_definitions_refuses_other_values(value: str, error: str) -> None:
    done = helm("crd-chart", value)
    assert done.returncode != 0
    assert error in done.stderr


def test_chart_knows_both_groups_of_the_disruption_budget() -> None:
    """helm decides by what the API server has. `helm template` has no server, and assumes a new one."""
    text = (DEPLOY / "chart" / "templates" / "networking-orch.yaml").read_text()
    assert 'policy/{{ if .Capabilities.APIVersions.Has "policy/v1" }}v1{{ else }}v1beta1{{ end }}' in text
    assert POLICY_V1BETA1 == "policy/v1beta1"


def test_systemd_folder_has_the_unit_that_svcctl_installs() -> None:
    text = (DEPLOY / "systemd" / "svc-agent.service").read_text()
    assert "ExecStart=/opt/svc/bin/python3 -I -m svc.agent.main run --state-dir /var/lib/svc --run-dir /var/run/svc" in text
