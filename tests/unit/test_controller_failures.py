"""What a controller logs about items that it could not settle."""

import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from svc.controllers import controller
from svc.controllers.controller import Controller, Tally, Unsettled
from svc.datastore.api import StoreError

LOCKED = "the datastore is locked"


class Failing(Controller[str]):
    """A controller that settles no item. `reasons` has the reason of an item, if it has one of its own."""

    name = "node"

    def __init__(self, **reasons: str) -> None:
        shared: Any = SimpleNamespace(tally=Tally())
        super().__init__(shared, ())
        self._reasons = reasons

    def round_items(self) -> Iterable[str]:
        return ()

    def settle(self, item: str) -> None:
        if item in self._reasons:
            raise Unsettled(self._reasons[item])
        raise StoreError(LOCKED)


@pytest.fixture(autouse=True)
def _at_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the items of the warnings."""
    return [text.removeprefix("controller node: ").partition(" ")[0] for text in caplog.messages]


def test_items_that_share_a_reason_share_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A locked datastore stops thousands of items. Each is tried again all the same."""
    part = Failing(own="it is malformed")
    for item in ("a", "b", "c", "own", "d", "e"):
        part._attempt(item)
    assert warned(caplog) == ["a", "own", "d"]
    assert LOCKED in caplog.messages[0]
    assert (part.tally.failed, part.waiting) == (6, 6)


def test_an_item_that_fails_again_is_reported_again(caplog: pytest.LogCaptureFixture) -> None:
    part = Failing()
    for item in ("a", "b", "a", "b"):
        part._attempt(item)
    assert warned(caplog) == ["a", "a"]


def test_a_shared_reason_is_repeated_after_a_while(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Failing()
    part._attempt("a")
    monkeypatch.setattr(controller, "_REPEAT_SECONDS", 0.0)
    part._attempt("b")
    assert warned(caplog) == ["a", "b"]
