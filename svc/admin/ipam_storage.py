"""Objects of address management as resources, in the form that the plain API group has."""

from collections.abc import Sequence
from typing import Any, Final

from svc._core.cidr import Address, Cidr
from svc.admin.rules import settings_of
from svc.model.custom_resources import CONFIG, CONFIG_NAME, CustomResourceCodec
from svc.model.ipam import IpamConfig
from svc.model.keys import IpamConfigKey, Key, Query
from svc.model.object_metadata import ApiGroup
from svc.model.resource import Resource
from svc.names import Names
from svc.values import dataclass, replace

SETTINGS: Final = CONFIG[False]
_FLAGS: Final = ("strictAffinity", "autoAllocateBlocks")


@dataclass(frozen=True, slots=True)
class IpamStorage:
    """Storage of objects that only address management writes."""

    names: Names
    queries_of_all: tuple[Query, ...]

    def key(self, resource: Resource) -> Key:
        raise TypeError(f"{resource.kind} objects are read only")

    def queries(self, _namespace: str) -> Sequence[Query]:
        return self.queries_of_all

    def resource(self, key: Key, value: Any) -> Resource:
        return encoded(self.names, key, value)

    def value(self, resource: Resource, _present: Any) -> Any:
        raise TypeError(f"{resource.kind} objects are read only")

    def is_named(self, resource: Resource, name: str) -> bool:
        """Return whether this is the object's name, the block's CIDR, an address in it, or the handle's ID."""
        if name in (resource.name, resource.spec.get("handleID")):
            return True
        is_block = "allocations" in resource.spec
        try:
            cidr = Cidr(resource.spec["cidr"])
            return cidr == Cidr(name) if "/" in name else is_block and Address(name) in cidr
        except (KeyError, ValueError):
            return False


class SettingsStorage:
    """Storage of the single record of IPAM settings."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def key(self, _resource: Resource) -> Key:
        return IpamConfigKey()

    def queries(self, _namespace: str) -> Sequence[Query]:
        return ()

    def resource(self, key: Key, value: IpamConfig) -> Resource:
        return completed_settings(encoded(self._names, key, value))

    def value(self, resource: Resource, present: IpamConfig | None) -> IpamConfig:
        return replace(settings_of(resource), extra=present.extra if present else None)

    def is_named(self, _resource: Resource, name: str) -> bool:
        return name == CONFIG_NAME


def completed_settings(resource: Resource) -> Resource:
    """Return the settings as they are stored: with both flags, and without other fields that are zero or empty."""
    given = {name: value for name, value in resource.spec.items() if value}
    flags = {"strictAffinity": False, "autoAllocateBlocks": True}
    flags |= {name: resource.spec[name] for name in _FLAGS if resource.spec.get(name) is not None}
    return Resource(SETTINGS, {"name": resource.name}, flags | {name: given[name] for name in given if name not in _FLAGS})


def encoded(names: Names, key: Key, value: Any) -> Resource:
    """Return the resource of a key and its value."""
    data = CustomResourceCodec(ApiGroup(names, names.api_version)).encode(key, value)
    return Resource(data["kind"], data["metadata"], data["spec"])
