"""The policy `allow-all-upgrade`, which lets all traffic of host endpoints through while a cluster is upgraded: its end."""

from collections.abc import Sequence
from typing import Any, Final

from svc.model.errors import CallerError
from svc.upgrade.host_endpoint_view import TEMPORARY_POLICIES, TEMPORARY_POLICY
from svc.upgrade.object_states import digest
from svc.upgrade.places import Place, place_of
from svc.upgrade.step import REACHED, Look, Progress
from svc.upgrade.writer import Writer

Json = dict[str, Any]

_KIND: Final = "GlobalNetworkPolicy"
_KINDS: Final = (_KIND, "NetworkPolicy")
_KEPT: Final = ("name", "labels", "annotations")


def require_policies(documents: Sequence[Json]) -> None:
    """Raise CallerError if the documents cannot replace the policy."""
    for each in documents:
        if each.get("kind") not in _KINDS or (each.get("metadata") or {}).get("name") in TEMPORARY_POLICIES:
            raise CallerError("--policies has something else than policies that replace it", details="give the policies alone")
    if not documents:
        raise CallerError("--policies has no policy", details=f"give those that replace {TEMPORARY_POLICY}")


class TemporaryPolicy:
    """Delete the policy, which needs the consent of the user. The policies that replace it are steps before this one."""

    name = saves_as = TEMPORARY_POLICY
    destroys = f"the policy {TEMPORARY_POLICY}; the run keeps a copy"
    can_undo = True

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def look(self, saved: Sequence[Json]) -> Look:  # noqa: ARG002
        """Look for the policy."""
        found = self._find()
        if found is None:
            return Look(True, before=digest(None), after=digest(None))
        ask = f"{TEMPORARY_POLICY} is deleted: traffic of host endpoints that the policies of --policies do not allow ends"
        changes = ((str(place_of(found)), "present", None),)
        before = digest({"uid": found["metadata"]["uid"]})
        return Look(False, asks=(ask,), changes=changes, before=before, after=digest(None), content={"document": found})

    def unsaved(self, look: Look, saved: Sequence[Json]) -> Json | None:
        """Return the policy, unless it is saved."""
        uids = {each["document"]["metadata"]["uid"] for each in saved}
        document = look.content.get("document")
        return None if document is None or document["metadata"]["uid"] in uids else {"document": document}

    def unsaved_back(self, look: Look, saved: Sequence[Json]) -> Json | None:  # noqa: ARG002
        """Return nothing: the policy is saved."""
        return None

    def act(self, look: Look) -> None:
        """Delete the policy that was shown: by name, UID and revision."""
        self._writer.delete(place_of(look.content["document"]), look.content["document"])

    def progress(self, *, detailed: bool = False) -> Progress:  # noqa: ARG002
        """Return that nothing follows."""
        return REACHED

    def remains(self) -> bool:
        """Return False: nothing follows."""
        return False

    def look_back(self, saved: Sequence[Json]) -> Look:
        """Look whether the policy is there."""
        if not saved or self._find() is not None:
            return Look(True)
        document = saved[-1]["document"]
        return Look(False, changes=((str(place_of(document)), None, "present"),), content={"document": document})

    def undo(self, look: Look) -> None:
        """Create the policy again."""
        document = look.content["document"]
        metadata = {name: document["metadata"][name] for name in _KEPT if document["metadata"].get(name)}
        self._writer.create(document | {"metadata": metadata})

    def _find(self) -> Json | None:
        names = self._writer.names
        for version in (names.crd_api_version, names.api_version):
            for name in TEMPORARY_POLICIES:
                place = Place(version, _KIND, "", name)
                if self._writer.served(place) is not None and (found := self._writer.find(place)):
                    return found
        return None
