"""The version of svc that a cluster has, as nodes note it in ClusterInformation. It never becomes older.

If the definitions belong to another product, its fields stay as they are: svc notes its version in an annotation.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from svc.admin.resources import CLUSTER, completed, update
from svc.admin.version_order import order_of
from svc.datastore.api import Backend, StoreError
from svc.model.resource import Resource
from svc.names import DEFAULT, Names
from svc.values import replace

API_TYPE: Final = "kdd"
"""The type of a cluster whose datastore is the Kubernetes API."""


def version_annotation(names: Names) -> str:
    """Return the annotation with the version of svc, in a cluster whose definitions belong to another product."""
    return f"{names.label_prefix}/{DEFAULT.plugin}-version"


def noted_version(names: Names, present: Resource | None) -> str:
    """Return the version of svc that a cluster's ClusterInformation has; empty if it has none."""
    if present is None:
        return ""
    annotations = present.metadata.get("annotations") or {}
    noted = annotations.get(version_annotation(names)) if names.foreign_definitions else present.spec.get(names.version_field)
    return "" if noted is None else str(noted).strip()


def note_version(backend: Backend, names: Names, types: Sequence[str], version: str, now: datetime) -> str:
    """Write version and types of the cluster, unless they are there; return what was done.

    A newer version stays. Raise StoreError if the version that is there cannot be compared, or if the datastore fails."""
    if names.foreign_definitions:
        return update(backend, CLUSTER, lambda present: _annotated(names, present, version))

    def wanted(present: Resource | None) -> Resource:
        return completed(names, present, types, newest(noted_version(names, present), version))

    return update(backend, CLUSTER, wanted, now)


def newest(stored: str, own: str, remedy: str = "") -> str:
    """Return the version to be stored. Raise StoreError, with the remedy, if the stored one cannot be compared."""
    before, now = order_of(stored), order_of(own)
    if stored and (before is None or now is None):
        odd = stored if before is None else own
        raise StoreError(
            f"version {own!r} is not noted: ClusterInformation default has {stored!r}, and {odd!r} cannot be compared",
            details=remedy or "put it right: `svcctl clusterinfo init --cluster-version VERSION --allow-version-mismatch`",
        )
    return stored if before is not None and now is not None and before >= now else own


def _annotated(names: Names, present: Resource | None, version: str) -> Resource:
    """Return the resource with the version in an annotation. It must exist: the other product makes it."""
    if present is None:
        raise StoreError("ClusterInformation default does not exist", details="install the product that it belongs to first")
    name, annotations = version_annotation(names), present.metadata.get("annotations") or {}
    wanted = newest(noted_version(names, present), version, f"remove its annotation {name}")
    if wanted == annotations.get(name):
        return present
    return replace(present, metadata=present.metadata | {"annotations": annotations | {name: wanted}})
