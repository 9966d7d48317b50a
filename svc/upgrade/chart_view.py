"""A release of helm in a cluster, and the objects that a chart makes of it (specification, 9.3)."""

from collections.abc import Iterator
from typing import Any, Final

from svc.upgrade.bundle import WORKLOADS
from svc.upgrade.chart_files import Chart
from svc.upgrade.helm import HelmFailed
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place, place_of
from svc.upgrade.releases import DEPLOYED, FORMER_NAMESPACE, Records, Release, documents_of, newest_of, read_records
from svc.upgrade.writer import Writer
from svc.values import dataclass

Json = dict[str, Any]

RELEASE_NAME, RELEASE_NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"
_HELM: Final = "Helm"
_LISTED: Final = ("Installation", "APIServer", "PodSecurityPolicy")  # what a newer chart may not have any more
_MAX_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Situation:
    """Where a release is. `current` is its newest revision in `namespace`.

    `former` is the newest one in the namespace of the old layout, if the release has that. `revision` is that of the last
    one deployed, whichever it is."""

    namespace: str = ""
    current: Release | None = None
    former: Release | None = None
    former_secrets: tuple[Json, ...] = ()
    others: tuple[Place, ...] = ()
    blockers: tuple[str, ...] = ()

    @property
    def newest(self) -> Release | None:
        """The revision that decides about the branch."""
        return self.current or self.former

    @property
    def is_deployed(self) -> bool:
        """Whether the newest revision in the namespace is deployed."""
        return self.current is not None and self.current.status == DEPLOYED


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user gives. Without `values` those of the release stay. `is_external`: another program runs helm."""

    release: str
    chart: Chart
    values: Json | None
    values_file: str = ""
    is_external: bool = False


class ChartView:
    """Reads of one release and one chart."""

    def __init__(self, writer: Writer, wish: Wish) -> None:
        self._writer = writer
        self.wish = wish
        self._rendered: dict[str, list[Json]] = {}

    def situation(self) -> Situation:
        """Return where the release is. Raise StoreError, and Blocked if its newest Secret is damaged."""
        records = read_records(self._writer, self.wish.release)
        spaces = [each for each in records.by_namespace if each != FORMER_NAMESPACE]
        secrets = records.by_namespace.get(FORMER_NAMESPACE) or []
        former = newest_of(self._writer, secrets)
        operator = self._writer.names.operator_namespace
        if former is not None and not _is_old_layout(former):
            spaces, former = [*spaces, FORMER_NAMESPACE], None
        if not spaces and former is None:
            return Situation(blockers=(self._missing(records),))
        if len(spaces) > 1 or (former is not None and spaces not in ([], [operator])):
            listed = ", ".join(records.by_namespace)
            return Situation(blockers=(f"release {self.wish.release} exists in several namespaces: {listed}",))
        namespace = operator if former is not None else spaces[0]
        current = newest_of(self._writer, records.by_namespace.get(namespace) or [])
        others = tuple(each for each in records.others if each.namespace == FORMER_NAMESPACE) if former else ()
        return Situation(namespace, current, former, tuple(secrets) if former else (), others)

    def config(self, found: Situation) -> Json:
        """Return the values of the release to make."""
        if self.wish.values is not None:
            return self.wish.values
        return found.newest.config if found.newest is not None else {}

    def is_done(self, found: Situation) -> bool:
        """Return whether the release is the wanted one."""
        current = found.current
        is_wanted = current is not None and self.wish.chart.made(current.chart) and current.config == self.config(found)
        return found.is_deployed and is_wanted

    def documents(self, found: Situation) -> list[Json]:
        """Return the objects of the chart. Raise Blocked if helm refuses it.

        If another program runs helm, and helm is not here, these are the objects of the present release."""
        if self.wish.is_external and not self._writer.helm.is_installed:
            return found.newest.documents() if found.newest is not None else []
        if found.namespace not in self._rendered:
            try:
                text = self._writer.helm.render(
                    self.wish.release, self.wish.chart.path, found.namespace, self.config(found), self._capabilities()
                )
            except HelmFailed as error:
                raise Blocked([f"helm refuses the chart: {error}"], details="correct the chart or its values") from error
            self._rendered[found.namespace] = documents_of(text)
        return self._rendered[found.namespace]

    def live(self, found: Situation) -> Iterator[tuple[Place, Json | None]]:
        """Yield the place of each object of the chart, and what the cluster has there. Kinds that it does not serve count as
        missing objects."""
        for document in self.documents(found):
            place = self.place(document, found.namespace)
            yield place, self.find(place)

    def place(self, document: Json, namespace: str) -> Place:
        """Return the place of an object of a release. Without a namespace it is in that of the release."""
        place = place_of(document)
        served = self._writer.served(place)
        if place.namespace or served is None or not served.is_namespaced:
            return place
        return Place(place.api_version, place.kind, namespace, place.name)

    def find(self, place: Place) -> Json | None:
        """Return an object; None if it, or its kind, does not exist."""
        return self._writer.find(place) if self._writer.served(place) else None

    def adoptable(self, found: Situation) -> Iterator[tuple[Place, Json]]:
        """Yield the live objects that the release is to own: all of its chart, and listed ones of the former release."""
        places = dict.fromkeys(place for place, live in self.live(found) if live)
        if found.former is not None:
            for document in found.former.documents():
                if document["kind"] in _LISTED:
                    places[self.place(document, FORMER_NAMESPACE)] = None
        for place in places:
            if live := self.find(place):
                yield place, live

    def foreign(self, found: Situation) -> Iterator[str]:
        """Yield a sentence for each live object that helm would refuse to take over."""
        current = found.current
        known = {self.place(each, found.namespace) for each in current.documents()} if current else set()
        allowed = {found.namespace} | ({FORMER_NAMESPACE} if found.former is not None else set())
        for place, live in self.adoptable(found):
            if place in known:
                continue
            for field, value, wanted in self._triple(live, allowed):
                yield f"{place} is not of release {self.wish.release}: {field} is {value!r}, not {wanted}; helm would refuse it"

    def pull_secrets(self, found: Situation) -> Iterator[str]:
        """Yield a sentence for each Secret with which images are pulled, as the objects of the chart name them."""
        rendered = {self.place(each, found.namespace) for each in self.documents(found)}
        named = dict.fromkeys(name for each in self.documents(found) for name in _pull_secrets(each))
        for name in named:
            place = Place("v1", "Secret", found.namespace, name)
            state = "is adopted as well" if place in rendered else "is not of the chart, and stays"
            yield f"{place}: images are pulled with it; it {'is missing' if self.find(place) is None else state}"

    def workloads(self, found: Situation) -> list[Place]:
        """Return the places of the workloads of the chart."""
        return [self.place(each, found.namespace) for each in self.documents(found) if each["kind"] in WORKLOADS]

    def _triple(self, live: Json, namespaces: set[str]) -> Iterator[tuple[str, Any, str]]:
        """Yield what is wrong with the marks of an object: field, value, and what is wanted."""
        labels, annotations = live["metadata"].get("labels") or {}, live["metadata"].get("annotations") or {}
        label = f"app.{self._writer.names.orch_domain}/managed-by"
        if labels.get(label) != _HELM:
            yield f"label {label}", labels.get(label), _HELM
        if annotations.get(RELEASE_NAME) != self.wish.release:
            yield f"annotation {RELEASE_NAME}", annotations.get(RELEASE_NAME), self.wish.release
        if annotations.get(RELEASE_NAMESPACE) not in namespaces:
            yield f"annotation {RELEASE_NAMESPACE}", annotations.get(RELEASE_NAMESPACE), " or ".join(sorted(namespaces))

    def _capabilities(self) -> list[str]:
        """Return the options that tell helm what the server is."""
        version = str(self._writer.client.get("/version")["gitVersion"])
        return ["--kube-version", version, *(word for each in self._served_versions() for word in ("--api-versions", each))]

    def _served_versions(self) -> list[str]:
        groups = self._writer.client.get("/apis")["groups"]
        return ["v1", *(each["groupVersion"] for group in groups for each in group["versions"])]

    def is_served_otherwise(self, place: Place) -> bool:
        """Return whether the server has a kind in another version of its group.

        helm without a server takes all versions that it knows for served; with one, a chart may choose another."""
        group = place.api_version.partition("/")[0]
        versions = [each for each in self._served_versions() if each.partition("/")[0] == group]
        return any(self._writer.discovery.find(each, place.kind) for each in versions)

    def _missing(self, records: Records) -> str:
        known = ", ".join(records.known[:_MAX_NAMED]) or "none"
        return f"release {self.wish.release} does not exist; the cluster has: {known}"


def _is_old_layout(release: Release) -> bool:
    """Return whether the objects of a release are in other namespaces than it is itself."""
    spaces = {each["metadata"].get("namespace") for each in release.documents() if each["kind"] in WORKLOADS}
    return bool(spaces) and FORMER_NAMESPACE not in spaces and None not in spaces


def _pull_secrets(document: Json) -> Iterator[str]:
    spec = document.get("spec") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    for holder in (document, spec, template):
        yield from (str(each["name"]) for each in holder.get("imagePullSecrets") or () if "name" in each)
