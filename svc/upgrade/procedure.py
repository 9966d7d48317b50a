"""What the engine knows of a procedure."""

from collections.abc import Callable
from typing import Any, Protocol

from svc.upgrade.object_step import Former
from svc.upgrade.step import Step
from svc.values import dataclass, field

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Findings:
    """Properties of the cluster, sentences about what forbids the procedure, and the versions before and after it.

    `noted` is kept in the record of the run."""

    method: str
    found: Json = field(default_factory=dict)
    blockers: tuple[str, ...] = ()
    source: str = ""
    target: str = ""
    noted: dict[str, str] = field(default_factory=dict)


class Procedure(Protocol):
    """A procedure. `inputs` are what the user gives, so that a run is continued with the same inputs only."""

    name: str
    inputs: dict[str, str]

    def steps(self, former: Former) -> list[Step]:
        """Return the steps in order."""

    def findings(self) -> Findings:
        """Return what is found."""

    def unverified(self) -> list[str]:
        """Return what is not as it should be after the last step."""

    def prove(self, pause: Callable[[float], None]) -> list[str]:
        """Return why what was upgraded does not work. This may write."""
