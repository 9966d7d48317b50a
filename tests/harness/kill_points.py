"""The points at which tests kill a process in the middle of a call, as `harness.kill_point` takes them."""

import pytest

_ADD = ("record_intent", "assign_addresses", "wire", "write_endpoint", "record_result")

ADD_STEPS = {step: f"svc.attach.transaction:AddTransaction.{step}" for step in _ADD}


def points(steps: dict[str, str]) -> pytest.MarkDecorator:
    """Parametrize `step` and `when`: before the first step and after each. Nothing persistent happens between two steps."""
    (first, place), *_ = steps.items()
    found = [pytest.param(place, "before", id=f"before {first}")]
    found += [pytest.param(place, "after", id=f"after {step}") for step, place in steps.items()]
    return pytest.mark.parametrize(("step", "when"), found)
