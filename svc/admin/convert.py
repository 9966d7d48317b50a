"""Conversion of documents between names profiles, API groups and legacy fields.

A note names each field and object that is left out for lack of an equivalent, so that a reader can decide about it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from svc.admin import kinds, manifest, policies
from svc.admin.columns import lookup
from svc.admin.documents import Document
from svc.admin.kind import Kind
from svc.admin.renaming import Renaming
from svc.admin.resources import CLUSTER, NODE, POOL
from svc.model.custom_resources import CONFIG
from svc.model.errors import CallerError, Code
from svc.model.field_errors import FieldErrors, display
from svc.model.object_metadata import ApiGroup
from svc.model.pool import ALWAYS, CROSS_SUBNET, NEVER
from svc.names import Names

Json = dict[str, Any]
Note = Callable[[str, str], None]
"""Records a field or object that has no equivalent, and why."""

_KEPT: Final = ("name", "namespace", "labels", "annotations")
_OF_SERVER: Final = (
    "uid",
    "creationTimestamp",
    "resourceVersion",
    "generation",
    "managedFields",
    "selfLink",
    "generateName",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_MODES: Final = {"": ALWAYS, "always": ALWAYS, "cross-subnet": CROSS_SUBNET, "crosssubnet": CROSS_SUBNET}
_IPIP, _NAT = "ipip", "nat-outgoing"  # legacy fields of pools


class Unconvertible(CallerError):
    """A document that cannot be converted."""

    code = Code.DECODING_FAILURE


def source_of(document: Document, known: Sequence[Names]) -> Names:
    """Return the names whose API groups include that of the document. Raise Unconvertible if no profile has it."""
    for names in known:
        if document.api_version in (names.api_version, names.crd_api_version, names.operator_api_version):
            return names
    groups = dict.fromkeys(f"{names.api_version}, {names.crd_api_version}" for names in known)
    raise Unconvertible(
        f"{document.title}apiVersion = {display(document.api_version or None)} is of no known names profile",
        details=f"known are {', '.join(groups)}; name the profile of the file with --names",
    )


def convert(document: Document, renaming: Renaming, note: Note, *, backing: bool) -> Json | None:
    """Return the object in an API group of the target; None if it has no equivalent. Raise Unconvertible."""
    known = kinds.table(renaming.source, "")
    kind = kinds.of_manifest(known, document.kind)
    _check_types(document, kind)
    if not document.kind or (kind is None and not renaming.is_identical):
        note(f"kind {document.kind or '(missing)'}", "svc has no such kind")
        return None
    if kind and kind.read_only:
        note(f"kind {document.kind}", kind.read_only)
        return None
    metadata = _metadata(document, renaming, note)
    spec = _spec(document, kind, renaming, note)
    return _document(_kind_name(document.kind, backing=backing), metadata, spec, renaming.target, backing=backing)


def _check_types(document: Document, kind: Kind | None) -> None:
    """Raise CallerError if a part is not an object, or text has no quotes and would become another value."""
    errors = FieldErrors(document.source, Code.DECODING_FAILURE)
    for part in ("metadata", "spec"):
        manifest.object_at(f"{document.place}{part}", document.content.get(part), errors)
    for part in ("labels", "annotations"):
        manifest.object_at(f"{document.place}metadata.{part}", lookup(document.content, f"metadata.{part}"), errors)
    manifest.check_quotes(document.place, document.node, kind.texts if kind else (), errors)
    errors.raise_if_any()


def _document(kind: str, metadata: Json, spec: Json, names: Names, *, backing: bool) -> Json:
    version = names.crd_api_version if backing else names.api_version
    wrapped: Json = {name: metadata[name] for name in ("name", "namespace") if name in metadata}
    wrapped |= ApiGroup(names, version).wrap(metadata)
    return {"apiVersion": version, "kind": kind, "metadata": wrapped, "spec": spec}


def _kind_name(kind: str, *, backing: bool) -> str:
    return CONFIG[backing] if kind in CONFIG.values() else kind


def _metadata(document: Document, renaming: Renaming, note: Note) -> Json:
    given: Json = document.content.get("metadata") or {}
    if document.api_version == renaming.source.crd_api_version:
        try:
            given = ApiGroup(renaming.source, document.api_version).unwrap(given)
        except (ValueError, TypeError, AttributeError) as error:
            details = f"correct annotation {renaming.source.metadata_annotation}, or leave it out"
            raise Unconvertible(f"{document.title}metadata cannot be read: {error}", details=details) from None
    kept = {name: given[name] for name in _KEPT if given.get(name)}
    for name in given:
        if given[name] and name not in (*_KEPT, *_OF_SERVER):
            note(f"metadata.{name}", "it refers to an object of the other deployment")
    for part in ("labels", "annotations"):
        if isinstance(kept.get(part), dict):
            kept[part] = renaming.pairs(kept[part])
    return kept


def _spec(document: Document, kind: Kind | None, renaming: Renaming, note: Note) -> Json:
    spec: Json = dict(document.content.get("spec") or {})
    if kind is None:
        return spec
    if kind.name == POOL:
        spec = _without_legacy(document, spec)
    elif kind.name == CLUSTER.kind and renaming.source.version_field in spec:
        spec[renaming.target.version_field] = spec.pop(renaming.source.version_field)
    for name in [name for name in spec if kind.own and name not in kind.own and not renaming.is_identical]:
        note(f"spec.{name}", f"svc does not read it in objects of kind {kind.name}")
        del spec[name]
    return _renamed(kind, spec, renaming)


def _renamed(kind: Kind, spec: Json, renaming: Renaming) -> Json:
    if kind.name in (policies.KIND, policies.GLOBAL_KIND):
        return policies.renamed(spec, renaming)
    for name in ("nodeSelector", "namespaceSelector"):
        if isinstance(spec.get(name), str):
            spec[name] = renaming.selector(spec[name])
    if isinstance(spec.get("profiles"), list):
        spec["profiles"] = [renaming.profile(each) if isinstance(each, str) else each for each in spec["profiles"]]
    if kind.name == NODE and isinstance(spec.get("addresses"), list):
        spec["addresses"] = [_address(each, renaming) for each in spec["addresses"]]
    return spec


def _address(each: Any, renaming: Renaming) -> Any:
    is_own = isinstance(each, dict) and each.get("type") == renaming.source.node_address
    return {**each, "type": renaming.target.node_address} if is_own else each


def _without_legacy(document: Document, spec: Json) -> Json:
    """Return the fields of a pool, with today's in place of legacy ones. Raise Unconvertible if they contradict each other."""
    today = {name: value for name, value in spec.items() if name not in (_IPIP, _NAT)}
    legacy: Json = {}
    if _NAT in spec:
        legacy["natOutgoing"] = spec[_NAT]
    if _IPIP in spec:
        legacy["ipipMode"] = _ipip_mode(document, spec[_IPIP])
    for name, value in legacy.items():
        if today.get(name, value) != value:
            old = _IPIP if name == "ipipMode" else _NAT
            raise Unconvertible(
                f"{document.title}spec.{old} = {display(spec[old])} contradicts spec.{name} = {display(today[name])}",
                details=f"leave spec.{old} out, which is the older one",
            )
    return today | legacy


def _ipip_mode(document: Document, given: Any) -> str:
    place = f"{document.title}spec.{_IPIP}"
    if not isinstance(given, dict) or not isinstance(given.get("enabled", False), bool):
        raise Unconvertible(
            f"{place} = {display(given)} is not an object with enabled and mode", details="give {enabled: true}"
        )
    mode = str(given.get("mode") or "").lower()
    if mode not in _MODES:
        raise Unconvertible(f"{place}.mode = {display(given['mode'])} is not known", details="give always or cross-subnet")
    return _MODES[mode] if given.get("enabled") else NEVER
