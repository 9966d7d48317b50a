"""Releases of helm, as its Secrets record them."""

import gzip
import json
import re
import zlib
from base64 import b64decode
from typing import Any, Final

from svc.admin.documents import read_raw
from svc.upgrade.chart_files import is_blank
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place
from svc.upgrade.writer import Cluster
from svc.values import dataclass

Json = dict[str, Any]

TYPE: Final = "helm.sh/release.v1"
DEPLOYED: Final = "deployed"
FORMER_NAMESPACE: Final = "default"
"""The namespace of releases of charts of the old layout."""

_PENDING: Final = "pending-"
_OWNER: Final = "owner=helm"
_ALL: Final = "/api/v1/secrets"


@dataclass(frozen=True, slots=True)
class Release:
    """A revision of a release. `secret` is its Secret, `chart` what helm has kept of the chart."""

    name: str
    namespace: str
    revision: int
    status: str
    chart: Json
    config: Json
    manifest: str
    secret: Json

    @property
    def is_pending(self) -> bool:
        """Whether a run of helm is at work, or was killed."""
        return self.status.startswith(_PENDING)

    @property
    def chart_name(self) -> str:
        """Name and version of the chart."""
        about = self.chart.get("metadata") or {}
        return f"{about.get('name')} {about.get('version')}"

    @property
    def app_version(self) -> str:
        """The version of what the chart installs."""
        about = self.chart.get("metadata") or {}
        return str(about.get("appVersion") or about.get("version") or "")

    def documents(self) -> list[Json]:
        """Return the objects of the release. Hooks are not among them."""
        return documents_of(self.manifest)

    def __str__(self) -> str:
        return f"revision {self.revision} of release {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Records:
    """The Secrets of a release by namespace, each list by revision; Secrets that only look like them; other releases."""

    by_namespace: dict[str, list[Json]]
    others: tuple[Place, ...]
    known: tuple[str, ...]


def read_records(cluster: Cluster, name: str) -> Records:
    """Return the metadata of the Secrets of a release. Raise StoreError."""
    pattern = re.compile(rf"sh\.helm\.release\.v1\.{re.escape(name)}\.v([0-9]+)")
    found: dict[str, dict[int, Json]] = {}
    others, known = [], set()
    typed = {place_of(each) for each in cluster.items(_ALL, metadata_only=True, fieldSelector=f"type={TYPE}")}
    for secret in cluster.items(_ALL, metadata_only=True, labelSelector=_OWNER):
        place, labelled = place_of(secret), (secret["metadata"].get("labels") or {}).get("name", "")
        known.add(f"{place.namespace}/{labelled}")
        if labelled != name:
            continue
        match = pattern.fullmatch(place.name)
        if match is None or place not in typed:
            others.append(place)
            continue
        found.setdefault(place.namespace, {})[int(match[1])] = secret
    ordered = {namespace: [each for _, each in sorted(by.items())] for namespace, by in sorted(found.items())}
    return Records(ordered, tuple(dict.fromkeys(others)), tuple(sorted(known)))


def place_of(secret: Json) -> Place:
    """Return the place of a Secret."""
    return Place("v1", "Secret", secret["metadata"]["namespace"], secret["metadata"]["name"])


def read_release(cluster: Cluster, place: Place) -> Release | None:
    """Return the release of a Secret; None if the Secret is gone. Raise Blocked if it is damaged."""
    secret = cluster.find(place)
    if secret is None:
        return None
    try:
        packed = b64decode(b64decode(secret["data"]["release"], validate=True), validate=True)
        found = json.loads(gzip.decompress(packed))
        return Release(
            str(found["name"]),
            str(found["namespace"]),
            int(found["version"]),
            str(found["info"]["status"]),
            dict(found["chart"]),
            dict(found.get("config") or {}),
            str(found.get("manifest") or ""),
            secret,
        )
    except (KeyError, TypeError, ValueError, OSError, EOFError, zlib.error) as error:
        raise Blocked(
            [f"{place} is damaged: {error!r}"], details="restore it from a backup; `helm history` shows other revisions"
        ) from error


def newest_of(cluster: Cluster, secrets: list[Json]) -> Release | None:
    """Return the newest revision of these Secrets."""
    return read_release(cluster, place_of(secrets[-1])) if secrets else None


def documents_of(manifest: str) -> list[Json]:
    """Return the objects of a manifest; none if it is empty."""
    if is_blank(manifest):
        return []
    return [each.content for each in read_raw([("the manifest of the release", manifest.encode())])]
