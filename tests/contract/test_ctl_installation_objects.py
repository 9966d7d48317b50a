"""svcctl get, apply, label and delete for the operator's Installation, which only a Kubernetes API has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.datastores import OrchSite, Site
from harness.documents import INSTALLATION, pool, references, shown, text
from harness.policies import served
from harness.site_fixtures import ON_EACH_DATASTORE
from harness.svcctl import Cli, cli_on
from svc.deploy.installation_crd import definition
from svc.names import DEFAULT


@pytest.fixture(scope="module")
def orch_cli(orch_site: OrchSite, home: Path) -> Iterator[Cli]:
    with served(orch_site.kube, definition(DEFAULT)):
        yield cli_on(orch_site, home)


@pytest.mark.server
def test_installation_is_written_and_shown(orch_cli: Cli) -> None:
    """It keeps the API group of the operator, and fields that svc does not read."""
    cli = orch_cli
    nameless = INSTALLATION | {"metadata": {}}
    assert cli.changes("apply", "-f", "-", stdin=text(nameless)) == "installation/default created\n"
    (found,) = shown(cli, "installations")
    assert (found["apiVersion"], found["spec"]) == (INSTALLATION["apiVersion"], INSTALLATION["spec"])
    assert cli.changes("apply", "-f", "-", stdin=text(found)) == "installation/default unchanged\n"
    other = INSTALLATION | {"spec": {"svcNetwork": {"mtu": 9000}}}
    assert cli.prints("apply", "-f", "-", "--dry-run", stdin=text(other)).splitlines() == [
        "installation/default would be updated",
        '  spec.cni.type: "Svc" -> (none)',
        "  spec.svcNetwork.mtu: 1400 -> 9000",
    ]
    assert cli.changes("label", "installation", "default", "a=b") == "installation/default updated\n"
    assert cli.prints("get", "installation").split() == ["NAME", "READY", "DEGRADED", "default"]
    assert cli.changes("delete", "installation/default") == "installation/default deleted\n"
    assert references(cli, "installations") == []


@pytest.mark.server
def test_wrong_installations_are_refused(orch_cli: Cli) -> None:
    wrong = INSTALLATION | {"spec": {"svcNetwork": {"mtu": "x"}}}
    assert "installation 'default': spec.svcNetwork.mtu = 'x'" in orch_cli.fails("apply", "-f", "-", stdin=text(wrong))
    for document, group in (
        (INSTALLATION | {"apiVersion": DEFAULT.api_version}, "operator.svc.internal/v1"),
        (pool() | {"apiVersion": DEFAULT.operator_api_version}, "svc.internal/v3 or crd.svc.internal/v1"),
    ):
        refused = orch_cli.fails("apply", "-f", "-", stdin=text(document))
        assert f"is not the group of these names: give {group};" in refused
    assert references(orch_cli, "installations") == []


@ON_EACH_DATASTORE
def test_other_datastores_have_none(site: Site, tmp_path: Path) -> None:
    if isinstance(site, OrchSite):
        return
    cli = cli_on(site, tmp_path / "node")
    for command in (("get", "installations"), ("apply", "-f", "-")):
        error = cli.fails(*command, stdin=text(INSTALLATION))
        assert "it is about a cluster, and in its Kubernetes API" in error
