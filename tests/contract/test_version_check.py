"""Commands of svcctl on a cluster of another version, on each datastore, also if its definitions belong to another product."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import svc
from harness.datastores import EmbeddedSite, EtcdSite, OrchSite, Site, session
from harness.installations import document as installation
from harness.ipam import put_pool
from harness.kube import Kube
from harness.node import netconf
from harness.orch import grant_role, revoke_role
from harness.site_fixtures import ON_EACH_DATASTORE
from harness.svcctl import Cli, cli_on
from svc.admin.resources import CLUSTER
from svc.datastore.api import Delete
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile

OWN: Final = "1.2.3"
SAME: Final = (f"v{OWN}", OWN, f"v{OWN}-dirty", f"{OWN}-4-gabcdef", "", " ", None)
OTHER: Final = ("v1.2.2", "1.2.4", "v1.2.30", "v2.0.0-dirty", "v0.9", "1.2.3.dev1", "vv1.2.3", "unknown")
FLAG: Final = "--allow-version-mismatch"
COMMANDS: Final = (
    ("pool", "get"),
    ("get", "pools"),
    ("node", "get"),
    ("clusterinfo", "show"),
    ("clusterinfo", "lock"),
    ("clusterinfo", "init"),
    ("ipam", "show"),
    ("ipam", "check"),
    ("ipam", "configure", "--max-blocks-per-host", "3"),
    ("label", "pools", "pods", "a=b"),
    ("delete", "pool", "pods"),
    ("pool", "delete", "pods"),
)
CALICO: Final = load_profile("calico")
CALICO_TYPES: Final[dict[str, Any]] = {"type": "calico", "ipam": {"type": "calico-ipam"}}


@pytest.fixture(autouse=True)
def _own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svc, "__version__", OWN, raising=False)


def note(site: Site, version: str | None, annotation: str | None = None, **fields: object) -> None:
    """Write the cluster's information with a version, or without one, and with a pool."""
    annotations = {} if annotation is None else {f"{site.names.label_prefix}/svc-version": annotation}
    spec = {"clusterGUID": "a" * 32, "clusterType": "k8s,kdd", "datastoreReady": True, **fields}
    spec |= {} if version is None else {site.names.version_field: version}
    with session(site) as store:
        store.update(CLUSTER, lambda _: Resource(CLUSTER.kind, {"name": CLUSTER.name, "annotations": annotations}, spec))


def state_of(site: Site) -> object:
    with session(site) as store:
        return store.find(CLUSTER), store.position() if site.port == 0 else None


# a cluster of svc


@pytest.fixture
def cli(site: Site, home: Path) -> Iterator[Cli]:
    site.clear()
    with session(site) as store:
        put_pool(store, "pods", "10.65.0.0/24")
    yield cli_on(site, home)
    site.clear()


@ON_EACH_DATASTORE
@pytest.mark.parametrize("stored", SAME, ids=repr)
def test_commands_work_on_a_cluster_of_the_same_version(site: Site, cli: Cli, stored: str | None) -> None:
    """So they do if it has none."""
    note(site, stored if stored or not isinstance(site, OrchSite) else None)  # the API server refuses an empty text
    assert "pods" in cli.prints("pool", "get")


@ON_EACH_DATASTORE
def test_commands_work_on_a_datastore_without_cluster_information(site: Site, cli: Cli) -> None:
    with session(site) as store:
        if store.find(CLUSTER):
            store.write([Delete(CLUSTER)])
    assert "pods" in cli.prints("pool", "get")


@ON_EACH_DATASTORE
@pytest.mark.parametrize("stored", OTHER)
def test_commands_refuse_a_cluster_of_another_version(site: Site, cli: Cli, stored: str) -> None:
    """The error names both versions and the option."""
    note(site, stored)
    error = cli.fails("pool", "get")
    assert error.startswith(f"Error: svcctl is of version {OWN}, and the cluster of {stored}: ")
    assert FLAG in error
    assert "pods" in cli.prints("pool", "get", FLAG)
    assert "pods" in cli.prints(FLAG, "pool", "get")


@ON_EACH_DATASTORE
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_on_the_datastore_refuses(site: Site, cli: Cli, words: tuple[str, ...]) -> None:
    """Nothing is changed."""
    note(site, "v9.9.9")
    before = state_of(site)
    assert "and the cluster of v9.9.9" in cli.fails(*words)
    assert state_of(site) == before
    assert "and the cluster of" not in cli(*words, FLAG).output


@ON_EACH_DATASTORE
def test_documents_are_refused(site: Site, cli: Cli) -> None:
    note(site, "v9.9.9")
    spec = {"cidr": "10.66.0.0/24"}
    document = json.dumps({"apiVersion": "svc.internal/v3", "kind": "IPPool", "metadata": {"name": "more"}, "spec": spec})
    for words in (("apply", "-f", "-"), ("apply", "-f", "-", "--dry-run"), ("pool", "apply", "-f", "-")):
        assert "and the cluster of v9.9.9" in cli.fails(*words, stdin=document)
    assert cli.changes("pool", "apply", "-f", "-", FLAG, stdin=document) == "more created\n"


@ON_EACH_DATASTORE
def test_explanations_are_refused(site: Site, cli: Cli) -> None:
    """They open the datastore as an ADD does."""
    note(site, "v9.9.9")
    site.add_pod("web-1")
    assert "and the cluster of v9.9.9" in cli.fails("explain", "default/web-1", "--node", "node1")
    assert "and the cluster of v9.9.9" not in cli("explain", "default/web-1", "--node", "node1", FLAG).output


