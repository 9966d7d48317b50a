"""Pools of an Installation: names and defaults, against an obvious twin; the spec with every default."""

import ipaddress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from svc.admin.operator_resource import Listing, listing_of, named_pools
from svc.model.installation import ENCAPSULATIONS, POOL, completed, entry_of, pool_of
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile

Json = dict[str, Any]

OPTIONS: Json = {
    "encapsulation": st.sampled_from(["None", "VXLAN", "VXLANCrossSubnet"]),
    "natOutgoing": st.sampled_from(["Enabled", "Disabled"]),
    "nodeSelector": st.sampled_from(["all()", "has(a)"]),
    "disableNewAllocations": st.booleans(),
    "disableBGPExport": st.just(True),
    "name": st.sampled_from(["mine", "other"]),
}


@st.composite
def cidrs(draw: st.DrawFn) -> str:
    number = draw(st.integers(0, 40))
    return f"10.{number}.0.0/16" if draw(st.booleans()) else f"fd{number:02x}::/48"


@st.composite
def entries(draw: st.DrawFn) -> Json:
    return {"cidr": draw(cidrs()), **draw(st.fixed_dictionaries({}, optional=OPTIONS))}


LISTS = st.lists(entries(), max_size=4, unique_by=lambda entry: entry["cidr"])
PRESENT = st.dictionaries(st.sampled_from(["a", "b", "default-ipv4-ippool"]), cidrs(), max_size=3)


def twin_names(listed: list[Json], present: dict[str, str]) -> list[str]:
    """Return the name of each listed pool by the rules, one after the other."""
    names = []
    families = sorted(ipaddress.ip_network(entry["cidr"]).version for entry in listed)
    for entry in listed:
        network = ipaddress.ip_network(entry["cidr"])
        of_same_range = [name for name, cidr in present.items() if ipaddress.ip_network(cidr) == network]
        if "name" in entry:
            names.append(entry["name"])
        elif of_same_range:
            names.append(of_same_range[0])
        elif families in ([4], [6], [4, 6]):
            names.append(f"default-ipv{network.version}-ippool")
        elif network.version == 4:
            names.append(entry["cidr"].replace("/", "-"))
        else:
            names.append(f"{network.network_address.exploded.replace(':', '.')}-{network.prefixlen}")
    return names


def twin_entry(entry: Json, name: str) -> Json:
    """Return a listed pool with every default."""
    is_four = "." in entry["cidr"]
    defaults: Json = {
        "encapsulation": "IPIP" if is_four else "None",
        "natOutgoing": "Enabled" if is_four else "Disabled",
        "disableNewAllocations": False,
        "blockSize": 26 if is_four else 122,
        "nodeSelector": "all()",
        "allowedUses": ["Workload", "Tunnel"],
        "assignmentMode": "Automatic",
    }
    return defaults | entry | {"name": name}


@given(LISTS, PRESENT)
def test_names_and_defaults_are_those_of_the_twin(listed: list[Json], present: dict[str, str]) -> None:
    listing = Listing(tuple(map(pool_of, listed)), is_given=True)
    stored = {name: Resource(POOL, {"name": name}, {"cidr": cidr}) for name, cidr in present.items()}
    found = named_pools(listing, stored)
    names = twin_names(listed, present)
    assert [pool.name for pool in found] == names
    assert list(map(entry_of, found)) == [twin_entry(entry, name) for entry, name in zip(listed, names, strict=True)]


@given(entries())
def test_pool_and_entry_are_inverse(entry: Json) -> None:
    complete = entry_of(pool_of(entry))
    assert entry_of(pool_of(complete)) == complete
    assert complete["encapsulation"] in ENCAPSULATIONS


@given(LISTS)
def test_complete_spec_stays_as_it_is(listed: list[Json]) -> None:
    spec = {"svcNetwork": {"ipPools": listed, "mtu": 1400}, "cni": {"ipam": {"plugin": "HostLocal"}}, "custom": {"a": 1}}
    once = completed(spec, map(pool_of, listed), DEFAULT)
    assert completed(once, map(pool_of, once["svcNetwork"]["ipPools"]), DEFAULT) == once
    assert (once["cni"]["ipam"], once["custom"], once["svcNetwork"]["mtu"]) == ({"type": "HostLocal"}, {"a": 1}, 1400)


def test_defaults_depend_on_names_and_data_plane() -> None:
    found = completed({}, (), load_profile("calico"))
    assert (found["variant"], found["cni"]["type"], found["cni"]["ipam"]) == ("Calico", "Calico", {"type": "Calico"})
    assert found["calicoNetwork"]["linuxPolicySetupTimeoutSeconds"] == 0
    assert "nodeAddressAutodetectionV4" not in found["calicoNetwork"]
    other = completed({"svcNetwork": {"linuxDataplane": "BPF", "nodeAddressAutodetectionV4": {"interface": "e"}}}, (), DEFAULT)
    assert "linuxPolicySetupTimeoutSeconds" not in other["svcNetwork"]
    assert other["svcNetwork"]["nodeAddressAutodetectionV4"] == {"interface": "e"}


def test_pools_without_a_list() -> None:
    """They are the default range, or those of kubeadm; none with host-local."""
    assert [pool.spec["cidr"] for pool in listing_of({}, DEFAULT).pools] == ["192.168.0.0/16"]
    assert [pool.spec["cidr"] for pool in listing_of({}, DEFAULT, ["10.1.0.0/16"]).pools] == ["10.1.0.0/16"]
    host_local = {"cni": {"ipam": {"type": "HostLocal"}}}
    assert not listing_of(host_local, DEFAULT).pools
    empty = listing_of({"svcNetwork": {"ipPools": []}}, DEFAULT)
    assert (empty.pools, empty.is_given) == ((), True)
