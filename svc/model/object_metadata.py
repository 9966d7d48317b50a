"""Metadata of custom resources: conversion between a value's metadata and that of its object in an API group.

A group is plain or backing. In a *plain* group the object has the value's metadata. In a *backing* group the objects are the
storage of another API. The value's metadata is JSON in one annotation, and only labels and annotations of svc's domains are
also native. The UID that the API shows is the object's UID with reversed bits.
"""

from typing import Any

import orjson

from svc.model.resource import ordered
from svc.names import Names
from svc.values import dataclass

Json = dict[str, Any]

_IDENTITY = ("name", "namespace", "uid", "resourceVersion")  # always native
_NATIVE = ("finalizers", "ownerReferences")
_SERVERS = ("resourceVersion", "selfLink", "generation", "managedFields")  # not part of a value
_READ_ONLY = (*_IDENTITY, *_SERVERS, "deletionTimestamp", "deletionGracePeriodSeconds")
_KEPT_BYTES = (6, 8)  # bytes of a UID with version and variant
_TURNED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def bit_reversed_uid(uid: str) -> str:
    """Reverse the bits of a UID's bytes without version and variant. Its own inverse; other text is returned unchanged."""
    try:
        raw = bytes.fromhex(uid.replace("-", ""))
    except ValueError:
        return uid
    if len(raw) != 16:
        return uid
    text = bytes(byte if place in _KEPT_BYTES else _TURNED[byte] for place, byte in enumerate(raw)).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


@dataclass(frozen=True, slots=True)
class ApiGroup:
    """One API group and version with custom resources of svc."""

    names: Names
    api_version: str

    @property
    def is_backing(self) -> bool:
        return self.api_version == self.names.crd_api_version

    @property
    def root(self) -> str:
        return f"/apis/{self.api_version}"

    def wrap(self, metadata: Json) -> Json:
        """Return an object's metadata for a value's metadata, without name and revision."""
        if not self.is_backing:
            return {name: item for name, item in metadata.items() if name not in _READ_ONLY}
        carried = {name: _sorted(item) for name, item in metadata.items() if name not in (*_READ_ONLY, *_NATIVE)}
        native: Json = {"annotations": self._own(metadata.get("annotations"))}
        native["annotations"][self._carrier] = orjson.dumps(ordered(carried)).decode()
        if labels := self._own(metadata.get("labels")):
            native["labels"] = labels
        if metadata.get("finalizers"):
            native["finalizers"] = metadata["finalizers"]
        if metadata.get("ownerReferences"):
            native["ownerReferences"] = [
                self._owner(owner, self.names.api_version, self.api_version) for owner in metadata["ownerReferences"]
            ]
        return native

    def unwrap(self, metadata: Json) -> Json:
        """Return a value's metadata for an object's metadata. Raise ValueError if the JSON in the annotation is malformed."""
        found = {name: item for name, item in metadata.items() if name not in _SERVERS}
        if not self.is_backing:
            return ordered(found)
        annotations = dict(metadata.get("annotations") or {})
        carried = _object(annotations.pop(self._carrier, None) or "{}")
        for name, native in (("labels", metadata.get("labels") or {}), ("annotations", annotations)):
            found[name] = native | (carried.pop(name, None) or {})
        found |= {name: item for name, item in carried.items() if name not in _IDENTITY and item}
        found["uid"] = bit_reversed_uid(str(metadata.get("uid") or ""))
        found["ownerReferences"] = [
            self._owner(owner, self.api_version, self.names.api_version) for owner in metadata.get("ownerReferences") or ()
        ]
        return ordered(found)

    @property
    def _carrier(self) -> str:
        return f"{self.names.label_prefix}/metadata"

    def _own(self, pairs: dict[str, str] | None) -> dict[str, str]:
        domains = self.names.native_domains
        return {name: text for name, text in (pairs or {}).items() if any(domain in name for domain in domains)}

    @staticmethod
    def _owner(owner: Json, before: str, after: str) -> Json:
        """Convert an owner reference: version and UID of an object of svc differ between the two APIs."""
        if owner.get("apiVersion") != before:
            return owner
        return owner | {"apiVersion": after, "uid": bit_reversed_uid(str(owner.get("uid") or ""))}


def _sorted(item: Any) -> Any:
    return dict(sorted(item.items())) if isinstance(item, dict) else item


def _object(text: str) -> Json:
    found = orjson.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"the metadata annotation holds {type(found).__name__}, not an object")
    return found
