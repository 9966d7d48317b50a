"""What services of type LoadBalancer request, and which of the held addresses meet it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from svc._core.cidr import Address, Cidr
from svc.controllers.loadbalancer.services import (
    ServiceRequest,
    ServiceRow,
    fitting,
    has_another_class,
    missing,
    read_service,
)
from svc.ipam.load_balancer import handle_of
from svc.names import DEFAULT, Names

Json = dict[str, Any]

POOLS = {"a": Cidr("10.0.0.0/30"), "10.0.0.0/30": Cidr("10.0.0.0/30"), "b": Cidr("10.0.0.4/30"), "six": Cidr("fd00::/126")}
HELD = some.sets(some.sampled_from([Address(text) for text in ("10.0.0.1", "10.0.0.5", "10.0.0.6", "fd00::1", "fd00::2")]))


def service(annotations: Json | None = None, *, ingress: Any = None, **spec: Any) -> Json:
    notes = {f"svc.internal/{name}": text for name, text in (annotations or {}).items()}
    return {
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "annotations": notes},
        "spec": {"type": "LoadBalancer", **spec},
        "status": {"loadBalancer": {} if ingress is None else {"ingress": ingress}},
    }


def row_of(annotations: Json | None = None, names: Names = DEFAULT, **more: Any) -> ServiceRow:
    key, row = read_service(names, service(annotations, **more))
    assert key == "shop/web"
    assert row is not None
    return row


def test_service_without_a_request_gets_one_address_of_each_family() -> None:
    row = row_of(ipFamilies=["IPv6", "IPv4"])
    assert row == ServiceRow(handle_of("shop", "web", "u1"), ServiceRequest((6, 4)), "", ())


@pytest.mark.parametrize(
    ("spec", "versions"),
    [
        ({}, (4,)),
        ({"ipFamilies": []}, (4,)),
        ({"ipFamilies": ["IPv6"]}, (6,)),
        ({"clusterIP": "fd00::1"}, (6,)),
        ({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]}, (4, 6)),
        ({"clusterIP": "None"}, (4,)),
    ],
)
def test_families_follow_the_service(spec: Json, versions: tuple[int, ...]) -> None:
    assert row_of(**spec).request.versions == versions


def test_annotations_request_pools_and_addresses() -> None:
    row = row_of({"ipv4pools": '["a","10.0.0.0/30"]', "ipv6pools": "[]"}, ipFamilies=["IPv4", "IPv6"])
    assert row.request == ServiceRequest((4, 6), {4: ("a", "10.0.0.0/30")}, is_explicit=True)
    row = row_of({"loadBalancerIPs": '["fd00::1","10.0.0.1"]'}, ipFamilies=["IPv4", "IPv6"], loadBalancerIP="10.0.0.9")
    assert row.request.addresses == (Address("fd00::1"), Address("10.0.0.1"))


def test_field_of_the_service_is_the_fallback() -> None:
    row = row_of(loadBalancerIP="10.0.0.9")
    assert (row.request.addresses, row.request.is_explicit) == ((Address("10.0.0.9"),), True)


@pytest.mark.parametrize(
    ("annotations", "spec", "problem"),
    [
        ({"ipv4pools": "a"}, {}, "metadata.annotations[svc.internal/ipv4pools] = 'a' is not a JSON list of pools"),
        ({"ipv6pools": "[1]"}, {}, "metadata.annotations[svc.internal/ipv6pools] = '[1]' is not a JSON list of pools"),
        ({"loadBalancerIPs": '["x"]'}, {}, "metadata.annotations[svc.internal/loadBalancerIPs] = 'x' is not an address"),
        ({"loadBalancerIPs": '["10.0.0.1","10.0.0.2"]'}, {}, "'10.0.0.1, 10.0.0.2' has two addresses of one family"),
        ({}, {"loadBalancerIP": "x"}, "spec.loadBalancerIP = 'x' is not an address"),
        ({"loadBalancerIPs": '["fd00::1"]'}, {}, "address 'fd00::1' is requested, and spec.ipFamilies has IPv4 only"),
    ],
)
def test_invalid_requests_name_field_value_and_remedy(annotations: Json, spec: Json, problem: str) -> None:
    found = row_of(annotations, **spec)
    assert problem in found.problem
    assert ": give " in found.problem or "correct one" in found.problem
    assert found.request.is_explicit


@pytest.mark.parametrize(
    ("spec", "is_another"),
    [
        ({}, False),
        ({"loadBalancerClass": None}, False),
        ({"loadBalancerClass": "svc"}, False),
        ({"loadBalancerClass": "x/y"}, True),
    ],
)
def test_other_classes_are_served_by_other_programs(spec: Json, is_another: bool) -> None:
    assert has_another_class(DEFAULT, service(**spec)) == is_another
    assert (read_service(DEFAULT, service(**spec))[1] is None) == is_another


def test_class_is_named_after_the_plugin() -> None:
    assert row_of(names=Names(plugin="calico"), loadBalancerClass="calico")
    assert read_service(Names(plugin="calico"), service(loadBalancerClass="svc"))[1] is None


def test_other_types_get_no_address() -> None:
    assert read_service(DEFAULT, service() | {"spec": {"type": "NodePort"}})[1] is None


def test_status_is_read_in_canonical_form() -> None:
    assert row_of(ingress=[{"ip": "FD00:0::1"}, {"hostname": "x"}]).ingress == ("fd00::1", "")


@given(
    some.sets(some.sampled_from([4, 6]), min_size=1).map(tuple),
    some.dictionaries(some.sampled_from([4, 6]), some.sampled_from([("a",), ("b",), ("a", "b"), ("six",), ("10.0.0.0/30",)])),
    HELD,
)
def test_fitting_addresses_and_missing_ones_make_up_the_request(
    versions: tuple[int, ...], pools: dict[int, tuple[str, ...]], held: set[Address]
) -> None:
    request = ServiceRequest(versions, pools)
    kept = fitting(request, held, POOLS, ())
    assert set(kept) <= held
    assert sorted(
        [*(each.version for each in kept), *(each for each in missing(request, kept) if isinstance(each, int))]
    ) == sorted(versions)
    for address in kept:
        named = pools.get(address.version, ())
        assert not named or any(address in POOLS[name] for name in named)
    for version in missing(request, kept):
        assert not any(each.version == version for each in held) or version in pools


@given(HELD, HELD)
def test_requested_addresses_are_kept_and_no_others(wanted: set[Address], held: set[Address]) -> None:
    request = ServiceRequest(addresses=tuple(wanted), is_explicit=True)
    if wanted:
        kept = fitting(request, held, POOLS, ())
        assert set(kept) == wanted & held
        assert {*kept, *missing(request, kept)} == wanted


def test_address_in_the_status_is_kept_of_two() -> None:
    held = {Address("10.0.0.5"), Address("10.0.0.6")}
    assert fitting(ServiceRequest(), held, POOLS, ("10.0.0.6",)) == (Address("10.0.0.6"),)


def test_deleted_pool_takes_no_address_away() -> None:
    held = {Address("10.0.0.5")}
    assert fitting(ServiceRequest(pools={4: ("gone",)}), held, POOLS, ()) == tuple(held)
    assert fitting(ServiceRequest(pools={4: ("a",)}), held, POOLS, ()) == ()
