"""Detect that the package on disk is not the running one any more."""

import logging
from pathlib import Path

import svc
from svc.attach.context import Context

CHECK_SECONDS = 30.0

log = logging.getLogger("svc.agent")


class UpgradeCheck:
    """Comparison of the installed package with the running one. A change is logged once, counted, and noted in the context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._running = svc.__version__
        self._file = Path(svc.__file__)
        self._seen = self._reported = self._identity()

    def run(self) -> None:
        """Check the disk. Metadata are read at the second check after a change, because pip writes them last."""
        identity, seen = self._identity(), self._seen
        self._seen = identity
        if identity != seen or identity == self._reported:
            return
        self._reported = identity
        installed = svc.installed_version() if identity else "none"
        self._context.restart_reason = (
            f"the agent runs version {self._running}, and version {installed} has been installed since: restart svc-agent"
        )
        self._context.metrics.count("package_changes_total")
        log.warning("%s", self._context.restart_reason)

    def _identity(self) -> tuple[int, ...]:
        """Return inode and modification time of the package's first module; empty if it is missing."""
        try:
            status = self._file.stat()
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns
