"""Where a process can be killed in the middle of a call: the places that `harness.kill_point` takes."""

import pytest

_ADD = ("record_intent", "assign_addresses", "wire", "write_endpoint", "record_result")

ADD_STEPS = {step: f"svc.attach.transaction:AddTransaction.{step}" for step in _ADD}


def points(steps: dict[str, str]) -> pytest.MarkDecorator:
    """Parameters `step` and `when`: before the first and after each, since nothing that lasts happens between two of them."""
    (first, place), *_ = steps.items()
    found = [pytest.param(place, "before", id=f"before {first}")]
    found += [pytest.param(place, "after", id=f"after {step}") for step, place in steps.items()]
    return pytest.mark.parametrize(("step", "when"), found)
