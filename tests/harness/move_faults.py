"""Kills and faults of moves between deployments: at each write, with a move that goes on from where it was."""

import itertools
from collections.abc import Callable, Iterator

from harness.api_proxy import ApiProxy
from harness.operator_move_site import OperatorMoveSite
from harness.upgrade_faults import Killer, fault_at

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
    record = site.upgrades.record()
    assert record
    assert record["state"] == ("done" if verb == "apply" else "undone")
    return kills


def kill_each(site: OperatorMoveSite, killer: Killer, verb: str, prepare: Callable[[], None], stride: int) -> int:
    """Kill a whole run before and after each write, and let the next one end it. Return the number of kills."""
    prepare()
    done = killer.run(*site.words(verb))
    assert done.returncode == 0, done.stderr
    end, writes, kills = site.state(), killer.writes, 0
    for number in range(1, writes + 1, stride):
        for when in ("before", "after"):
            prepare()
            killed = killer.run(*site.words(verb), kill_at=number, when=when)
            if killed.returncode == 0:
                assert number > writes - 10  # a run repeats some writes that a controller was faster than
                continue
            resumed = killer.run(*site.words(verb))
            assert resumed.returncode == 0, (number, when, resumed.stderr)
            assert site.state() == end, (number, when)
            kills += 1
    print(f"{verb}: {kills} kills, before and after every {stride}. of {writes} writes")
    return kills


def fault_each(
    site: OperatorMoveSite, proxy: ApiProxy, names: Iterator[str], prepare: Callable[[], None], numbers: Iterator[int]
) -> int:
    """Let writes of a run fail, one after the other. Each run ends well or is blocked, and the next one ends well."""
    prepare()
    end, before, faults = None, site.state(), 0
    for number, name in zip(numbers, names, strict=False):
        orders = fault_at(number, name)
        for order in orders:
            proxy.arm(order)
        first = site.run("apply", server=proxy.url)
        proxy.disarm()
        if any(order.times for order in orders):
            break
        assert first.exit_code in (0, 3), (number, name, first.output)
        second = site.run("apply", server=proxy.url)
        assert second.exit_code == 0, (number, name, first.output[-300:], second.output[-600:])
        end = end or site.state()
        assert site.state() == end, (number, name)
        undone = site.run("undo")
        assert undone.exit_code == 0, (number, name, undone.output)
        after = site.state()
        assert {key: after[key] for key in before} == before, (number, name)
        faults += 1
    print(f"{faults} faults")
    return faults