@pytest.mark.server
def test_installations_are_refused(kube: Kube, orch_site: OrchSite, tmp_path: Path) -> None:
    """They open the datastore of the kubeconfig."""
    cli = Cli(tmp_path, fresh=False)
    file = tmp_path / "installation.json"
    file.write_text(json.dumps(installation({"ipPools": [{"cidr": "10.65.0.0/16"}]})))
    words = ("-f", str(file), "--kubeconfig", str(orch_site.administrator))
    orch_site.clear()
    note(orch_site, "v9.9.9")
    try:
        for name in ("diff", "apply"):
            assert "and the cluster of v9.9.9" in cli.fails("installation", name, *words)
        assert "and the cluster of" not in cli("installation", "diff", *words, FLAG).output
    finally:
        orch_site.clear()


@ON_EACH_DATASTORE
def test_version_shows_a_cluster_of_another_version(site: Site, cli: Cli) -> None:
    note(site, "v9.9.9-rc.1")
    result = cli("version")
    assert result.stdout.splitlines()[2:4] == ["cluster version  v9.9.9-rc.1", "cluster types    k8s,kdd"]
    found = json.loads(cli("version", "-o", "json").stdout)
    assert found["client"]["version"] == OWN
    assert found["cluster"].items() >= {"version": "v9.9.9-rc.1", "types": ["k8s", "kdd"], "error": None}.items()


@ON_EACH_DATASTORE
def test_version_fails_if_the_datastore_has_no_cluster_information(site: Site, cli: Cli) -> None:
    with session(site) as store:
        if store.find(CLUSTER):
            store.write([Delete(CLUSTER)])
    result = cli("version")
    assert result.exit_code == 1
    assert "cluster version  unknown: the datastore is not initialised\n" in result.stdout
    assert "`svcctl clusterinfo init` does that" in result.stderr


@ON_EACH_DATASTORE
def test_wrong_version_is_corrected_with_the_option(site: Site, cli: Cli) -> None:
    note(site, "v9.9.9")
    words = ("clusterinfo", "init", "--cluster-version", f"v{OWN}")
    assert FLAG in cli.fails(*words)
    assert cli.changes(*words, FLAG) == "cluster information updated\n"
    assert "pods" in cli.prints("pool", "get")


# a cluster whose definitions belong to another product


@pytest.fixture(scope="module", params=["embedded", *(pytest.param(x, marks=pytest.mark.server) for x in ("etcdv3", "orch"))])
def foreign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("foreign")
    if request.param == "embedded":
        return EmbeddedSite(folder / "state", CALICO)
    if request.param == "etcdv3":
        return EtcdSite(request.getfixturevalue("etcd"), CALICO)
    return OrchSite(request.getfixturevalue("kube"), folder, CALICO)


@pytest.fixture
def foreign_cli(foreign: Site, tmp_path: Path) -> Iterator[Cli]:
    home = foreign.file.parent.parent if isinstance(foreign, EmbeddedSite) else tmp_path
    file = tmp_path / "netconf.json"
    file.write_text(json.dumps(netconf(**CALICO_TYPES, **foreign.administration)))
    foreign.clear()
    with session(foreign) as store:
        put_pool(store, "pods", "10.65.0.0/24")
    yield Cli(home, "--names", "calico", "--netconf", str(file), fresh=False)
    foreign.clear()


@pytest.mark.parametrize("annotation", [f"v{OWN}", f"{OWN}-dirty", "", None], ids=repr)
def test_version_of_the_other_product_is_not_compared(foreign: Site, foreign_cli: Cli, annotation: str | None) -> None:
    """It is shown, beside that of svc."""
    note(foreign, "v3.29.3", annotation)
    assert "pods" in foreign_cli.prints("pool", "get")
    lines = foreign_cli("version").stdout.splitlines()
    assert lines[2:5] == ["cluster version  v3.29.3", "cluster types    k8s,kdd", f"svc in cluster   {annotation or 'unknown'}"]


def test_annotation_of_the_other_products_object_is_compared(foreign: Site, foreign_cli: Cli) -> None:
    note(foreign, f"v{OWN}", "v1.2.4")
    assert f"svcctl is of version {OWN}, and the cluster of v1.2.4" in foreign_cli.fails("pool", "get")
    assert "pods" in foreign_cli.prints("pool", "get", FLAG)
    assert foreign_cli("version").stdout.splitlines()[4] == "svc in cluster   v1.2.4"


# rights


@pytest.mark.server
def test_missing_right_is_an_error_that_names_the_option(defined_kube: Kube, tmp_path: Path) -> None:
    """Without the check the command needs other rights only."""
    group = DEFAULT.crd_api_version.partition("/")[0]
    grant_role(defined_kube, without=(group, "clusterinformations", "get"))
    try:
        access = {"kubeconfig": str(defined_kube.kubeconfig(tmp_path / "plugin", "token-of-plugin"))}
        file = tmp_path / "netconf.json"
        file.write_text(json.dumps(netconf(datastore_type="orch", orch=access)))
        cli = Cli(tmp_path, "--netconf", str(file), fresh=False)
        error = cli.fails("get", "pools")
        assert "403" in error
        assert FLAG in error
        cli.prints("get", "pools", FLAG)
    finally:
        revoke_role(defined_kube)
