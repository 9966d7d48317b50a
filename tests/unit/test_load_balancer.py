"""Handles of services, which must equal those that other programs store."""

import pytest

from svc.ipam.load_balancer import attributes_of, handle_of


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (("default", "web", "0b5d3c4e-1111-2222-3333-444455556666"), "lb-Yot6TrpHLNLwuccr5bq3gdxwUsXDo0C5MQri9ZPBKE"),
        (("Default", "Web", "0B5D3C4E-1111-2222-3333-444455556666"), "lb-Yot6TrpHLNLwuccr5bq3gdxwUsXDo0C5MQri9ZPBKE"),
    ],
)
def test_handles_are_hashes_without_punctuation(service: tuple[str, str, str], expected: str) -> None:
    """They are hashes of name, namespace and uid in lower case, in base64 for URLs without its signs and padding."""
    assert handle_of(*service) == expected


def test_attributes_name_the_service_and_no_node() -> None:
    assert attributes_of("shop", "web", "LoadBalancer", 1_700_000_000_000_000_000) == {
        "service": "web",
        "namespace": "shop",
        "type": "LoadBalancer",
        "timestamp": "2023-11-14 22:13:20 +0000 UTC",
    }
