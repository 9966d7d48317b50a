"""Resources of the API group: kind, metadata, spec and status, kept as JSON so that unknown fields are preserved."""

import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from svc.model import json_fields
from svc.model.field_errors import MISSING, FieldError
from svc.timestamps import rfc3339
from svc.values import dataclass, field

Json = dict[str, Any]

MAX_NAME = 253  # characters

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_RULE = "up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last"
_FIELDS = frozenset({"kind", "apiVersion", "metadata", "spec", "status"})
_ORDER = ("name", "generateName", "namespace", "uid", "creationTimestamp", "labels", "annotations")  # of metadata


@dataclass(slots=True)
class Resource:
    """A resource. `metadata` never has a resourceVersion."""

    kind: str
    metadata: Json
    spec: Json = field(default_factory=dict)
    status: Json | None = None
    extra: Json | None = None  # other members, written back unchanged

    @property
    def name(self) -> str:
        return str(self.metadata.get("name", ""))

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace", ""))

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.get("labels") or {}

    def to_json(self, api_version: str) -> Json:
        data: Json = {"kind": self.kind, "apiVersion": api_version, "metadata": self.metadata, "spec": self.spec}
        if self.status is not None:
            data["status"] = self.status
        return data | self.extra if self.extra else data

    @staticmethod
    def from_json(data: Json) -> "Resource":
        """Parse a resource. Raise ValueError that names a field which is missing or of another type."""
        kind, metadata = json_fields.required_text(data, "kind"), json_fields.pairs(data, "metadata")
        spec = json_fields.pairs(data, "spec")
        status = None if data.get("status") is None else json_fields.pairs(data, "status")
        for name in ("labels", "annotations"):
            try:
                json_fields.texts(metadata, name)
            except ValueError as error:
                raise ValueError(f"metadata.{error}") from None
        return Resource(kind, metadata, spec, status, json_fields.unknown(data, _FIELDS))


def new_uid() -> str:
    """Return a random UID (RFC 9562, version 4). `uuid.uuid4` takes five times as long, and each ADD needs a UID."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def set_identity(resource: Resource, now: datetime, uid: str) -> None:
    """Set UID and creation time of a resource; existing ones are kept. `now` must be aware; times are in UTC, in seconds."""
    resource.metadata = ordered({"uid": uid, "creationTimestamp": rfc3339(now.timestamp())} | resource.metadata)


def ordered(metadata: Json) -> Json:
    """Return metadata as it is written: known fields first, in order, without empty ones."""
    known = {name: metadata[name] for name in _ORDER if metadata.get(name)}
    others = {name: value for name, value in metadata.items() if value and name not in known}
    return known | others


def name_error(resource: Resource) -> list[FieldError]:
    """Return the field error of a resource's name, if any. The name must be a valid name of a Kubernetes object."""
    name = resource.metadata.get("name", MISSING)
    if isinstance(name, str) and len(name) <= MAX_NAME and _NAME.fullmatch(name):
        return []
    problem = "is missing" if name is MISSING else f"cannot name a resource of kind {resource.kind}"
    remedy = f"give up to {MAX_NAME} lower-case letters, digits, '-' and '.', a letter or digit first and last"
    return [FieldError("metadata.name", name, problem, remedy)]


def label_errors(labels: Mapping[str, object]) -> Iterator[FieldError]:
    """Yield a field error for each label that breaks the rules of Kubernetes, because selectors must be able to name it."""
    for key, value in labels.items():
        if not _is_label_key(key):
            yield FieldError("metadata.labels key", key, "is not a label key", f"give [DOMAIN/]NAME, NAME of {_LABEL_RULE}")
        elif isinstance(value, str) and value and not _LABEL.fullmatch(value):
            yield FieldError(f"metadata.labels.{key}", value, "is not a label value", f"give {_LABEL_RULE}; or nothing")


def _is_label_key(key: str) -> bool:
    prefix, slash, word = key.rpartition("/")
    if not _LABEL.fullmatch(word):
        return False
    return not slash or bool(len(prefix) <= MAX_NAME and _NAME.fullmatch(prefix))
