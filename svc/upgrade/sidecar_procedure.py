"""Procedure `sidecars`: pods of a service mesh get the sidecar of the new release (specification, 9.6)."""

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from svc.admin.version_order import order_of
from svc.upgrade.agent_pods import agent_versions
from svc.upgrade.bundle import version_of
from svc.upgrade.client_versions import listed
from svc.upgrade.cluster_state import read_state
from svc.upgrade.manifest_procedure import lock_problems, pattern_of, target_problems
from svc.upgrade.object_step import Former
from svc.upgrade.procedure import Findings
from svc.upgrade.sidecar_pods import SidecarPods, find_pods
from svc.upgrade.sidecar_steps import FormerTemplate, Restart, Template, injector_place, template_in
from svc.upgrade.sidecar_template import MESH_VERSIONS, image_of, is_known, mesh_version, template_of
from svc.upgrade.step import Step
from svc.upgrade.writer import Writer

Json = dict[str, Any]

NAME: Final = "sidecars"


class SidecarProcedure:
    """The procedure. The manifest has the template for the mesh; all agents must be at its version already."""

    name = NAME

    def __init__(self, writer: Writer, documents: Sequence[Json], digest: str, to: str = "") -> None:
        self._writer = writer
        self._template = template_of(documents)
        self._image = image_of(self._template, writer.names.sidecar)
        self._to = to
        self._at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._pods: SidecarPods | None = None  # None without a mesh
        self.inputs = {"procedure": NAME, "manifest": digest, "to": to}

    def findings(self) -> Findings:
        """Return what is found, and what forbids the procedure. Raise StoreError."""
        place, target = injector_place(self._writer.names), version_of(self._image)
        live = self._writer.find(place)
        if live is None:
            self._pods = None
            return Findings(NAME, {"mesh": f"not enabled: {place} does not exist"}, (), "", target)
        self._pods, version = find_pods(self._writer), mesh_version(live)
        before = version_of(image_of(template_in(live), self._writer.names.sidecar))
        found: Json = {
            "mesh": version or "unknown",
            "sidecar": self._image,
            "workloads with sidecars": [str(each) for each in self._pods.images],
            "pods to be started again by hand": self._pods.outdated(self._image),
            "programs on PATH": listed(os.environ.get("PATH", "")),
        }
        return Findings(NAME, found, (*self._problems(version, target), *_downgrade(before, target)), before, target)

    def steps(self, former: Former) -> list[Step]:  # noqa: ARG002
        """Return the step of the template, one for each workload, and that which undoes the template first."""
        if self._pods is None:
            return []
        bare = [f"Pod/{name} has no workload: delete it, and create it again" for name in self._pods.outdated(self._image)]
        restarts = [Restart(self._writer, place, self._image, self._at) for place in self._pods.images]
        return [Template(self._writer, self._template, bare), *restarts, FormerTemplate(self._writer)]

    def unverified(self) -> list[str]:
        """Return which workloads have pods with another sidecar."""
        if self._pods is None:
            return []
        found = find_pods(self._writer).images.items()
        old = (place for place, images in found if images - {self._image})
        return [f"{place} has pods with another sidecar than {self._image}" for place in old]

    def prove(self, pause: Callable[[float], None]) -> list[str]:  # noqa: ARG002
        """Return nothing: the pods themselves are the proof."""
        return []

    def _problems(self, version: str, target: str) -> Iterator[str]:
        known = ", ".join(MESH_VERSIONS)
        if not is_known(version):
            yield f"the mesh is of version {version or 'unknown'}, for which no template is known; these are: {known}"
        if not self._image:
            yield f"the template has no image of a container {self._writer.names.sidecar}: give the template for your mesh"
            return
        yield from lock_problems(read_state(self._writer))
        yield from target_problems(pattern_of(self._writer.names, self._to, plain=True), target)
        yield from self._agent_problems(target)

    def _agent_problems(self, target: str) -> Iterator[str]:
        """Yield the agents that do not know the new sidecar yet. A newer agent knows older sidecars."""
        wanted, agents = order_of(target), list(agent_versions(self._writer))
        if not agents:
            yield "no pod of an agent is found: upgrade the agents first"
        for node, version in agents:
            order = order_of(version)
            if order is None or (wanted is not None and order < wanted):
                known = version or "unknown"
                yield f"the agent on node {node} is of version {known}, older than {target}: upgrade the agents first"


def _downgrade(before: str, target: str) -> Iterator[str]:
    former, wanted = order_of(before), order_of(target)
    if former is not None and wanted is not None and wanted < former:
        yield f"the template is of version {target}, older than {before} of the mesh"
