"""The table of procedures: how each is made from what the user gives, and its steps that are not those of a manifest."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from svc.model.errors import CallerError
from svc.upgrade import chart_steps, host_endpoint_steps, release_step
from svc.upgrade.chart_procedure import NAME as CHART
from svc.upgrade.chart_procedure import chart_procedure
from svc.upgrade.host_endpoint_procedure import NAME as HOST_ENDPOINTS
from svc.upgrade.host_endpoint_procedure import HostEndpointProcedure
from svc.upgrade.host_endpoint_view import HostEndpointView
from svc.upgrade.manifest_procedure import NAME as MANIFESTS
from svc.upgrade.manifest_procedure import ManifestProcedure
from svc.upgrade.manifest_source import read_manifest
from svc.upgrade.operator_procedure import NAME as OPERATOR
from svc.upgrade.operator_procedure import OperatorProcedure
from svc.upgrade.procedure import Procedure
from svc.upgrade.request import Request
from svc.upgrade.step import Step
from svc.upgrade.writer import Writer

Json = dict[str, Any]
Maker = Callable[[Writer, Request], Procedure]


def procedure_of(name: str, writer: Writer, request: Request) -> Procedure:
    """Return a procedure by its name. Raise CallerError if the request has what it does not use, or lacks what it needs."""
    return _MAKERS[name](writer, request)


def special_steps(writer: Writer) -> Mapping[str, Step]:
    """Return the steps that are not about an object of a manifest, by name, to undo them without the inputs of their run."""
    view = HostEndpointView(writer)
    parts = (host_endpoint_steps.NodeLabels, host_endpoint_steps.Switch, host_endpoint_steps.FormerEndpoints)
    of_charts = (chart_steps.AdoptObjects, release_step.HelmRelease, chart_steps.FormerReleases)
    return {part.name: part(writer, view) for part in parts} | {part.name: part(writer) for part in of_charts}


def _manifests(writer: Writer, request: Request) -> Procedure:
    return ManifestProcedure(writer, *_documents(request), request.to)


def _operator(writer: Writer, request: Request) -> Procedure:
    return OperatorProcedure(writer, *_documents(request), request.to)


def _documents(request: Request) -> tuple[list[Json], str]:
    if not request.manifest:
        raise CallerError("--manifest is missing", details="print one: `svcctl manifests`")
    if request.chart or request.release or request.values or request.external_install:
        raise CallerError("options of charts are given with a manifest", details=f"give --procedure {CHART}, or leave them out")
    return read_manifest(request.manifest, request.sha256)


def _host_endpoints(writer: Writer, request: Request) -> Procedure:
    if request != Request():
        raise CallerError(f"--procedure {HOST_ENDPOINTS} takes no manifest", details="everything follows from the cluster")
    return HostEndpointProcedure(writer)


_MAKERS: Final[Mapping[str, Maker]] = {
    MANIFESTS: _manifests,
    HOST_ENDPOINTS: _host_endpoints,
    OPERATOR: _operator,
    CHART: chart_procedure,
}
