"""Procedure `chart`: a release of helm goes to a newer chart, and to its own namespace if it is of the old layout (9.3)."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from svc.admin.version_order import order_of
from svc.deploy.server_apply import DEFINITION
from svc.model.errors import CallerError
from svc.upgrade.bundle import Bundle
from svc.upgrade.chart_files import read_chart, read_values
from svc.upgrade.chart_steps import AdoptObjects, FormerReleases
from svc.upgrade.chart_view import ChartView, Situation, Wish
from svc.upgrade.client_versions import listed
from svc.upgrade.cluster_state import read_state
from svc.upgrade.helm import HelmFailed, missing
from svc.upgrade.manifest_procedure import pattern_of, version_problems
from svc.upgrade.manifest_source import read_manifest
from svc.upgrade.object_step import Former, ObjectStep
from svc.upgrade.places import Place
from svc.upgrade.procedure import Findings
from svc.upgrade.release_step import HelmRelease
from svc.upgrade.releases import documents_of
from svc.upgrade.request import Request
from svc.upgrade.step import Step
from svc.upgrade.writer import Writer, not_served

Json = dict[str, Any]

NAME: Final = "chart"
OLD_LAYOUT, PRESENT_LAYOUT = "from the old layout", "within its namespace"


def chart_procedure(writer: Writer, request: Request) -> "ChartProcedure":
    """Return the procedure of a request. Raise CallerError."""
    for option, value in (("--chart", request.chart), ("--release", request.release)):
        if not value:
            raise CallerError(f"{option} is missing", details="`helm list -A` shows the releases")
    chart = read_chart(request.chart)
    values, values_digest = read_values(request.values) if request.values else (None, "")
    wish = Wish(request.release, chart, values, request.values, request.external_install)
    if request.manifest:
        documents, digest = read_manifest(request.manifest, request.sha256)
    else:
        documents, digest = _definitions_of(writer, request), chart.digest
    if other := next((each for each in documents if each.get("kind") != DEFINITION), None):
        raise CallerError(
            f"{request.manifest or f'--chart {request.chart}'} has an object of kind {other.get('kind')}",
            details="give the definitions alone: the chart has the other objects",
        )
    inputs = {"chart": chart.digest, "release": request.release, "values": values_digest, "manifest": digest, "to": request.to}
    return ChartProcedure(writer, wish, documents, inputs)


class ChartProcedure:
    """The procedure. `documents` are the definitions of the chart."""

    name = NAME

    def __init__(self, writer: Writer, wish: Wish, documents: Sequence[Json], inputs: dict[str, str]) -> None:
        self._writer = writer
        self._wish = wish
        self._bundle = Bundle(documents)
        self._view = ChartView(writer, wish)
        self.inputs = inputs

    def steps(self, former: Former) -> list[Step]:
        """Return the steps: adoption, definitions, the release, and the Secrets of the former one. A step that does not
        belong to the branch has nothing to do."""
        definitions = [ObjectStep(self._writer, each, self._bundle, former) for each in self._bundle.documents]
        first, *last = (part(self._writer, self._view) for part in (AdoptObjects, HelmRelease, FormerReleases))
        return [first, *definitions, *last]

    def findings(self) -> Findings:
        """Return what is found, and what forbids the upgrade. Raise StoreError, and Blocked if a release is damaged."""
        writer, chart = self._writer, self._wish.chart
        if not writer.helm.is_installed and not self._wish.is_external:
            return Findings(NAME, {}, (f"{missing(writer.helm.program)}: name it with --helm, or give --external-install",))
        found, state = self._view.situation(), read_state(writer)
        newest = found.newest
        source = state.version or (newest.app_version if newest else "")
        target = chart.app_version or chart.version
        facts: Json = {
            "datastore": "Kubernetes API",
            "method": NAME,
            "branch": OLD_LAYOUT if found.former is not None else PRESENT_LAYOUT,
            "release": f"{newest}, {newest.status}" if newest else "none",
            "chart": f"{newest.chart_name if newest else 'none'} -> {chart}",
            "version": source,
            "programs on PATH": listed(os.environ.get("PATH", "")),
        }
        problems = [*found.blockers, *(self._release_problems(found) if not found.blockers else ())]
        problems += _version_problems(writer, source, target, self.inputs["to"])
        if state.is_locked:
            problems.append("the datastore is locked: `svcctl clusterinfo unlock`, if no migration is at work")
        return Findings(NAME, facts, tuple(problems), source, target)

    def unverified(self) -> list[str]:
        """Return what is not as it should be after the last step. The steps verify release, objects and rollouts."""
        wanted, state = pattern_of(self._writer.names, self.inputs["to"]), read_state(self._writer)
        found = []
        if state.is_served and not wanted.match(state.version):
            found.append(f"ClusterInformation default has version {state.version!r}, which does not match {wanted.pattern}")
        return found

    def prove(self, pause: Callable[[float], None]) -> list[str]:  # noqa: ARG002
        """Return nothing: a second look at all steps, which follows, is the proof."""
        return []

    def _release_problems(self, found: Situation) -> Iterator[str]:
        newest, chart = found.newest, self._wish.chart
        assert newest is not None  # else there are blockers
        name = (newest.chart.get("metadata") or {}).get("name")
        if name != chart.name:
            yield f"release {self._wish.release} is of chart {name}, and the chart given is {chart.name}"
        else:
            yield from self._kinds_missing(found)
        if self._writer.find(Place("v1", "Namespace", "", found.namespace)) is None:
            yield f"the namespace {found.namespace} of the release does not exist"
        if self._wish.is_external and found.current is None and self._wish.values is None and newest.config:
            yield "the values of the former release are not kept by an installation: give them with --values"

    def _kinds_missing(self, found: Situation) -> Iterator[str]:
        """Yield a sentence for each object whose kind neither the server nor the definitions have: helm would refuse it."""
        if self._wish.is_external and not self._writer.helm.is_installed:
            return  # what the chart makes is not known
        for document in self._view.documents(found):
            place = self._view.place(document, found.namespace)
            is_known = self._writer.served(place) is not None or self._bundle.brings(place)
            if not is_known and not self._view.is_served_otherwise(place):
                yield not_served(place)


def _definitions_of(writer: Writer, request: Request) -> list[Json]:
    """Return the definitions that a chart brings. Raise CallerError if it has none."""
    if not writer.helm.is_installed:
        raise CallerError(missing(writer.helm.program), details="name helm with --helm, or the definitions with --manifest")
    try:
        found = documents_of(writer.helm.definitions(request.chart))
    except HelmFailed as error:
        raise CallerError(f"--chart {request.chart}: {error}", details="name a chart that helm can read") from error
    if not found:
        raise CallerError(
            f"--chart {request.chart} brings no definitions",
            details="give them with --manifest, as `svcctl crd print` prints them",
        )
    return found


def _version_problems(writer: Writer, source: str, target: str, to: str) -> Iterator[str]:
    names = writer.names
    wanted = pattern_of(names, to)
    if order_of(target) is None:
        yield f"the chart does not tell its version: it says {target!r}"
    elif not wanted.match(f"{target}."):
        yield f"the chart is of version {target}, which does not match {wanted.pattern}: give its version with --to"
    yield from version_problems(names, source, target, "the chart")
