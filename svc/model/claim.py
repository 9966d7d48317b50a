"""Documents of a node claim: the processes that may assign addresses under a node's name.

A claim is held by a claimant: one state directory on one machine since one boot, shared by the processes that use it.
"""

from typing import Any

from svc.model import json_fields
from svc.values import dataclass, replace

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Claimant:
    """The holder of a claim: machine ID, the kernel's boot ID, and the absolute path of the state directory."""

    machine: str
    boot: str
    state_dir: str

    def to_json(self) -> Json:
        return {"machine": self.machine, "boot": self.boot, "stateDir": self.state_dir}

    @staticmethod
    def from_json(data: Json) -> "Claimant":
        """Raise ValueError if a field is not a string."""
        machine, boot, state_dir = (json_fields.text(data, name) or "" for name in ("machine", "boot", "stateDir"))
        return Claimant(machine, boot, state_dir)

    def __str__(self) -> str:
        return f"machine {self.machine!r}, boot {self.boot!r}, state directory {self.state_dir!r}"


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """A claim on a node's name. `counter` grows while its agent runs; `predecessor` held it until `ended` (Unix time)."""

    claimant: Claimant
    counter: int = 0
    predecessor: Claimant | None = None
    ended: int = 0

    def renewed(self) -> "NodeClaim":
        """Return the claim with its counter increased."""
        return replace(self, counter=self.counter + 1)

    def to_json(self) -> Json:
        previous = {} if self.predecessor is None else {"predecessor": {**self.predecessor.to_json(), "ended": self.ended}}
        return {**self.claimant.to_json(), "counter": self.counter, **previous}

    @staticmethod
    def from_json(data: Json) -> "NodeClaim":
        """Raise ValueError if a field has another type."""
        found = data.get("predecessor")
        if found is not None and not isinstance(found, dict):
            raise ValueError("predecessor is not an object")
        predecessor = None if found is None else Claimant.from_json(found)
        ended = 0 if found is None else json_fields.number(found, "ended")
        return NodeClaim(Claimant.from_json(data), json_fields.number(data, "counter"), predecessor, ended)


@dataclass(frozen=True, slots=True)
class NodeFence:
    """The key that write transactions of a claimant compare. `count` grows when older writes must not be applied any more."""

    count: int = 0

    def advanced(self) -> "NodeFence":
        """Return the next fence."""
        return NodeFence(self.count + 1)

    def to_json(self) -> Json:
        return {"count": self.count}

    @staticmethod
    def from_json(data: Json) -> "NodeFence":
        """Raise ValueError if the count is not a whole number."""
        return NodeFence(json_fields.number(data, "count"))
