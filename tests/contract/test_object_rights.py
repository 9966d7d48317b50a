"""svcctl get, apply, label and delete with the rights of the plugin, in the Kubernetes API."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.documents import ENDPOINT, RESERVATION, document, pool, text
from harness.ipam import put_pool
from harness.kube import Kube
from harness.node import netconf
from harness.orch import grant_role, open_store, revoke_role
from harness.svcctl import Cli

pytestmark = pytest.mark.server

ADMINISTRATOR = "use the kubeconfig of an administrator, with --netconf"


@pytest.fixture
def cli(clean_kube: Kube, tmp_path: Path) -> Iterator[Cli]:
    """Return svcctl with the kubeconfig of the plugin's service account. The datastore has a pool."""
    grant_role(clean_kube)
    with closing(open_store(clean_kube, tmp_path)) as store:
        put_pool(store, "pods", "10.65.0.0/24")
    access = {"kubeconfig": str(clean_kube.kubeconfig(tmp_path / "plugin", "token-of-plugin"))}
    file = tmp_path / "netconf.json"
    file.write_text(json.dumps(netconf(datastore_type="orch", orch=access)))
    yield Cli(tmp_path, "--netconf", str(file))
    revoke_role(clean_kube)


def test_objects_of_the_plugin_are_shown(cli: Cli) -> None:
    assert cli.prints("get", "pools,blocks,reservations", "-o", "name") == "ippool/pods\n"


@pytest.mark.parametrize(
    ("arguments", "documents"),
    [
        (("apply", "-f", "-"), (pool(disabled=True),)),
        (("apply", "-f", "-"), (RESERVATION,)),
        (("create", "-f", "-"), (ENDPOINT,)),
        (("apply", "-f", "-"), (document("IPAMConfiguration", "default", {}),)),
        (("label", "pool", "pods", "a=b"), ()),
        (("delete", "pool", "pods"), ()),
        (("get", "hostendpoints"), ()),
    ],
    ids=str,
)
def test_missing_rights_are_named_with_the_fix(cli: Cli, arguments: tuple[str, ...], documents: tuple[object, ...]) -> None:
    """Nothing is changed."""
    before = cli.prints("get", "pools", "-o", "json")
    error = cli.fails(*arguments, stdin=text(*documents))
    assert "403" in error
    assert ADMINISTRATOR in error
    assert cli.prints("get", "pools", "-o", "json") == before
