"""Parts of svc-controllers in this process, which lead as long as the test wants."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from svc.controllers.assembly import Part
from svc.controllers.conditions import Conditions
from svc.controllers.configuration import Configuration, Live
from svc.controllers.controller import Shared
from svc.controllers.guarded_store import guarded
from svc.controllers.tables import Tables
from svc.datastore.api import Backend
from svc.datastore.orch.client import Client
from svc.leader.election import Election
from svc.names import DEFAULT, Names

END_SECONDS = 20.0


@dataclass
class Clock:
    """The clock of an election, which the test moves."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Running:
    """A part, and what it shares. `failures` has the reasons of threads that have ended because of a bug."""

    part: Part
    shared: Shared
    failures: list[str] = field(default_factory=list)

    @property
    def election(self) -> Election:
        return self.shared.election

    @property
    def live(self) -> Live:
        return self.shared.live

    def lead(self) -> None:
        """Let the process lead from now on."""
        self.election.renewed(self.election.clock())
        self.part.begin_round()

    def stop(self) -> None:
        """End the threads. All must end."""
        self.part.stop()
        self.shared.tables.stop()
        assert self.part.await_writes(END_SECONDS)
        for table in self.shared.tables._made:
            table._thread.join(END_SECONDS)
            assert not table._thread.is_alive(), f"the watch of {table._what} has not ended"


@contextmanager
def running(
    client: Client,
    store: Backend,
    make: Callable[[Shared], Part],
    *,
    leads: bool = True,
    configuration: Configuration | None = None,
    names: Names = DEFAULT,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Running]:
    """Yield a running part, and end it. `clock` measures how long claims of nodes were observed."""
    election = Election("test", Clock())
    if leads:
        election.renewed(0.0)
    failures: list[str] = []
    writable = guarded(store, election)
    tables = Tables(client, writable, failures.append, names, clock)
    live = Live(configuration or Configuration())
    shared = Shared(client, writable, tables, names, election, live, Conditions(), failures.append)
    made = Running(make(shared), shared, failures)
    tables.start()
    made.part.start()
    try:
        yield made
    finally:
        made.stop()
