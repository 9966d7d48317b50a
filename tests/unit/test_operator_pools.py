"""Pools of the operator's resource: names, defaults, errors, ownership, and `svcctl install --apply-pools`."""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.ipam import NODE, blocks, free, put_pool, take
from harness.svcctl import Cli
from svc.admin import kinds, operator_resource, resources
from svc.admin.changes import Options
from svc.ctl.main import main
from svc.datastore.embedded import EmbeddedStore
from svc.ipam.service import IpamService
from svc.model.errors import CallerError
from svc.names import DEFAULT

Json = dict[str, Any]
NOW = datetime(2026, 11, 22, tzinfo=timezone.utc)
LABEL = "app.kubernetes.io/managed-by"
AS_LISTED: Json = {"ipipMode": "Always", "natOutgoing": True}  # the spec of a pool that is listed without settings
V4, V6 = {"cidr": "10.65.0.0/16"}, {"cidr": "fd65::/48"}


def document(network: Json, **spec: Any) -> bytes:
    head = {"apiVersion": DEFAULT.operator_api_version, "kind": "Installation", "metadata": {"name": "default"}}
    return json.dumps({**head, "spec": {"svcNetwork": network, **spec}}).encode()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with closing(EmbeddedStore(tmp_path / "store.db")) as store:
        yield store


def outcomes(store: EmbeddedStore, network: Json, **spec: Any) -> list[tuple[str, str]]:
    listing = operator_resource.read_pools(document(network, **spec), "FILE", DEFAULT)
    return operator_resource.apply_pools(store, listing, DEFAULT, NOW)


def refused(store: EmbeddedStore, network: Json) -> str:
    """Return the error, and check that the pools do not change."""
    before = resources.get(store, "IPPool")
    with pytest.raises(CallerError) as caught:
        outcomes(store, network)
    assert resources.get(store, "IPPool") == before
    return f"{caught.value} {caught.value.details}"


def applied(store: EmbeddedStore, network: Json, **spec: Any) -> dict[str, Json]:
    """Return the pools of the datastore afterwards."""
    outcomes(store, network, **spec)
    return {pool.name: pool.spec for pool in resources.get(store, "IPPool")}


def test_defaults_are_those_of_the_operator(store: EmbeddedStore) -> None:
    """The defaults of the families differ."""
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


def test_default_names_depend_on_existing_pools_and_the_number_of_pools(store: EmbeddedStore) -> None:
    """An existing pool of the same CIDR keeps its name."""
    put_pool(store, "old", "10.65.0.0/16", **AS_LISTED)
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
def test_resource_without_a_list_has_a_default_pool(store: EmbeddedStore, network: Json, spec: Json, cidrs: list[str]) -> None:
    """It has none if a pool exists, if the list is empty, or if host-local assigns the addresses."""
    assert [pool["cidr"] for pool in applied(store, network, **spec).values()] == cidrs
    put_pool(store, "other", "10.1.0.0/16")
    before = len(resources.get(store, "IPPool"))
    assert len(applied(store, network, **spec)) == before


@pytest.mark.parametrize(
    ("pool", "error"),
    [
        ({"encapsulation": "GRE"}, "ipPools[0].encapsulation = 'GRE' is not known"),
        ({"natOutgoing": True}, "ipPools[0].natOutgoing = true is not known"),
        ({"disableNewAllocations": "yes"}, "ipPools[0].disableNewAllocations = 'yes' is a string"),
        ({"ipipMode": "Always"}, "ipPools[0].ipipMode = 'Always' is not known"),
        ({"cidr": "fd65::/48", "encapsulation": "IPIP"}, "ipPools[0].encapsulation = 'IPIP' is not for IPv6"),
    ],
)
def test_error_names_field_and_index(pool: Json, error: str) -> None:
    with pytest.raises(CallerError) as caught:
        operator_resource.read_pools(document({"ipPools": [V4 | pool]}), "FILE", DEFAULT)
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("network", "ipam", "problem"),
    [
        ({"bgp": "Off"}, "Svc", "svcNetwork.bgp = 'Off' is not known"),
        ({"bgp": "Disabled"}, "Svc", "ipPools[0].encapsulation = 'IPIP' needs BGP"),
        ({"bgp": "Disabled", "ipPools": [V4]}, "Svc", "ipPools[0].encapsulation = 'IPIP' needs BGP"),
        ({"bgp": "Disabled", "ipPools": [V6]}, "Svc", "ipPools[0].encapsulation = 'None' needs BGP"),
        ({"bgp": "Disabled", "ipPools": [V4 | {"encapsulation": "VXLAN"}]}, "Svc", ""),
        ({"bgp": "Enabled", "ipPools": [V4, V6]}, "Svc", ""),
        (
            {"ipPools": [V4 | {"encapsulation": "VXLANCrossSubnet"}]},
            "HostLocal",
            "'VXLANCrossSubnet' does not go with HostLocal",
        ),
        ({"bgp": "Disabled", "ipPools": [V4]}, "HostLocal", ""),
    ],
)
def test_encapsulation_must_agree_with_the_cluster(network: Json, ipam: str, problem: str) -> None:
    """BGP and the IPAM plugin exclude the combinations that the operator refuses too."""
    found = ""
    try:
        operator_resource.read_pools(document(network, cni={"ipam": {"type": ipam}}), "FILE", DEFAULT)
    except CallerError as error:
        found = str(error)
    assert problem in found
    assert bool(problem) == bool(found)


