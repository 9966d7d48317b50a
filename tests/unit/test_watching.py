"""Since when a watch is interrupted, as its reader sees it."""

from collections.abc import Generator
from contextlib import closing

from svc.datastore.api import Event
from svc.datastore.watching import EventStream, Reconnecting
from svc.model.keys import HandleKey

PAGE, LISTED, CHANGED = (Event(HandleKey(name), None) for name in ("page", "listed", "changed"))


class Steps(Reconnecting[Event]):
    """A watch that is interrupted, lists in two steps, and reports a change."""

    def __init__(self) -> None:
        super().__init__("handles", 1.0)

    def steps(self) -> Generator[Event | None, None, None]:
        yield None
        yield from (PAGE, LISTED, CHANGED)

    def is_contact(self, step: Event) -> bool:
        return step != PAGE


def test_interruption_ends_when_the_reader_has_taken_the_whole_listing() -> None:
    """Before that, its rows lack changes."""
    with closing(EventStream(Steps(), lambda step: [step], lambda step: step == LISTED, None)) as stream:
        assert stream.interrupted_since is None
        seen = []
        for event in (PAGE, LISTED, CHANGED):
            assert next(stream) == event
            seen.append(stream.interrupted_since is None)
    assert seen == [False, False, True]
