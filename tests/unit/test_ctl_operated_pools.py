"""The pools of the operator's resource: names, defaults and faults, and `svcctl install --apply-pools`."""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from harness.cli import Cli
from harness.ipam import put_pool
from svc.ctl import operated_pools, resources
from svc.datastore.embedded import EmbeddedStore
from svc.model.errors import CallerError
from svc.names import DEFAULT

Json = dict[str, Any]
NOW = datetime(2026, 11, 22, tzinfo=timezone.utc)
V4, V6 = {"cidr": "10.65.0.0/16"}, {"cidr": "fd65::/48"}


def document(network: Json, **spec: Any) -> bytes:
    head = {"apiVersion": DEFAULT.operator_api_version, "kind": "Installation", "metadata": {"name": "default"}}
    return json.dumps({**head, "spec": {"svcNetwork": network, **spec}}).encode()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with closing(EmbeddedStore(tmp_path / "store.db")) as store:
        yield store


def applied(store: EmbeddedStore, network: Json, **spec: Any) -> dict[str, Json]:
    """The pools of the datastore afterwards."""
    operated_pools.apply(store, operated_pools.read(document(network, **spec), "FILE", DEFAULT), NOW)
    return {pool.name: pool.spec for pool in resources.get(store, "IPPool")}


def test_defaults_are_those_of_the_operator(store: EmbeddedStore) -> None:
    """They differ between the families."""
    found = applied(store, {"ipPools": [V4, V6]})
    assert list(found) == ["default-ipv4-ippool", "default-ipv6-ippool"]
    four, six = found.values()
    assert (four["ipipMode"], four["vxlanMode"], four["natOutgoing"]) == ("Always", "Never", True)
    assert (six["ipipMode"], six["vxlanMode"], "natOutgoing" in six) == ("Never", "Never", False)
    assert (four["blockSize"], six["blockSize"], four["nodeSelector"]) == (26, 122, "all()")


def test_settings_of_a_pool_are_kept(store: EmbeddedStore) -> None:
    pool = V4 | {
        "name": "mine", "encapsulation": "VXLANCrossSubnet", "natOutgoing": "Disabled", "disableNewAllocations": True,
        "nodeSelector": "has(a)", "blockSize": 28, "disableBGPExport": True, "assignmentMode": "Manual",
    }  # fmt: skip
    assert applied(store, {"ipPools": [pool]}) == {
        "mine": {
            "cidr": "10.65.0.0/16", "vxlanMode": "CrossSubnet", "ipipMode": "Never", "disabled": True, "disableBGPExport": True,
            "blockSize": 28, "nodeSelector": "has(a)", "allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Manual",
        }
    }  # fmt: skip


def test_names_follow_the_datastore_and_the_number_of_pools(store: EmbeddedStore) -> None:
    """An existing pool of the same CIDR keeps its name."""
    put_pool(store, "old", "10.65.0.0/16")
    assert list(applied(store, {"ipPools": [V4, {"cidr": "10.66.0.0/16"}, V6]})) == [
        "10.66.0.0-16",
        "fd65.0000.0000.0000.0000.0000.0000.0000-48",
        "old",
    ]


@pytest.mark.parametrize(
    ("network", "spec", "cidrs"),
    [
        ({}, {}, ["192.168.0.0/16"]),
        ({"ipPools": None}, {"cni": {"ipam": {"type": "Svc"}}}, ["192.168.0.0/16"]),
        ({"ipPools": []}, {}, []),
        ({}, {"cni": {"ipam": {"type": "HostLocal"}}}, []),
    ],
    ids=["nothing", "null", "empty", "host-local"],
)
def test_resource_without_a_list(store: EmbeddedStore, network: Json, spec: Json, cidrs: list[str]) -> None:
    """One pool, unless there is one already or host-local has the addresses."""
    assert [pool["cidr"] for pool in applied(store, network, **spec).values()] == cidrs
    put_pool(store, "other", "10.1.0.0/16")
    before = len(resources.get(store, "IPPool"))
    assert len(applied(store, network, **spec)) == before


@pytest.mark.parametrize(
    ("pool", "fault"),
    [
        ({"encapsulation": "GRE"}, "ipPools[0].encapsulation = 'GRE' is not known"),
        ({"natOutgoing": True}, "ipPools[0].natOutgoing = true is not known"),
        ({"disableNewAllocations": "yes"}, "ipPools[0].disableNewAllocations = 'yes' is a string"),
        ({"ipipMode": "Always"}, "ipPools[0].ipipMode = 'Always' is not known"),
    ],
)
def test_faults_are_told_with_their_place(pool: Json, fault: str) -> None:
    with pytest.raises(CallerError) as caught:
        operated_pools.read(document({"ipPools": [V4 | pool]}), "FILE", DEFAULT)
    assert fault in str(caught.value)


def test_install_applies_the_pools(tmp_path: Path) -> None:
    """To the datastore of the network that it installs; a faulty pool installs nothing."""
    cli, resource = Cli(tmp_path, fresh=False), tmp_path / "installation.json"
    command = (
        "install", "--bin-dir", str(tmp_path / "bin"), "--conf-dir", str(tmp_path / "net.d"), "--without", "portmap",
        "--without", "bandwidth", "--installation", str(resource), "--apply-pools",
    )  # fmt: skip
    resource.write_bytes(document({"ipPools": [V4 | {"encapsulation": "GRE"}]}))
    assert "encapsulation" in cli.fails(*command)
    assert not (tmp_path / "bin").exists()
    resource.write_bytes(document({"ipPools": [V4]}))
    lines = cli.prints(*command).splitlines()
    assert lines[-2:] == [
        "pool default-ipv4-ippool created",
        f"datastore: embedded store {tmp_path}/state/store.db, from {tmp_path}/net.d/10-svc.conflist",
    ]
    assert cli.prints(*command).splitlines()[-2] == "pool default-ipv4-ippool unchanged"
    assert "default-ipv4-ippool" in cli.prints("pool", "get")
    assert "needs --installation" in cli.fails("install", "--bin-dir", "/b", "--apply-pools", code=2)
