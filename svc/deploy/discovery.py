"""Which kinds an API server serves, and at which paths."""

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svc.datastore.orch.answers import objects_in
from svc.values import dataclass

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServedKind:
    """A kind's plural, which is part of its path, and whether its objects are in namespaces."""

    plural: str
    is_namespaced: bool

    def path(self, api_version: str, name: str, namespace: str = "") -> str:
        """Return the path of an object; of the collection if the name is empty."""
        place = f"/namespaces/{quote(namespace, safe='')}" if self.is_namespaced else ""
        return f"{root_of(api_version)}{place}/{self.plural}{name and '/'}{quote(name, safe='')}"


def root_of(api_version: str) -> str:
    """Return the path of an API group and version. Only the core group has none in its version."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


class Discovery:
    """The kinds of one API server. Each API version is read once, until it is forgotten."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._kinds: dict[str, dict[str, ServedKind]] = {}

    def find(self, api_version: str, kind: str) -> ServedKind | None:
        """Return a kind; None if it is not served in this version, or the version is empty: the API has no such objects.

        Raise StoreError."""
        if not api_version:
            return None
        if api_version not in self._kinds:
            self._kinds[api_version] = self._read(api_version)
        return self._kinds[api_version].get(kind)

    def forget(self, api_version: str) -> None:
        """Read an API version again when it is needed: a definition has added kinds to it."""
        self._kinds.pop(api_version, None)

    def _read(self, api_version: str) -> dict[str, ServedKind]:
        root = root_of(api_version)
        answer = self._client.get_if_served(root)
        every = [] if answer is None else objects_in(answer, "resources", f"GET {root}")
        served = [each for each in every if "/" not in each["name"]]  # not /status and the like
        return {each["kind"]: ServedKind(each["name"], bool(each["namespaced"])) for each in served}
