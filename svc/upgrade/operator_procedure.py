"""Procedure `operator`: a newer manifest of the operator is applied, and the operator does the rest (specification, 9.2)."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from svc.admin.version_check import comparable
from svc.admin.version_order import order_of
from svc.model.installation import KIND as INSTALLATION
from svc.model.installation import NAME as DEFAULT_NAME
from svc.names import Names
from svc.upgrade.bundle import Bundle, container_of, version_of
from svc.upgrade.client_versions import listed
from svc.upgrade.cluster_state import read_state
from svc.upgrade.manifest_procedure import pattern_of, version_problems
from svc.upgrade.object_step import Former, ObjectStep
from svc.upgrade.operator_overrides import overridden
from svc.upgrade.places import Place, place_of
from svc.upgrade.procedure import Findings
from svc.upgrade.step import Step
from svc.upgrade.writer import Writer, not_served

Json = dict[str, Any]

NAME: Final = "operator"
_DEPLOYMENT: Final = "Deployment"
_OWN_VERSION: Final = "svcctl"
_TRUE, _FALSE = "True", "False"
_READY: Final = {INSTALLATION: "Ready"}  # of other kinds it is Available
_AVAILABLE, _DEGRADED = "Available", "Degraded"


class OperatorProcedure:
    """The procedure. `given` are the digest of the manifest, and all else that a run is continued with.

    `to` is the version that the user gives, if any, and `published` the former manifest as it was published, if it is given."""

    name = NAME

    def __init__(
        self, writer: Writer, documents: Sequence[Json], given: dict[str, str], to: str = "", published: Sequence[Json] = ()
    ) -> None:
        self._writer = writer
        self._bundle = Bundle(documents, published)
        self._to = to
        self.inputs = {"procedure": NAME, **given, "to": to}

    def steps(self, former: Former) -> list[Step]:
        """Return a step for each document."""
        return [ObjectStep(self._writer, each, self._bundle, former) for each in self._bundle.documents]

    def findings(self) -> Findings:
        """Return what is found, and what forbids the upgrade. Raise StoreError."""
        names, operator = self._writer.names, self._operator()
        if operator is None:
            wanted = Place("apps/v1", _DEPLOYMENT, names.operator_namespace, names.operator)
            return Findings(NAME, {}, (f"the manifest has no {wanted}: print it with `svcctl manifests --flavour operator`",))
        installation, state = self._installation(), read_state(self._writer)
        live = self._find(place_of(operator))
        status = (installation or {}).get("status") or {}
        source = state.version or str(status.get(names.installation_version) or "") or _version_of(live)
        target = self._target(operator)
        facts: Json = {
            "datastore": "Kubernetes API",
            "method": NAME,
            "version": source,
            "image of the operator": container_of(live)["image"] if live else "none",
            "overridden fields": list(overridden(self._writer, installation, live, operator)) if installation else [],
            "programs on PATH": listed(_path()),
        }
        problems = [*self._missing(place_of(operator), live, installation), *self._kinds_missing()]
        if state.is_locked:
            problems.append("the datastore is locked: `svcctl clusterinfo unlock`, if no migration is at work")
        problems += _version_problems(names, source, target, self._to)
        return Findings(NAME, facts, tuple(problems), source, target)

    def unverified(self) -> list[str]:
        """Return what is not as it should be after the last step. Rollouts are verified by their steps."""
        operator = self._operator()
        if operator is None:
            return []
        return [*self._operator_problems(operator), *self._version_problems(operator)]

    def prove(self, pause: Callable[[float], None]) -> list[str]:  # noqa: ARG002
        """Return nothing: the operator reports what works."""
        return []

    def _operator_problems(self, operator: Json) -> Iterator[str]:
        """Yield why the operator is not the new one, or not content."""
        names = self._writer.names
        live = self._find(place_of(operator))
        image = container_of(operator)["image"]
        if live is None or container_of(live)["image"] != image:
            yield f"{place_of(operator)} does not have image {image}"
        name = DEFAULT_NAME if names.operator_status == INSTALLATION else names.plugin
        place = Place(names.operator_api_version, names.operator_status, "", name)
        found = self._find(place)
        if found is None:
            yield f"{place} does not exist"
            return
        conditions = {each["type"]: each for each in (found.get("status") or {}).get("conditions") or ()}
        generation = found["metadata"].get("generation", 0)
        for kind, wanted in ((_READY.get(place.kind, _AVAILABLE), _TRUE), (_DEGRADED, _FALSE)):
            each = conditions.get(kind) or {}
            if each.get("status") != wanted:
                yield f"{place}: {kind} is {each.get('status', 'unknown')}, not {wanted}: {each.get('message') or 'no message'}"
            elif each.get("observedGeneration", generation) < generation:
                yield f"{place}: {kind} is of generation {each['observedGeneration']}, and the object of {generation}"

    def _version_problems(self, operator: Json) -> Iterator[str]:
        names, target = self._writer.names, self._target(operator)
        status = (self._installation() or {}).get("status") or {}
        version = str(status.get(names.installation_version) or "")
        if not self._is_target(version, target):
            yield f"{INSTALLATION}/{DEFAULT_NAME} has version {version!r}, not {target}"
        state = read_state(self._writer)
        if state.is_served and not self._is_target(state.version, target):
            yield f"ClusterInformation default has version {state.version!r}, not {target}"

    def _is_target(self, version: str, target: str) -> bool:
        if order_of(target) is None or target.count(".") < 2:  # a minor release: each of its patch releases counts
            return pattern_of(self._writer.names, self._to).match(version) is not None
        return comparable(version) == comparable(target)

    def _target(self, operator: Json) -> str:
        """Return the version to go to. The operator of another product has versions of its own."""
        names = self._writer.names
        if names.upgrade_target != _OWN_VERSION:
            return self._to or names.upgrade_target
        return version_of(container_of(operator)["image"])

    def _operator(self) -> Json | None:
        """Return the operator of the manifest. After a move from manifests it is in another namespace than usual."""
        names = self._writer.names
        named = (each for each in self._bundle.of_kind(_DEPLOYMENT) if each["metadata"]["name"] == names.operator)
        found = {str(each["metadata"]["namespace"]): each for each in named if each["metadata"].get("namespace")}
        return found.get(names.operator_namespace) or next(iter(found.values()), None)

    def _installation(self) -> Json | None:
        return self._find(Place(self._writer.names.operator_api_version, INSTALLATION, "", DEFAULT_NAME))

    def _find(self, place: Place) -> Json | None:
        return self._writer.find(place) if self._writer.served(place) else None

    def _missing(self, operator: Place, live: Json | None, installation: Json | None) -> Iterator[str]:
        names = self._writer.names
        place = Place(names.operator_api_version, INSTALLATION, "", DEFAULT_NAME)
        if live is None:
            yield f"{operator} does not exist: svc was not installed by an operator, or the manifest is for another namespace"
        if self._writer.served(place) is None:
            yield not_served(place)
        elif installation is None:
            yield f"{place} does not exist: the operator has nothing to upgrade"

    def _kinds_missing(self) -> Iterator[str]:
        """Yield a sentence for each document whose kind neither the server nor the manifest has."""
        for step in self.steps(lambda _: None):
            assert isinstance(step, ObjectStep)
            if self._writer.served(step.place) is None and not self._bundle.brings(step.place):
                yield not_served(step.place)


def _version_of(operator: Json | None) -> str:
    return version_of(container_of(operator)["image"]) if operator else ""


def _version_problems(names: Names, source: str, target: str, to: str) -> Iterator[str]:
    wanted = pattern_of(names, to)
    if order_of(target) is None:
        yield f"the manifest does not tell its version: the image of the operator has the tag {target!r}"
    elif not wanted.match(f"{target}."):
        yield f"the manifest is of version {target}, which does not match {wanted.pattern}: give its version with --to"
    reached = target.count(".") < 2 and wanted.match(source) is not None
    yield from version_problems(names, source, target, reached=reached)


def _path() -> str:
    return os.environ.get("PATH", "")
