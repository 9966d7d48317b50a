"""Reads of a cluster, and the only writes of a run.

1. Every write names what it found: a resourceVersion, or the UID in a test. A creation fails if the object exists.
2. A write that finds another state, and one whose answer is lost, raise Changed: the caller looks again.
3. A missing kind, a missing right and every other refusal raise Blocked, with a sentence that names the object.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from svc.datastore.orch.client import METADATA_ONLY, ApiError, Client, Unreachable
from svc.deploy.discovery import Discovery, ServedKind
from svc.names import Names
from svc.upgrade.helm import Helm
from svc.upgrade.outcomes import Blocked, Rejected
from svc.upgrade.permitted import Permit
from svc.upgrade.places import Place, place_of

Json = dict[str, Any]

MANAGER: Final = "svcctl"

_JSON_PATCH: Final = "application/json-patch+json"
_METADATA_LIST: Final = METADATA_ONLY.replace("PartialObjectMetadata", "PartialObjectMetadataList")
_DRY: Final = {"dryRun": "All"}
_CONFLICT, _MISSING, _INVALID = 409, 404, 422
_REJECTIONS: Final = (400, _CONFLICT, _INVALID)


class Changed(Exception):
    """The object is not what was read, or the outcome of a write is unknown: look again."""


class Cluster:
    """Reads, and dry runs. One thread uses it."""

    def __init__(self, client: Client, names: Names) -> None:
        self.client = client
        self.names = names
        self.discovery = Discovery(client)
        self.resources = ExitStack()
        """What procedures have opened. The caller closes it at the end."""

    def served(self, place: Place) -> ServedKind | None:
        """Return the kind of a place; None if the server does not serve it."""
        return self.discovery.find(place.api_version, place.kind)

    def path(self, place: Place) -> str:
        """Return the path of an object. Raise Blocked if its kind is not served."""
        served = self.served(place)
        if served is None:
            raise Blocked([not_served(place)])
        return served.path(place.api_version, place.name, place.namespace)

    def folder(self, place: Place) -> str:
        """Return the path of all objects of a kind in a namespace."""
        return self.path(place).rpartition("/")[0]

    def find(self, place: Place) -> Json | None:
        """Return an object; None if it does not exist. Raise Blocked if its kind is not served."""
        path = self.path(place)
        try:
            return self.client.get(path)
        except ApiError as error:
            if error.is_missing:
                return None
            if error.lacks_right:
                raise lacking(place, "get", error) from error
            raise

    def items(self, path: str, *, metadata_only: bool = False, **params: str) -> Iterator[Json]:
        """Yield the objects of a list, read in pages. Begin again if a page has expired: an object may come twice."""
        accept = {"accept": _METADATA_LIST} if metadata_only else {}
        while True:
            try:
                for page in self.client.pages(path, **accept, **params):
                    yield from page.items
                return
            except ApiError as error:
                if error.status != 410:
                    raise

    def dry_create(self, document: Json) -> Json:
        """Return what the server would store. Raise Blocked."""
        place = place_of(document)
        with _refused(place, "create"):
            return self.client.create(self.folder(place), document, fieldManager=MANAGER, **_DRY)

    def dry_apply(self, document: Json) -> Json:
        """Return the object as a forced server-side apply would leave it. Raise Blocked."""
        place = place_of(document)
        with _refused(place, "patch"):
            return self.client.apply(self.path(place), document, MANAGER, **_DRY)

    def dry_replace(self, document: Json) -> Json:
        """Return the object as a replacement would leave it. Raise Blocked, and Changed if it is not what was read."""
        place = place_of(document)
        path = self.path(place)
        try:
            with _refused(place, "update", passing=(_CONFLICT,)):
                return self.client.replace(path, document, fieldManager=MANAGER, **_DRY)
        except ApiError as error:
            raise Changed(f"{place}: {error.msg}") from error


class Writer(Cluster):
    """Writes of a run, each in a block of `permit`, which limits its time, and raises if the run may not write.

    `settings` are those by which the API server was opened, for sessions with the datastore behind it."""

    def __init__(
        self,
        client: Client,
        names: Names,
        permit: Permit,
        settings: Mapping[str, str] | None = None,
        helm: Helm = Helm(),  # noqa: B008  # immutable
    ) -> None:
        super().__init__(client, names)
        self.settings = dict(settings or {})
        self.permit = permit
        self.helm = helm

    def create(self, document: Json) -> Json:
        """Create an object. Raise Changed if it exists."""
        place = place_of(document)
        path = self.folder(place)
        with self._sending(place, "create"):
            return self.client.create(path, document, fieldManager=MANAGER)

    def apply(self, document: Json, live: Json) -> Json:
        """Apply a document to an object that is still what was read, and take over its fields."""
        place = place_of(document)
        body = document | {"metadata": document["metadata"] | {"resourceVersion": _revision(live)}}
        path = self.path(place)
        with self._sending(place, "patch"):
            return self.client.apply(path, body, MANAGER)

    def replace(self, document: Json, live: Json) -> Json:
        """Replace an object that is still what was read."""
        place = place_of(document)
        metadata = document["metadata"] | {"resourceVersion": _revision(live), "uid": live["metadata"]["uid"]}
        path = self.path(place)
        with self._sending(place, "update"):
            return self.client.replace(path, document | {"metadata": metadata}, fieldManager=MANAGER)

    def patch(self, place: Place, live: Json, operations: Sequence[Json], manager: str = MANAGER) -> Json:
        """Change fields of an object that is still what was read, by a JSON patch. They belong to the manager then."""
        guard = [
            {"op": "test", "path": "/metadata/uid", "value": live["metadata"]["uid"]},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": _revision(live)},
        ]
        path = self.path(place)
        with self._sending(place, "patch", stale=(_CONFLICT, _INVALID)):
            return self.client.patch(path, [*guard, *operations], _JSON_PATCH, fieldManager=manager)

    def delete(self, place: Place, live: Json) -> None:
        """Delete an object that is still what was read."""
        path = self.path(place)
        with self._sending(place, "delete"):
            self.client.delete(path, uid=live["metadata"]["uid"], resourceVersion=_revision(live))

    @contextmanager
    def _sending(self, place: Place, verb: str, stale: Sequence[int] = (_CONFLICT,)) -> Iterator[None]:
        """Send a write in the block, in the time that the run has."""
        try:
            with self.permit(), _refused(place, verb, passing=(*stale, _MISSING)):
                yield
        except ApiError as error:
            if error.status == _MISSING and not error.is_missing:
                self.discovery.forget(place.api_version)
                if self.served(place) is None:
                    raise Blocked([not_served(place)]) from error
            raise Changed(f"{place}: {error.msg}") from error
        except Unreachable as error:
            if not error.maybe_applied:
                raise Blocked([f"{place}: {error.msg}"], details=error.details) from error
            raise Changed(f"{place}: {error.msg}") from error


def lacking(place: Place, verb: str, error: ApiError) -> Blocked:
    """Return the error about a missing right."""
    return Blocked([f"{place}: the right to {verb} it is missing: {error.msg}"], details=error.details)


def not_served(place: Place) -> str:
    """Return the sentence about a kind that is not served."""
    return f"{place}: the API server does not serve {place.kind} of {place.api_version}"


@contextmanager
def _refused(place: Place, verb: str, passing: Sequence[int] = ()) -> Iterator[None]:
    """Raise Blocked for a refusal in the block, except those of a status that passes: Rejected if the content is the reason."""
    try:
        yield
    except ApiError as error:
        if error.status in passing:
            raise
        if error.lacks_right:
            raise lacking(place, verb, error) from error
        kind = Rejected if error.status in _REJECTIONS else Blocked
        raise kind([f"{place}: {error.msg}"], details=error.details) from error


def _revision(live: Json) -> str:
    return str(live["metadata"]["resourceVersion"])
