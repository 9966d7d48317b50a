"""Kills and faults of upgrades at each of their writes."""

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

from click.testing import Result

from harness import counted_writes
from harness.api_proxy import ApiProxy, Fate, Order
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
PARTS = 10  # tests that share the writes of a long run

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


def kill_at_writes(
    killer: "Killer", words: Sequence[str], prepare: Callable[[], None], check: Callable[[], None], step: int
) -> str:
    """Kill svcctl before and after each write, or each of a step, and run it again to its end. Return what was done.

    `prepare` makes the cluster as it is before, `check` fails if the end is not the wanted one."""
    prepare()
    done = killer.run(*words)
    assert done.returncode == 0, done.stderr
    check()
    writes, kills = killer.writes, 0
    for number in range(1, writes + 1, step):
        for when in ("before", "after"):
            prepare()
            killed = killer.run(*words, kill_at=number, when=when)
            if killed.returncode == 0:  # there are fewer notes of waiting than before
                assert number > killer.writes
                continue
            assert killed.returncode == -9, (number, when, killed.stderr)
            resumed = killer.run(*words)
            assert resumed.returncode == 0, (number, when, resumed.stderr)
            check()
            kills += 1
    assert kills > writes // step
    return f"{kills} kills, before and after every {step}. of {writes} writes"


def turn_round(
    killer: "Killer",
    words: Callable[[str], Sequence[str]],
    verb: str,
    state: Callable[[], object],
    prepare: Callable[[], None],
    numbers: Iterable[int] | None = None,
) -> int:
    """Kill `apply` or `undo` after each write, and let the opposite one end. Return the number of kills.

    `prepare` makes the cluster as it is before `apply`. `words` returns the arguments of svcctl."""

    def succeeds(verb: str) -> None:
        done = killer.run(*words(verb))
        assert done.returncode == 0, (verb, done.stderr)

    kills, opposite = 0, "undo" if verb == "apply" else "apply"
    prepare()
    origin = state()
    succeeds("apply")
    end = state()
    if verb == "apply":
        succeeds("undo")
    before, after = (origin, end) if verb == "apply" else (end, origin)
    for number in numbers or itertools.count(1):
        killed = killer.run(*words(verb), kill_at=number, when="after")
        assert killed.returncode in (0, -9), (number, killed.stderr)
        if killed.returncode == 0:
            found = state()
            assert found == after
            break
        succeeds(opposite)
        found = state()
        assert (number, found) == (number, before)
        kills += 1
    print(f"{verb}: {kills} kills, each followed by {opposite}; {killer.writes} writes in the end")
    return kills


def fail_writes(
    proxy: ApiProxy, run: Callable[[], Result], prepare: Callable[[], None], check: Callable[[], None], names: Iterable[str]
) -> str:
    """Let each write of a run fail by the fault of its turn. The run ends well or is blocked, and the next one ends well."""
    statuses = []
    for number, name in enumerate(names, 1):
        prepare()
        orders = fault_at(number, name)
        for order in orders:
            proxy.arm(order)
        first = run()
        proxy.disarm()
        if any(order.times for order in orders):
            break
        assert first.exit_code in (0, 3), (number, name, first.output)
        second = run()
        assert second.exit_code == 0, (number, name, first.output, second.output)
        check()
        statuses.append(first.exit_code)
    assert len(statuses) > 5
    return f"{len(statuses)} faults, {statuses.count(3)} blocked the run"


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
