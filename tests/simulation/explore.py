"""Enumeration of schedules: first every small deviation of every scenario, then random ones."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from simulation.policies import RandomPolicy, ScriptedPolicy, parse_script, spell_script
from simulation.regressions import REGRESSIONS
from simulation.scenarios import SCENARIOS, Scenario, random_scenario
from simulation.schedule import Outcome, Schedule
from simulation.scheduler import Move
from simulation.world import Stage

Script = Mapping[int, Move]


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a schedule. `name` replays it."""

    name: str
    outcome: Outcome


def replay(stage: Stage, name: str) -> Outcome:
    """Run the schedule of this name: `seed:NUMBER`, `SCENARIO:SCRIPT` or that of a regression.

    Raise KeyError or ValueError if the name is invalid.
    """
    if name in REGRESSIONS:
        regression = REGRESSIONS[name]
        policy = ScriptedPolicy({}, regression.held, regression.fault, regression.times)
        return Schedule(stage, SCENARIOS[regression.scenario], policy).run()
    scenario, _, rest = name.partition(":")
    if scenario == "seed":
        return Schedule(stage, random_scenario(int(rest)), RandomPolicy(int(rest))).run()
    return Schedule(stage, SCENARIOS[scenario], ScriptedPolicy(parse_script(rest))).run()


def random_schedules(stage: Stage, seeds: range) -> Iterator[Found]:
    """Yield one schedule per seed."""
    for seed in seeds:
        name = f"seed:{seed}"
        yield Found(name, replay(stage, name))


def deviations(stage: Stage, scenario: Scenario, bound: int, part: int = 0, parts: int = 1) -> Iterator[Found]:
    """Yield the schedules of a scenario with at most `bound` deviations from the simplest order: preemptions and faults.

    Of `parts` parts, yield the one with the number `part`. The first deviation decides the part.
    """
    outcome, menus = _run(stage, scenario, {})
    if part == 0:
        yield Found(f"{scenario.name}:", outcome)
    for number, script in enumerate(_further({}, menus)):
        if number % parts == part:
            yield from _from(stage, scenario, script, bound - 1)


def _from(stage: Stage, scenario: Scenario, script: Script, bound: int) -> Iterator[Found]:
    if bound < 0:
        return
    outcome, menus = _run(stage, scenario, script)
    yield Found(f"{scenario.name}:{spell_script(script)}", outcome)
    if bound and not outcome.violation:
        for further in _further(script, menus):
            yield from _from(stage, scenario, further, bound - 1)


def _further(script: Script, menus: list[list[Move]]) -> Iterator[Script]:
    """Yield each script with one more deviation, after the last one."""
    first = max(script, default=-1) + 1
    for step, menu in enumerate(menus):
        if step >= first:
            for move in menu:
                yield {**script, step: move}


def _run(stage: Stage, scenario: Scenario, script: Script) -> tuple[Outcome, list[list[Move]]]:
    policy = ScriptedPolicy(script)
    return Schedule(stage, scenario, policy).run(), policy.menus
