"""A kind of objects that a controller derives from a kind of the Kubernetes API."""

from abc import ABC, abstractmethod
from typing import Any, TypeGuard

from svc.controllers.controller import Unsettled
from svc.model.keys import Key, ResourceKey, ResourceQuery
from svc.values import dataclass

Json = dict[str, Any]


class Untranslatable(Unsettled):
    """The error about an object, or a part of it, that has no equivalent."""


@dataclass(frozen=True, slots=True)
class Translation:
    """The `spec` that follows from an object, and the parts of the object that were left out, each with the reason."""

    spec: Json
    left_out: tuple[str, ...] = ()


class CopiedKind(ABC):
    """The objects of one controller: where Kubernetes has the originals, and what the datastore has in their place.

    The controller owns all objects of the `query` whose names begin with the `prefix`.
    """

    controller: str
    path: str  # of the collection of the originals
    query: ResourceQuery
    prefix: str

    @abstractmethod
    def key(self, original: Json) -> ResourceKey:
        """Return the key of an original's copy."""

    @abstractmethod
    def original_path(self, key: ResourceKey) -> str:
        """Return the path of the original in the API; empty if a copy of this name cannot have one."""

    @abstractmethod
    def translate(self, original: Json) -> Translation:
        """Return what is stored for an original. Raise Untranslatable if nothing can be."""

    def owns(self, key: Key) -> TypeGuard[ResourceKey]:
        """Return whether the controller may change the object at this key."""
        return isinstance(key, ResourceKey) and key.name.startswith(self.prefix) and bool(self.original_path(key))
