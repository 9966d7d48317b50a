"""Coming back to a cluster that is away: pauses that grow, and two lines in the log however long it takes."""

import logging
import threading

from svc.datastore.etcd.link import Link

FIRST_SECONDS = 0.2
MOST_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Outage:
    """Of one watch. Used by one thread."""

    def __init__(self, link: Link, what: str) -> None:
        self._link = link
        self._what = what
        self._pause = 0.0  # zero while there is none

    def wait(self, failure: Exception, closed: threading.Event) -> None:
        """Returns when it is time to try again, or at once when it is closed."""
        if not self._pause and not closed.is_set():
            _log.warning("the watch of %s is broken and taken up again: %s", self._what, failure)
        self._pause = min(MOST_SECONDS, 2 * self._pause or FIRST_SECONDS)
        self._link.connect(self._pause)
        closed.wait(self._pause)

    def over(self) -> None:
        """The watch is open."""
        if self._pause:
            _log.info("the watch of %s goes on", self._what)
        self._pause = 0.0
