"""What happens in a schedule: lists of actions that run side by side, on one kind of datastore.

add C     ADD of container C, by the agent or without; its node is the first letter of its name
gadd C    the same, behind a readiness gate; `open` opens the gate
del C     DEL
start N, stop N, kill N   the agent of node N is started, told to end, killed
retry N   one round of retried releases in the agent of N
gc N      GC on node N
wipe      the shared datastore loses everything and is initialised again
"""

import random
from dataclasses import dataclass, field

from simulation.world import KINDS


@dataclass(frozen=True)
class Scenario:
    """The actions of a schedule. `before` runs first, alone and without faults; then the lists of `beside` run concurrently."""

    name: str
    before: tuple[str, ...]
    beside: tuple[tuple[str, ...], ...]
    kind: str = "etcdv3"
    expected: str = ""  # why it is known to fail, and the words of the violation come first: "words: why"
    faults: bool = True
    tags: tuple[str, ...] = field(default=())


def _pairs(kind: str) -> list[Scenario]:
    """Return every pair of calls on one container, with and without an agent, and with an agent that starts or stops."""
    return [
        Scenario(f"{name}-{kind}", before, beside, kind)
        for name, before, beside in (
            ("add-del-agent", ("start a",), (("add a1",), ("del a1",))),
            ("add-del-oneshot", (), (("add a1",), ("del a1",))),
            ("add-add-agent", ("start a",), (("add a1",), ("add a1",))),
            ("del-del-oneshot", ("add a1",), (("del a1",), ("del a1",))),
            ("add-del-agent-stops", ("start a",), (("add a1",), ("stop a",), ("del a1",))),
            ("add-drain-del", ("start a",), (("add a1",), ("stop a", "del a1"))),
            ("add-del-agent-starts", (), (("add a1",), ("start a",), ("del a1",))),
            ("add-del-agent-killed", ("start a",), (("add a1",), ("kill a", "start a"), ("del a1",))),
            ("gated-add-del-oneshot", (), (("gadd a1",), ("del a1",), ("open",))),
            ("gated-add-del-agent-starts", (), (("gadd a1",), ("start a", "del a1", "open"))),
            ("gated-add-del-agent", ("start a",), (("gadd a1",), ("del a1",), ("open",))),
            ("retry-del", ("start a", "add a1"), (("del a1",), ("retry a",), ("retry a",))),
            ("gc-add", ("start a",), (("add a1",), ("gc a",))),
            ("two-containers", ("start a",), (("add a1", "del a1"), ("add a2", "del a2"))),
        )
    ]


_TWO_NODES = ("start a", "start b")

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        *(scenario for kind in KINDS for scenario in _pairs(kind)),
        *(
            Scenario(f"{name}-{kind}", before, beside, kind)
            for kind in ("etcdv3", "orch")
            for name, before, beside in (
                ("lost-store", (*_TWO_NODES, "add a1", "add b2"), (("wipe", "add b1"),)),
                ("lost-store-add", (*_TWO_NODES, "add a1", "add b2"), (("wipe",), ("add b1",), ("add a2",))),
                ("lost-store-del", (*_TWO_NODES, "add a1", "add b2"), (("wipe",), ("add b1",), ("del a1",))),
                ("two-nodes", _TWO_NODES, (("add a1", "del a1"), ("add b1", "del b1"))),
            )
        ),
    )
}


def random_scenario(seed: int) -> Scenario:
    """Return a random scenario of a grammar, from the seed."""
    rnd = random.Random(seed)
    kind = rnd.choice(KINDS)
    nodes = ("a", "b") if kind != "embedded" and rnd.random() < 0.4 else ("a",)
    names = [f"{node}{number}" for node in nodes for number in range(1, rnd.choice((2, 2, 3)))]
    before = [f"start {node}" for node in nodes if rnd.random() < 0.7]
    before += [f"add {name}" for name in names if rnd.random() < 0.3]
    beside = [_calls(rnd, name) for name in names for _ in range(rnd.choice((1, 1, 2)))]
    for node in nodes:
        if rnd.random() < 0.6:
            beside.append(_agents(rnd, node))
        if rnd.random() < 0.3:
            beside.append(tuple(rnd.choice((f"retry {node}", f"retry {node}", f"gc {node}")) for _ in range(2)))
    if any(action.startswith("gadd") for actions in beside for action in actions):
        beside.append(("open",))
    return Scenario(f"random-{seed}", tuple(before), tuple(beside), kind)


def _calls(rnd: random.Random, name: str) -> tuple[str, ...]:
    add = rnd.choice(("add", "add", "gadd"))
    return rnd.choice(
        ((f"{add} {name}",), (f"del {name}",), (f"{add} {name}", f"del {name}"), (f"del {name}", f"{add} {name}"))
    )


def _agents(rnd: random.Random, node: str) -> tuple[str, ...]:
    ways = (
        ("stop",),
        ("kill",),
        ("stop", "start"),
        ("kill", "start"),
        ("start", "stop"),
        ("start",),
        ("kill", "start", "stop"),
    )
    return tuple(f"{what} {node}" for what in rnd.choice(ways))