def test_pools_are_labelled_and_a_repetition_changes_nothing(store: EmbeddedStore) -> None:
    assert outcomes(store, {"ipPools": [V4, V6]}) == [("default-ipv4-ippool", "created"), ("default-ipv6-ippool", "created")]
    before = resources.get(store, "IPPool")
    assert [pool.labels for pool in before] == [{LABEL: "svc-operator"}] * 2
    assert [what for _, what in outcomes(store, {"ipPools": [V4, V6]})] == ["unchanged", "unchanged"]
    assert outcomes(store, {}) == []
    assert resources.get(store, "IPPool") == before


def test_pool_that_is_no_longer_listed_is_deleted(store: EmbeddedStore) -> None:
    """Other pools are kept. A changed CIDR replaces the former one."""
    put_pool(store, "others", "10.1.0.0/16")
    outcomes(store, {"ipPools": [V4]})
    changed = {"ipPools": [{"cidr": "10.65.0.0/17"}]}
    assert outcomes(store, changed) == [("default-ipv4-ippool", "deleted"), ("default-ipv4-ippool", "created")]
    assert outcomes(store, {"ipPools": []}) == [("default-ipv4-ippool", "deleted")]
    assert [pool.name for pool in resources.get(store, "IPPool")] == ["others"]


def test_pool_with_allocations_is_disabled_first(store: EmbeddedStore) -> None:
    """A repetition after their release deletes it. If it is listed again, it is enabled."""
    outcomes(store, {"ipPools": [V4]})
    take(IpamService(store, NODE), "h")
    wanted = {"ipPools": [{"cidr": "10.66.0.0/16", "name": "next"}]}
    disabled = ("default-ipv4-ippool", "disabled: 1 address is taken; repeat the command after their release to delete it")
    assert outcomes(store, wanted) == [disabled, ("next", "created")]
    before = resources.get(store, "IPPool")
    assert before[0].spec["disabled"] is True
    assert outcomes(store, wanted) == [disabled, ("next", "unchanged")]
    assert resources.get(store, "IPPool") == before
    assert outcomes(store, {"ipPools": [V4 | {"name": "default-ipv4-ippool"}]}) == [
        ("next", "deleted"),
        ("default-ipv4-ippool", "updated"),
    ]
    free(IpamService(store, NODE), "h")
    assert outcomes(store, {"ipPools": []}) == [("default-ipv4-ippool", "deleted")]
    assert not blocks(store)


def test_invalid_pool_removes_no_other_pool(store: EmbeddedStore) -> None:
    """A listed pool is also invalid if it overlaps a pool that is kept because of its allocations."""
    outcomes(store, {"ipPools": [V4]})
    assert "blockSize" in refused(store, {"ipPools": [V6 | {"blockSize": 4}]})
    take(IpamService(store, NODE), "h")
    assert "overlaps IP pool 'default-ipv4-ippool'" in refused(store, {"ipPools": [{"cidr": "10.65.0.0/17", "name": "a"}]})


def test_equal_pool_is_adopted(store: EmbeddedStore) -> None:
    """It keeps its own labels and gets the one of the operator."""
    put_pool(store, "mine", "10.65.0.0/16", **AS_LISTED)
    mine = resources.get(store, "IPPool")[0]
    mine.metadata["labels"] = {"team": "a"}
    kinds.apply_all(store, kinds.POOLS, [mine], Options(NOW))
    assert outcomes(store, {"ipPools": [V4]}) == [("mine", "updated")]
    assert resources.get(store, "IPPool")[0].labels == {"team": "a", LABEL: "svc-operator"}


@pytest.mark.parametrize(
    ("name", "cidr", "labels", "error"),
    [
        ("mine", "10.65.0.0/16", {}, "'mine': spec.ipipMode = 'Never' is not 'Always'"),
        ("mine", "10.65.0.0/16", {}, "'mine': spec.natOutgoing is not set but listed as true"),
        ("listed", "10.1.0.0/16", {}, "'listed': spec.cidr = '10.1.0.0/16' is not '10.65.0.0/16'"),
        ("mine", "10.65.0.0/16", {}, "'mine': metadata.name is not 'listed'"),
        ("listed", "10.65.0.0/16", {LABEL: "helm"}, f"metadata.labels[{LABEL}] = 'helm' names another manager"),
    ],
)
def test_other_pool_of_the_name_or_range_is_refused(
    store: EmbeddedStore, name: str, cidr: str, labels: dict[str, str], error: str
) -> None:
    put_pool(store, name, cidr)
    other = resources.get(store, "IPPool")[0]
    other.metadata["labels"] = labels
    kinds.apply_all(store, kinds.POOLS, [other], Options(NOW))
    text = refused(store, {"ipPools": [V4 | {"name": "listed"}]})
    assert error in text
    assert "delete this pool" in text


