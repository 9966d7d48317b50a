"""The documentation shows what svcctl upgrade prints: a whole plan, an apply and an undo of a release."""

import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from click.testing import Result

from harness.fake_kubelets import FakeKubelets
from harness.kube import Kube, Refused
from harness.upgrade_fixtures import WORKLOADS, kubelets, server_with
from harness.upgrade_site import UpgradeSite, running_site
from svc import __version__
from svc.datastore.open import open_client
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import NETWORKING, ORCH, POLICY_V1BETA1, Settings
from svc.deploy.server_apply import apply

__all__ = ["kubelets"]  # a fixture

pytestmark = pytest.mark.server
server = server_with(*WORKLOADS)

PAGE = Path(__file__).parents[2] / "docs" / "upgrade.md"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
INFORMATION = "/apis/crd.svc.internal/v1/clusterinformations"
_RUN = re.compile(r"[0-9]{8}t[0-9]{6}-[0-9a-f]{4}-[0-9a-f]{8}")


@pytest.fixture
def site(server: Kube, kubelets: FakeKubelets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UpgradeSite]:
    monkeypatch.setattr("svc.upgrade.step_runner.POLL_SECONDS", 0.05)
    yield from running_site(server, tmp_path)
    for definition in server.call("GET", CRDS)["items"]:
        with suppress(Refused):
            server.call("DELETE", f"{CRDS}/{definition['metadata']['name']}")


def plain(text: str) -> str:
    """Return lines without what differs from run to run: names of runs, what a step waits for, the version of svcctl."""
    lines = (line.strip() for line in _RUN.sub("RUN", text).splitlines())
    kept = (line for line in lines if line and " waits: " not in line and not line.startswith("note: PodDisruptionBudget"))
    return "\n".join(re.sub(r"(/svcctl: ).*", r"\1VERSION", line) for line in kept)


def printed(site: UpgradeSite, folder: Path) -> Iterator[tuple[str, Result]]:
    """Yield each command of a whole upgrade, with what it prints. `folder` is the one of programs."""
    program = folder / "svcctl"
    program.write_text(f"#!/bin/sh\necho svcctl {__version__}\n")
    program.chmod(0o755)
    former, newer = (
        objects(Settings(NETWORKING, ORCH, f"registry.example/svc:{version}", policy_api=POLICY_V1BETA1))
        for version in ("0.1.0", "0.1.1")
    )
    with closing(open_client({"kubeconfig": str(site.kubeconfig)})) as client:
        for _ in apply(client, former, "kubectl"):
            pass
    body = {"apiVersion": "crd.svc.internal/v1", "kind": "ClusterInformation", "metadata": {"name": "default"}}
    site.kube.call("POST", INFORMATION, body | {"spec": {"svcVersion": "0.1.0", "datastoreReady": True}})
    plan = str(folder / "plan.json")
    for verb, *words in (("plan", "--out", plan), ("apply", "--plan", plan), ("verify",), ("status",), ("undo",)):
        yield verb, site.run(verb, *words, documents=newer)


def test_page_shows_what_is_printed(site: UpgradeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/bin")
    page = plain(PAGE.read_text())
    for verb, done in printed(site, folder):
        assert done.exit_code == 0, done.output
        assert plain(done.output.replace(str(folder), "/usr/local/bin")) in page, (verb, done.output)
