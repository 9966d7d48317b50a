"""A watch of a collection that the API server does not list: the delays between its attempts, and what it logs."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from svc.datastore.api import StoreError
from svc.datastore.orch.client import ApiError, Client, Listing
from svc.datastore.orch.watch import MAX_BACKOFF, PagedWatch

ATTEMPTS = 12
PODS = "/api/v1/pods"


class Server(Client):
    """An API server that refuses the first lists, and ends each stream at once."""

    def __init__(self, failure: StoreError, refusals: int) -> None:
        self._failure = failure
        self._refusals = refusals
        self.lists = 0

    def pages(self, path: str, accept: str = "", **params: str) -> Iterator[Listing]:
        self.lists += 1
        yield Listing([], "")
        if self.lists <= self._refusals:  # of the second page
            raise self._failure
        yield Listing([], "7")

    def get(self, path: str, **params: str) -> Any:
        raise self._failure

    def watch(self, path: str, revision: str, *, accept: str = "", **params: str) -> Any:
        raise self._failure


class Delays(threading.Event):
    """An event that records how long it is waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.found.append(timeout or 0.0)
        if len(self.found) == ATTEMPTS:
            self.set()
        return self.is_set()


REFUSED, AWAY = ApiError(403, "Forbidden", "no", call=f"GET {PODS}"), StoreError("API server does not answer")


@pytest.fixture(params=[REFUSED, AWAY], ids=["refused", "away"])
def failure(request: pytest.FixtureRequest) -> StoreError:
    found: StoreError = request.param
    return found


def test_a_list_that_fails_is_repeated_slowly_and_logged_once(failure: StoreError, caplog: pytest.LogCaptureFixture) -> None:
    """The beginning of a list, and its first pages, are no answer that ends the interruption."""
    caplog.set_level(logging.INFO)
    watch = PagedWatch(Server(failure, ATTEMPTS), PODS)
    delays = watch._closed = Delays()
    for _ in watch.steps():
        pass
    assert max(delays.found) > MAX_BACKOFF / 2
    assert len([text for text in caplog.messages if "is interrupted" in text]) == 1
    assert "continues" not in caplog.text


def test_a_complete_list_ends_the_interruption(failure: StoreError, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server = Server(failure, 3)
    watch = PagedWatch(server, PODS)
    watch._closed = Delays()
    for step in watch.steps():
        if step is not None and step[0] == "LISTED":
            watch.close()
    assert server.lists == 4
    assert [text for text in caplog.messages if "continues" in text] == [f"the watch of {PODS} continues"]


def test_a_watch_that_shall_list_again_does_not_continue_its_stream() -> None:
    server = Server(AWAY, 0)
    watch = PagedWatch(server, PODS)
    watch._closed = Delays()
    for step in watch.steps():
        if step is None and server.lists == 1:
            watch.list_again()
        if server.lists == 2:
            watch.close()
    assert server.lists == 2