def test_install_applies_the_pools(tmp_path: Path) -> None:
    """It writes them to the datastore of the installed network. If a pool is invalid, it installs nothing."""
    cli, resource = Cli(tmp_path, fresh=False), tmp_path / "installation.json"
    command = (
        "install", "--bin-dir", str(tmp_path / "bin"), "--conf-dir", str(tmp_path / "net.d"), "--without", "portmap",
        "--without", "bandwidth", "--installation", str(resource), "--apply-pools",
    )  # fmt: skip
    for wrong in ({"encapsulation": "GRE"}, {"blockSize": 4}):
        resource.write_bytes(document({"ipPools": [V4 | wrong]}))
        assert next(iter(wrong)) in cli.fails(*command)
        assert [path.name for path in tmp_path.iterdir()] == [resource.name]
    resource.write_bytes(document({"ipPools": [V4]}))
    lines = cli.prints(*command).splitlines()
    assert lines[:2] == [
        "pool default-ipv4-ippool created",
        f"datastore: embedded store {tmp_path}/state/store.db, from {tmp_path}/net.d/10-svc.conflist",
    ]
    assert cli.prints(*command).splitlines()[0] == "pool default-ipv4-ippool unchanged"
    assert "default-ipv4-ippool" in cli.prints("pool", "get")
    assert "needs --installation" in cli.fails("install", "--bin-dir", "/b", "--apply-pools", code=2)


@pytest.mark.parametrize(
    ("network", "spec", "error"),
    [
        ({"ipPools": [{"cidr": f"10.{number}.0.0/16"} for number in range(26)]}, {}, "ipPools = 26 is the number of pools"),
        ({"ipPools": [V4, V4]}, {}, "is also the range of ipPools[0]"),
        ({"ipPools": [V4 | {"encapsulation": "GRE"}]}, {}, "encapsulation = 'GRE' is not known"),
        ({}, {"kubernetesProvider": "Nimbus"}, "kubernetesProvider = 'Nimbus' is not known"),
        ({"mtu": -1}, {"registry": "r"}, "2 errors"),
    ],
)
def test_install_has_the_rules_of_render(tmp_path: Path, network: Json, spec: Json, error: str) -> None:
    """Without --apply-pools, too. It installs nothing."""
    cli, resource = Cli(tmp_path, fresh=False), tmp_path / "installation.json"
    resource.write_bytes(document(network, **spec))
    folders = ("--bin-dir", str(tmp_path / "bin"), "--conf-dir", str(tmp_path / "net.d"))
    assert error in cli.fails("install", *folders, "--installation", str(resource))
    assert [path.name for path in tmp_path.iterdir()] == [resource.name]


def test_install_names_the_fields_that_are_not_read(tmp_path: Path) -> None:
    resource = tmp_path / "installation.json"
    resource.write_bytes(document({}, typhaDeployment={}))
    folders = ["--bin-dir", str(tmp_path / "bin"), "--conf-dir", str(tmp_path / "net.d")]
    options = ["--state-dir", str(tmp_path / "state"), "--run-dir", str(tmp_path / "run")]
    without = ["--without", "portmap", "--without", "bandwidth"]
    done = CliRunner().invoke(main, [*options, "install", *folders, *without, "--installation", str(resource)])
    assert done.exit_code == 0, done.output
    assert done.stderr == "warning: svc does not read spec.typhaDeployment\n"


def test_change_of_a_pool_of_the_resource_is_warned_about(tmp_path: Path) -> None:
    """A pool of the user, or one that stays the same, needs no warning."""
    cli = Cli(tmp_path)
    with closing(EmbeddedStore(tmp_path / "state" / "store.db")) as store:
        outcomes(store, {"ipPools": [V4 | {"name": "listed", "encapsulation": "None", "natOutgoing": "Disabled"}]})
    pool: Json = {"apiVersion": DEFAULT.api_version, "kind": "IPPool", "metadata": {"name": "listed"}, "spec": V4}
    own = pool | {"metadata": {"name": "own"}, "spec": {"cidr": "10.9.0.0/24"}}

    def warnings(*wanted: Json) -> str:
        done = cli("pool", "apply", "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": wanted}))
        assert done.exit_code == 0, done.output
        return done.stderr

    assert warnings(pool, own) == ""
    for each in (pool, own):
        each["spec"] = {**each["spec"], "nodeSelector": "a == 'b'"}
    (warning,) = warnings(pool, own).splitlines()
    assert warning.startswith("warning: IP pool 'listed' belongs to the operator's resource: ")


def test_split_of_a_pool_of_the_resource_is_warned_about(tmp_path: Path) -> None:
    """The next `svcctl install --apply-pools` would put it in place of the new pools."""
    cli = Cli(tmp_path)
    with closing(EmbeddedStore(tmp_path / "state" / "store.db")) as store:
        outcomes(store, {"ipPools": [V4 | {"name": "listed"}]})
    cli.prints("clusterinfo", "lock")
    done = cli("ipam", "split", "2", "--pool", "listed")
    assert done.exit_code == 0, done.output
    assert "warning: IP pool 'listed' belongs to the operator's resource: " in done.stderr
