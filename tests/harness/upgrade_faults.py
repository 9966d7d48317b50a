"""Kills and faults of upgrades at each of their writes."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

from harness import counted_writes
from harness.api_proxy import Fate, Order
from harness.forks import ForkServer

MODULES = (
    "svc.datastore.orch.store",
    "svc.datastore.etcd.store",
    "svc.ctl.commands.upgrade",
    "svc.upgrade.engine",
    "svc.upgrade.manifest_procedure",
    "yaml",
)
WRITES = r"^(?!GET)(?!.*dryRun)"

_STATUS = b'{"kind":"Status","apiVersion":"v1","status":"Failure","message":"by the test","reason":"%s","code":%d}'
FAULTS = {
    "conflict": Order(Fate.ANSWERED, WRITES, status=409, body=_STATUS % (b"Conflict", 409)),
    "forbidden": Order(Fate.ANSWERED, WRITES, status=403, body=_STATUS % (b"Forbidden", 403)),
    "no object": Order(Fate.ANSWERED, WRITES, status=404, body=_STATUS % (b"NotFound", 404)),
    "no kind": Order(Fate.ANSWERED, WRITES, status=404, body=b"404 page not found"),
    "failure": Order(Fate.ANSWERED, WRITES, status=500, body=_STATUS % (b"InternalError", 500)),
    "never sent": Order(Fate.NEVER_SENT, WRITES),
    "reply lost": Order(Fate.REPLY_LOST, WRITES),
}


def fault_at(number: int, name: str) -> list[Order]:
    """Return the orders that let writes pass, and then one of them fail."""
    fault = FAULTS[name]
    failing = Order(fault.fate, fault.pattern, status=fault.status, body=fault.body)
    return [Order(Fate.LATE, WRITES, times=number - 1), failing]


class Killer:
    """Runs svcctl in forked processes that count their writes."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self._server = server
        self._count = folder / "count"

    def run(self, *arguments: str, kill_at: int = 0, when: str = "before") -> "CompletedProcess[str]":
        """Run svcctl to its end, or to its death at a write."""
        words = ["counted_writes", str(kill_at), when, str(self._count), *arguments]
        return self._server.run(Path(counted_writes.__file__).read_text(), words, None)

    @property
    def writes(self) -> int:
        """How many writes the last run that was not killed has made."""
        return int(self._count.read_text())


@contextmanager
def killing() -> Iterator[Killer]:
    """Run the server of forked processes inside the block."""
    server = ForkServer(MODULES)
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Killer(server, Path(folder))
    finally:
        server.close()
