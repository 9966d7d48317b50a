"""The Lease of a run: one at a time in a cluster, and no write after it was lost."""

import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from svc import deadline
from svc.datastore.api import StoreError
from svc.datastore.orch.client import ApiError, Client
from svc.datastore.orch.leases import API_VERSION, NAMESPACE
from svc.leader.election import LEASE_SECONDS, Election, Holding, NotLeading
from svc.leader.leader_lease import LeaderLease
from svc.names import Names
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place
from svc.upgrade.run_names import NAME
from svc.upgrade.writer import Changed, Writer

LEASE: Final = Place(API_VERSION, "Lease", NAMESPACE, NAME)
_RENEWAL_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 1.0
_END_SECONDS: Final = 0.5  # for each request at the end of a run that the user stops


class _OneLead(Election):
    """An election in which a process leads once: after a loss, another run may have changed what this one relies on."""

    _has_led = False

    def observe(self, found: Holding | None) -> bool:
        """Note the content of the Lease. Return whether this process may write it: while it leads, as long as it has it."""
        may = super().observe(found)
        return may and (not self._has_led or (found is not None and found.holder == self.identity))

    def renewed(self, began: float) -> None:
        """Note that this process has written the Lease."""
        super().renewed(began)
        self._has_led = True


class RunLease:
    """The Lease, renewed by a thread while it is held."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._begin()

    def _begin(self) -> None:
        """Take part in the election, without knowledge of former holders."""
        self.election: Election = _OneLead(own_identity())
        self._lease = LeaderLease(self._client, NAME, self.election)

    @contextmanager
    def held(self, names: Names) -> Iterator[None]:
        """Hold the Lease in the block. Raise Blocked if another run has it."""
        self._acquire(Writer(self._client, names, lambda: deadline.limit(LEASE_SECONDS)))
        ended = threading.Event()
        thread = threading.Thread(target=self._renew, args=(ended,), name="upgrade-lease", daemon=True)
        thread.start()
        patience = None
        try:
            yield
        except KeyboardInterrupt:
            patience = _END_SECONDS
            raise
        finally:
            ended.set()
            thread.join(patience)
            if not thread.is_alive():  # otherwise the server does not answer, and the thread still uses the Lease
                self._release(patience)

    def _release(self, patience: float | None) -> None:
        """Release the Lease. If that fails, it expires; before that, a run on this machine sees that this process has ended."""
        with suppress(StoreError), deadline.limit(math.inf if patience is None else patience):
            self._lease.release()

    def seconds(self) -> float:
        """Return for how long the run may write. Raise Blocked if it may not."""
        try:
            return self.election.require()
        except NotLeading:
            raise Blocked(
                [f"the Lease {NAME} could not be renewed, and another run may have begun"], details="run the command again"
            ) from None

    def _acquire(self, writer: Writer) -> None:
        until, seen = time.monotonic() + LEASE_SECONDS + 2 * _POLL_SECONDS, ""
        while True:
            try:
                self._lease.attempt()
            except ApiError as error:
                right = "the right to read and write Leases is missing: " if error.lacks_right else ""
                raise Blocked([f"{LEASE}: {right}{error.msg}"], details=error.details) from error
            if self.election.leads:
                return
            lease = writer.find(LEASE)
            spec = (lease or {}).get("spec") or {}
            holder, renewed = str(spec.get("holderIdentity") or ""), f"{spec.get('holderIdentity')} {spec.get('renewTime')}"
            if lease is not None and is_dead(holder):
                with suppress(Changed):  # another run was faster
                    writer.delete(LEASE, lease)
                    self._begin()
                continue
            if is_alive(holder) or (seen and renewed != seen) or time.monotonic() > until:
                raise Blocked([f"another run of svcctl upgrade is at work: {holder}"], details="wait until it has ended")
            seen = renewed
            time.sleep(_POLL_SECONDS)

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(_RENEWAL_SECONDS):
            with suppress(StoreError):  # without renewals the run soon writes no more
                self._lease.attempt()


def own_identity() -> str:
    """Return what names this process among all processes of all machines."""
    return f"{_machine()}/{os.getpid()}/{_started(os.getpid())}"


def is_dead(holder: str) -> bool:
    """Return whether a holder was a process of this machine that has ended."""
    found = _local(holder)
    return found is not None and _started(found[0]) != found[1]


def is_alive(holder: str) -> bool:
    """Return whether a holder is a running process of this machine."""
    found = _local(holder)
    return found is not None and _started(found[0]) == found[1]


def _local(holder: str) -> tuple[int, str] | None:
    """Return the number and the start of a process of this machine; None for any other."""
    machine, _, rest = holder.rpartition("/")
    machine, _, pid = machine.rpartition("/")
    return (int(pid), rest) if machine == _machine() and pid.isdigit() else None


def _machine() -> str:
    """Return host, boot, and the namespace in which the numbers of processes count."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{os.readlink('/proc/self/ns/pid')}"


def _started(pid: int) -> str:
    """Return when a process started, in ticks since the boot; empty if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
