"""Steps of a procedure: what each finds, does, waits for, and undoes."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from svc.upgrade.object_states import Difference
from svc.values import dataclass, field

Json = dict[str, Any]

PARTS: Final = "parts"
"""In place of a digest: each of the changes stands for itself, and an interrupted run may have done some of them."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a step finds in the cluster. It is done if its postcondition holds there. No record decides.

    `blockers` are sentences about what forbids it, `asks` about what needs the consent of the user. `content` is the
    step's own. A step is `unverified` if the server cannot check it yet, because the kind or namespace of its object is
    itself planned.
    """

    is_done: bool
    blockers: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    changes: tuple[Difference, ...] = ()
    unverified: bool = False
    before: str = ""  # digest of what is there, or PARTS
    after: str = ""  # digest of what will be there
    content: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the cluster has followed a step. `reasons` say what is missing.

    `asks` are sentences about what only the consent of the user can end. `saves` is the entry that the backup needs when the
    state is reached, or when the user consents, and `notes` are shown then. `saves_now` is one that it needs at once."""

    is_reached: bool
    reasons: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    saves: Json | None = None
    saves_now: Json | None = None
    notes: tuple[str, ...] = ()


REACHED = Progress(True)


class Between:
    """Whether a step between the removal of references and their restoration has something to do."""

    def __init__(self) -> None:
        self.is_pending = True


class Step(Protocol):
    """A step. Each method reads the cluster; `act` and `undo` write, and raise Changed if something else was faster.

    `saved` are the entries of the backup for this step, oldest first.
    """

    name: str
    saves_as: str  # name of its entries in the backup
    destroys: str
    can_undo: bool

    def look(self, saved: Sequence[Json]) -> Look:
        """Return what is found. Write nothing."""

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the entry that the backup needs before the step acts; None if it has it."""

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the entry that the backup needs before the step is undone; None if it needs none."""

    def act(self, look: Look) -> None:
        """Write what the look says."""

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return whether the cluster has followed. With `detailed`, the reasons also have what takes time, such as logs."""

    def remains(self) -> bool:
        """Return whether undoing leaves something whose progress counts."""

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Return what undoing the step finds: done if nothing is left to undo."""

    def undo(self, look: Look) -> None:
        """Write what a look back says."""
