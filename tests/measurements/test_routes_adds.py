"""The change of ADDs beside svc-routes, from made-up times: nodes that differ, drift, and calls that the machine disturbs."""

import random
import re

import pytest

from bench.routes_adds import QUADS, Pair, _figure


def half(dice: random.Random, effect: float, bias: float) -> list[Pair]:
    """Return the pairs of one half. `bias` is how much slower the node is on which svc-routes runs."""

    def call(factor: float, drift: float) -> float:
        disturbance = 3.0 if dice.random() < 0.05 else 1.0
        return 6.0 * factor * drift * disturbance * dice.lognormvariate(0, 0.08)

    drifts = [1 + number / QUADS for number in range(2 * QUADS)]
    return [(call((1 + effect) * (1 + bias), drift), call(1.0, drift)) for drift in drifts]


@pytest.mark.parametrize("effect", [0.0, 0.03])
def test_the_change_is_that_of_svc_routes(effect: float) -> None:
    """The interval is narrower than the limit of 1 %, and contains the change."""
    dice = random.Random(7)
    found = _figure([half(dice, effect, 0.1), half(dice, effect, 1 / 1.1 - 1)])
    matched = re.search(r"interval (-?[\d.]+) to (-?[\d.]+) %", found.note)
    assert matched
    low, high = map(float, matched.groups())
    assert high - low < 1
    assert low <= 100 * effect <= high
    assert found.n == 8 * QUADS
    assert low <= found.ours.p50 <= high
