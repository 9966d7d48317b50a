"""Traffic controls of pods: quantities, ranges, and controls that require others."""

import pytest

from svc.model.qos import controls_of, quantity
from svc.names import DEFAULT

BURST = 1 << 32


def controls(**given: str) -> dict[str, int]:
    """Return the controls of annotations without a problem."""
    found, problems = controls_of(DEFAULT, {f"{DEFAULT.qos_prefix}/{name}": text for name, text in given.items()})
    assert problems == []
    return found


def with_problem(**given: str) -> tuple[dict[str, int], str]:
    found, (problem,) = controls_of(DEFAULT, {f"{DEFAULT.qos_prefix}/{name}": text for name, text in given.items()})
    return found, problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("1", 1), ("1M", 10**6), ("10k", 10_000), ("1Ki", 1024), ("1.5Gi", 3 << 29), ("2e6", 2 * 10**6),
        ("1E", 10**18), ("1E3", 1000), ("1e-3", 1), ("1500m", 2), ("100n", 1), (".5k", 500), ("1.", 1), ("+1", 1), ("-1", -1),
        ("-1500m", -1), ("0.0000001", 1), ("1Ei", 1 << 60),
    ],
)  # fmt: skip
def test_quantities_are_read(text: str, value: int) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", ".", "x", "1 M", "1MB", "M", "1K", "1e", "1e999", "1_0", "٣", "0x1", "1" * 65, "1\n"])
def test_invalid_quantities_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)


def test_controls_have_the_order_of_stored_documents() -> None:
    given = {
        "egressMaxConnections": "9", "ingressMaxConnections": "8", "ingressPacketBurst": "7", "ingressPacketRate": "6",
        "ingressMinburst": "4k", "ingressPeakrate": "3M", "ingressBurst": "2M", "ingressBandwidth": "1M", "dscp": "EF",
        "egressBandwidth": "1G", "egressPacketRate": "10k",
    }  # fmt: skip
    assert list(controls(**given).items()) == [
        ("ingressBandwidth", 10**6), ("ingressBurst", 2 * 10**6), ("ingressPeakrate", 3 * 10**6), ("ingressMinburst", 4000),
        ("egressBandwidth", 10**9), ("egressBurst", BURST),
        ("ingressPacketRate", 6), ("ingressPacketBurst", 7), ("egressPacketRate", 10_000), ("egressPacketBurst", 5),
        ("ingressMaxConnections", 8), ("egressMaxConnections", 9), ("dscp", 46),
    ]  # fmt: skip


def test_annotations_of_kubernetes_are_a_fallback() -> None:
    general = {f"{DEFAULT.orch_domain}/ingress-bandwidth": "1M", f"{DEFAULT.orch_domain}/egress-bandwidth": "2M"}
    own = {f"{DEFAULT.qos_prefix}/ingressBandwidth": "5M"}
    assert controls_of(DEFAULT, general)[0]["ingressBandwidth"] == 10**6
    found = controls_of(DEFAULT, general | own)[0]
    assert (found["ingressBandwidth"], found["egressBandwidth"]) == (5 * 10**6, 2 * 10**6)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ingressBandwidth", "1", 1000), ("egressBandwidth", "2P", 10**15), ("ingressBandwidth", "-1k", 1000),
        ("ingressPacketRate", "0", 1), ("egressPacketRate", "11k", 10_000), ("egressMaxConnections", "1Ti", (1 << 32) - 1),
    ],
)  # fmt: skip
def test_value_out_of_range_becomes_the_nearest_bound(name: str, text: str, value: int) -> None:
    found, problem = with_problem(**{name: text})
    assert found[name] == value
    assert problem.startswith(f"{DEFAULT.qos_prefix}/{name} = {text!r} is out of range, ")
    assert problem.endswith(f": {value} is taken")


@pytest.mark.parametrize("text", ["lots", "EF1", "64", "-1", "007", "٣"])
def test_invalid_value_is_ignored(text: str) -> None:
    found, problem = with_problem(ingressBandwidth="1M", dscp=text)
    assert found == {"ingressBandwidth": 10**6, "ingressBurst": BURST}
    assert problem == f"{DEFAULT.qos_prefix}/dscp = {text!r} is not a code point: it is left out"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"ingressBurst": "1M"}, "means nothing without ingressBandwidth"),
        ({"ingressPeakrate": "1M"}, "means nothing without ingressBandwidth"),
        ({"ingressBandwidth": "1M", "ingressMinburst": "1M"}, "means nothing without ingressPeakrate"),
        ({"ingressPacketBurst": "5"}, "means nothing without ingressPacketRate"),
        ({"ingressBandwidth": "1M", "ingressPeakrate": "1M"}, "does not exceed ingressBandwidth"),
    ],
)
def test_control_without_its_required_one_is_ignored(given: dict[str, str], problem: str) -> None:
    found, message = with_problem(**given)
    assert problem in message
    assert not found.keys() & {"ingressPeakrate", "ingressMinburst", "ingressPacketBurst"}


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("63", 63), ("cs1", 8), ("AF43", 38), ("DF", 0), ("VA", 44)])
def test_code_points_have_names_and_numbers(text: str, value: int) -> None:
    assert controls(dscp=text) == {"dscp": value}
