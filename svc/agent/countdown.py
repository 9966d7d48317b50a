"""The end of the recovery after a start."""

import logging
import threading

log = logging.getLogger("svc.agent")


class Countdown:
    """Counter of open recoveries, which logs the end of the last one."""

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._open = number
        self._left = 0
        if not number:
            self._report()

    def count(self, *, is_gone: bool) -> None:
        with self._lock:
            self._open -= 1
            self._left += not is_gone
            if not self._open:
                self._report()

    def _report(self) -> None:
        if self._left:
            log.warning("recovery ended: the releases of %d attachments are pending and will be retried", self._left)
        else:
            log.info("recovery ended: no release is pending")
