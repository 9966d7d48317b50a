"""The table of procedures: how each is made from what the user gives, and its steps that are not those of a manifest."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from svc.admin.version_order import order_of
from svc.model.errors import CallerError
from svc.upgrade import chart_steps, datastore_procedure, former_host_endpoints, host_endpoint_steps, release_step
from svc.upgrade.chart_procedure import NAME as CHART
from svc.upgrade.chart_procedure import chart_procedure
from svc.upgrade.choice import choose
from svc.upgrade.datastore_procedure import NAME as DATASTORE
from svc.upgrade.datastore_procedure import DatastoreProcedure
from svc.upgrade.datastore_sites import read_ends
from svc.upgrade.etcd_procedure import NAME as MANIFESTS_ETCD
from svc.upgrade.etcd_procedure import EtcdProcedure
from svc.upgrade.host_endpoint_procedure import NAME as HOST_ENDPOINTS
from svc.upgrade.host_endpoint_procedure import HostEndpointProcedure
from svc.upgrade.host_endpoint_view import HostEndpointView
from svc.upgrade.manifest_procedure import NAME as MANIFESTS
from svc.upgrade.manifest_procedure import ManifestProcedure
from svc.upgrade.manifest_source import read_manifest
from svc.upgrade.move_steps import move_steps
from svc.upgrade.operator_procedure import NAME as OPERATOR
from svc.upgrade.operator_procedure import OperatorProcedure
from svc.upgrade.outcomes import stores_blocked
from svc.upgrade.procedure import Procedure
from svc.upgrade.request import Request
from svc.upgrade.sidecar_procedure import NAME as SIDECARS
from svc.upgrade.sidecar_procedure import SidecarProcedure
from svc.upgrade.sidecar_steps import FormerTemplate, Template
from svc.upgrade.step import Step
from svc.upgrade.takeover_procedure import NAME as TAKEOVER
from svc.upgrade.takeover_procedure import TakeoverProcedure
from svc.upgrade.temporary_policy import TemporaryPolicy, require_policies
from svc.upgrade.to_operator_procedure import NAME as TO_OPERATOR
from svc.upgrade.to_operator_procedure import ToOperatorProcedure
from svc.upgrade.writer import Writer

Json = dict[str, Any]
Maker = Callable[[Writer, Request], Procedure]

_MANIFEST: Final = ("manifest", "sha256")
_BASE: Final = ("base", "base_sha256")
_PRINT: Final = "print one: `svcctl manifests`"


def procedure_of(name: str, writer: Writer, request: Request) -> Procedure:
    """Return a procedure by its name; without one, that of what is found in the cluster.

    Raise Blocked if the cluster contradicts the name, CallerError if the request has too much or lacks something."""
    if request.to and order_of(request.to) is None:
        raise CallerError(f"--to {request.to!r} is not a version", details="give one such as v1.2.3")
    with stores_blocked():
        return _MAKERS[choose(writer, name, tuple(_MAKERS))](writer, request)


def special_steps(writer: Writer) -> Mapping[str, Step]:
    """Return the steps that are not about an object of a manifest, by name, to undo them without the inputs of their run."""
    view = HostEndpointView(writer)
    parts = (host_endpoint_steps.NodeLabels, host_endpoint_steps.Switch, former_host_endpoints.FormerEndpoints)
    own = {part.name: part(writer, view) for part in parts}
    of_charts = (chart_steps.AdoptObjects(writer), release_step.HelmRelease(writer), chart_steps.FormerReleases(writer))
    others = (*of_charts, Template(writer, ""), FormerTemplate(writer), TemporaryPolicy(writer))
    of_moves = {**move_steps(writer), **datastore_procedure.special_steps(writer)}
    return {**own, **{step.name: step for step in others}, **of_moves}


def _manifests(writer: Writer, request: Request) -> Procedure:
    request.require_only(MANIFESTS, *_MANIFEST, *_BASE, "to", "policies")
    (documents, digest), (published, base) = _read(request, _PRINT), _published(request)
    given = {"manifest": digest} | base
    if not request.policies:
        return ManifestProcedure(writer, documents, given, request.to, published=published)
    policies, own = read_manifest(request.policies, "")
    require_policies(policies)
    given |= {"policies": own}
    last = [TemporaryPolicy(writer)]
    return ManifestProcedure(writer, [*documents, *policies], given, request.to, last, published)


def _manifests_etcd(writer: Writer, request: Request) -> Procedure:
    request.require_only(MANIFESTS_ETCD, *_MANIFEST, *_BASE, "to")
    (documents, digest), (published, base) = _read(request, _PRINT), _published(request)
    return EtcdProcedure(writer, documents, {"manifest": digest} | base, request.to, published=published)


def _operator(writer: Writer, request: Request) -> Procedure:
    request.require_only(OPERATOR, *_MANIFEST, *_BASE, "to")
    (documents, digest), (published, base) = _read(request, _PRINT), _published(request)
    return OperatorProcedure(writer, documents, {"manifest": digest} | base, request.to, published)


def _chart(writer: Writer, request: Request) -> Procedure:
    request.require_only(CHART, *_MANIFEST, "to", "chart", "release", "values", "external_install")
    return chart_procedure(writer, request)


def _sidecars(writer: Writer, request: Request) -> Procedure:
    request.require_only(SIDECARS, *_MANIFEST, "to")
    documents, digest = _read(request, "give the template for your mesh, a file with data.config")
    return SidecarProcedure(writer, documents, digest, request.to)


def _host_endpoints(writer: Writer, request: Request) -> Procedure:
    request.require_only(HOST_ENDPOINTS)
    return HostEndpointProcedure(writer)


def _datastore(writer: Writer, request: Request) -> Procedure:
    request.require_only(DATASTORE, *_MANIFEST, "source", "target")
    ends = read_ends(writer, request.source, request.target)
    documents, digest = read_manifest(request.manifest, request.sha256) if request.manifest else ((), "")
    return DatastoreProcedure(writer, ends, documents, digest)


def _to_operator(writer: Writer, request: Request) -> Procedure:
    request.require_only(TO_OPERATOR)
    return ToOperatorProcedure(writer)


def _takeover(writer: Writer, request: Request) -> Procedure:
    request.require_only(TAKEOVER, *_MANIFEST)
    return TakeoverProcedure(writer, *_read(request, "print one: `svcctl manifests --names PROFILE`"))


def _read(request: Request, remedy: str) -> tuple[list[Json], str]:
    if not request.manifest:
        raise CallerError("--manifest is missing", details=remedy)
    return read_manifest(request.manifest, request.sha256)


def _published(request: Request) -> tuple[list[Json], dict[str, str]]:
    """Return the documents of the former manifest, and its digest as an input; nothing if it is not given."""
    if not request.base:
        if request.base_sha256:
            raise CallerError("--base is missing", details="give the manifest whose digest --base-sha256 is")
        return [], {}
    documents, digest = read_manifest(request.base, request.base_sha256, "--base-sha256")
    return documents, {"base": digest}


_MAKERS: Final[Mapping[str, Maker]] = {
    MANIFESTS: _manifests,
    MANIFESTS_ETCD: _manifests_etcd,
    OPERATOR: _operator,
    CHART: _chart,
    SIDECARS: _sidecars,
    HOST_ENDPOINTS: _host_endpoints,
    DATASTORE: _datastore,
    TO_OPERATOR: _to_operator,
    TAKEOVER: _takeover,
}
