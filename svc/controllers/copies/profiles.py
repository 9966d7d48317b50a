"""Policy profiles of namespaces and service accounts: the labels that endpoints inherit, and what applies without policy."""

from svc.controllers.copies.copied_kind import CopiedKind, Json, Translation
from svc.datastore.orch.client import segment
from svc.model.keys import ResourceKey, ResourceQuery
from svc.names import Names

_KIND = "Profile"
_NAMESPACES = "/api/v1/namespaces"
_ALLOW_ALL = {"action": "Allow", "source": {}, "destination": {}}


class NamespaceProfiles(CopiedKind):
    """The profile of each namespace. It allows what no policy restricts."""

    controller = "namespace"
    path = _NAMESPACES

    def __init__(self, names: Names) -> None:
        self._names = names
        self.prefix = names.namespace_profile
        self.query = ResourceQuery(_KIND, prefix=self.prefix)

    def key(self, original: Json) -> ResourceKey:
        return ResourceKey(_KIND, f"{self.prefix}{original['metadata']['name']}")

    def original_path(self, key: ResourceKey) -> str:
        name = key.name.removeprefix(self.prefix)
        return f"{_NAMESPACES}/{segment(name)}" if name else ""

    def translate(self, original: Json) -> Translation:
        labels = _labels(self._names, self._names.namespace_label, original)
        return Translation({"ingress": [_ALLOW_ALL], "egress": [_ALLOW_ALL], "labelsToApply": labels})


class AccountProfiles(CopiedKind):
    """The profile of each service account. It has labels, and no rules."""

    controller = "serviceaccount"
    path = "/api/v1/serviceaccounts"

    def __init__(self, names: Names) -> None:
        self._names = names
        self.prefix = names.service_account_profile
        self.query = ResourceQuery(_KIND, prefix=self.prefix)

    def key(self, original: Json) -> ResourceKey:
        metadata = original["metadata"]
        return ResourceKey(_KIND, f"{self.prefix}{metadata['namespace']}.{metadata['name']}")

    def original_path(self, key: ResourceKey) -> str:
        namespace, _, name = key.name.removeprefix(self.prefix).partition(".")  # a namespace has no dot in its name
        return f"{_NAMESPACES}/{segment(namespace)}/serviceaccounts/{segment(name)}" if namespace and name else ""

    def translate(self, original: Json) -> Translation:
        return Translation({"labelsToApply": _labels(self._names, self._names.service_account_label, original)})


def _labels(names: Names, prefix: str, original: Json) -> dict[str, str]:
    """Return the labels of an object with a prefix, and its name as another one."""
    metadata = original["metadata"]
    labels = {f"{prefix}{name}": text for name, text in (metadata.get("labels") or {}).items()}
    return labels | {f"{prefix}{names.label_prefix}/name": metadata["name"]}
