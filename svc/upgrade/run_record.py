"""The record of a run in a ConfigMap: what it is about, and the state of each step. It informs; the cluster decides."""

import json
import time
from typing import Any, Final

from svc.upgrade.outcomes import Blocked
from svc.upgrade.run_names import NAME, NAMESPACE, RECORD
from svc.upgrade.writer import Changed, Writer
from svc.values import dataclass, field, replace

Json = dict[str, Any]

PENDING, RUNNING, WAITING, DONE, SKIPPED, FAILED, UNDONE = (
    "pending", "running", "waiting", "done", "skipped", "failed", "undone",
)  # fmt: skip
_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its procedure, versions, digests of its inputs, and the states of its steps by name.

    `noted` is what its procedure noted at the begin."""

    name: str
    procedure: str
    source: str
    target: str
    inputs: dict[str, str]
    state: str
    steps: dict[str, str]
    noted: dict[str, str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether the run has begun, and neither ended nor been undone."""
        return self.state not in (DONE, UNDONE)

    def to_json(self) -> dict[str, str]:
        """Return the data of the ConfigMap."""
        return {
            "run": self.name,
            "procedure": self.procedure,
            "from": self.source,
            "to": self.target,
            "inputs": json.dumps(self.inputs, sort_keys=True),
            "state": self.state,
            "steps": json.dumps(self.steps),
            **({"noted": json.dumps(self.noted, sort_keys=True)} if self.noted else {}),
        }


def run_from(data: Json) -> Run:
    """Return the run of a ConfigMap's data. Raise Blocked if it is damaged."""
    try:
        name, procedure, source, target, state = (str(data[key]) for key in ("run", "procedure", "from", "to", "state"))
        inputs, steps, noted = (dict(json.loads(text)) for text in (data["inputs"], data["steps"], data.get("noted", "{}")))
        return Run(name, procedure, source, target, inputs, state, steps, noted)
    except (KeyError, TypeError, ValueError) as error:
        raise Blocked(
            [f"{RECORD} is damaged: {error!r}"], details="delete it: the next run finds out what is done from the cluster"
        ) from error


class RunRecord:
    """The ConfigMap. It is written again after it was deleted."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.run: Run | None = None

    def load(self) -> Run | None:
        """Return the last run, if one is recorded."""
        live = self._writer.find(RECORD)
        self.run = None if live is None else run_from(live.get("data") or {})
        return self.run

    def save(self, run: Run) -> None:
        """Write a run, unless it is written. Raise Blocked if that fails."""
        if run == self.run:
            return
        for _ in range(_ATTEMPTS):
            try:
                self._write(run)
            except Changed as error:
                last = error
                time.sleep(_PAUSE_SECONDS)
            else:
                self.run = run
                return
        raise Blocked([f"the record of the run cannot be written: {last}"], details="run the command again")

    def note(self, step: str, state: str) -> None:
        """Write the state of a step."""
        assert self.run is not None
        self.save(replace(self.run, steps=self.run.steps | {step: state}))

    def finish(self, step: str, state: str) -> None:
        """Write that a step has ended. One that had nothing to do stays as it is recorded."""
        assert self.run is not None
        if self.run.steps.get(step) != SKIPPED:
            self.note(step, state)

    def turn(self, state: str) -> None:
        """Write the state of the run."""
        assert self.run is not None
        self.save(replace(self.run, state=state))

    def _write(self, run: Run) -> None:
        live, data = self._writer.find(RECORD), run.to_json()
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}
        if live is None:
            self._writer.create(body)
        elif live.get("data") != data:
            self._writer.replace(body, live)
