"""Detect that the package on disk is not the running one any more."""

import logging

import svc
from svc.atomic_file import file_version
from svc.attach.context import Context

CHECK_SECONDS = 30.0

log = logging.getLogger("svc.agent")


class UpgradeCheck:
    """Comparison of the installed package with the running one. A change is logged once, counted, and noted in the context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._running = svc.__version__
        self._seen = self._reported = file_version(svc.__file__)

    def run(self) -> None:
        """Check the disk. Metadata are read at the second check after a change, because pip writes them last."""
        found, seen = file_version(svc.__file__), self._seen
        self._seen = found
        if found != seen or found == self._reported:
            return
        self._reported = found
        installed = svc.installed_version() if found else "none"
        self._context.restart_reason = (
            f"the agent runs version {self._running}, and version {installed} has been installed since: restart svc-agent"
        )
        self._context.metrics.count("package_changes_total")
        log.warning("%s", self._context.restart_reason)
