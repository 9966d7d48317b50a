"""Kills and faults of moves between deployments: at each write, with a move that goes on from where it was."""

import itertools
from collections.abc import Callable

from harness.api_proxy import ApiProxy
from harness.operator_move_site import OperatorMoveSite
from harness.upgrade_faults import FAULTS, PARTS, Killer, fault_at, turn_round

MOST = 400  # runs


def kill_on_and_on(site: OperatorMoveSite, killer: Killer, verb: str, stride: int) -> int:
    """Kill each run after some writes that the runs before have not made, until one ends well. Return the number of kills.

    A run repeats the writes about its Lease, and what it notes, before it goes on: the stride must be larger than that.
    """
    kills = 0
    for when in itertools.islice(itertools.cycle(("before", "after")), MOST):
        done = killer.run(*site.words(verb), kill_at=stride, when=when)
        if done.returncode == 0:
            break
        assert done.returncode == -9, (kills, when, done.stderr)
        kills += 1
    assert kills < MOST, "the runs make no progress"
    record = site.upgrades.record()
    assert record
    assert record["state"] == ("done" if verb == "apply" else "undone")
    print(f"{verb}: {kills} kills on and on, each after {stride} writes")
    return kills


def kill_each(
    site: OperatorMoveSite, killer: Killer, verb: str, prepare: Callable[[], None], first: int, stride: int = PARTS
) -> int:
    """Kill a whole run before and after a write, and let the next one end it, for the first write and those a stride apart.

    Return the number of kills."""
    prepare()
    done = killer.run(*site.words(verb))
    assert done.returncode == 0, done.stderr
    end, writes, kills = site.state(), killer.writes, 0
    for number in range(first, writes + 1, stride):
        for when in ("before", "after"):
            prepare()
            killed = killer.run(*site.words(verb), kill_at=number, when=when)
            if killed.returncode == 0:
                assert number > killer.writes  # the first run has repeated some writes that a controller was faster than
                continue
            resumed = killer.run(*site.words(verb))
            assert resumed.returncode == 0, (number, when, resumed.stderr)
            assert site.state() == end, (number, when)
            kills += 1
    print(f"{verb}: {kills} kills, before and after every {stride}. of {writes} writes from {first} on")
    return kills


def fault_each(site: OperatorMoveSite, proxy: ApiProxy, verb: str, prepare: Callable[[], None], first: int) -> int:
    """Let writes of a run fail, each by the fault of its turn: the first one and those some apart. Return their number.

    Each run ends well or is blocked, and the next one ends well."""
    prepare()
    end, before, names, statuses = None, site.state(), list(FAULTS), list[int]()
    for number in itertools.count(first, PARTS):
        if verb == "undo":
            _succeeds(site, "apply", number)
        orders = fault_at(number, names[number % len(names)])
        for order in orders:
            proxy.arm(order)
        faulty = site.run(verb, server=proxy.url)
        proxy.disarm()
        if any(order.times for order in orders):
            break
        assert faulty.exit_code in (0, 3), (number, faulty.output)
        _succeeds(site, verb, number, server=proxy.url)
        if verb == "apply":
            end = end or site.state()
            assert site.state() == end, number
            _succeeds(site, "undo", number)
        after = site.state()
        assert {key: after[key] for key in before} == before, number
        statuses.append(faulty.exit_code)
    print(f"{verb}: {len(statuses)} faults from write {first} on, {statuses.count(3)} blocked the run")
    return len(statuses)


def _succeeds(site: OperatorMoveSite, verb: str, number: int, server: str = "") -> None:
    done = site.run(verb, server=server)
    assert done.exit_code == 0, (number, verb, done.output[-600:])


def turn_move_round(site: OperatorMoveSite, killer: Killer, verb: str, prepare: Callable[[], None], first: int) -> int:
    """Kill `apply` or `undo` after a write, and let the opposite one end, for the first write and those some apart.

    Return the number of kills. What a move leaves when it is undone, such as a namespace, does not count."""
    known: dict[str, object] = {}

    def state() -> dict[str, object]:
        found = site.state()
        known.update(known or found)
        return {key: found.get(key) for key in known}

    return turn_round(killer, site.words, verb, state, prepare, range(first, MOST, PARTS))
