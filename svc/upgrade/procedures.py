"""The table of procedures: how each is made from what the user gives, and its steps that are not those of a manifest."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from svc.model.errors import CallerError
from svc.upgrade import host_endpoint_steps
from svc.upgrade.choice import choose
from svc.upgrade.etcd_procedure import NAME as MANIFESTS_ETCD
from svc.upgrade.etcd_procedure import EtcdProcedure
from svc.upgrade.host_endpoint_procedure import NAME as HOST_ENDPOINTS
from svc.upgrade.host_endpoint_procedure import HostEndpointProcedure
from svc.upgrade.host_endpoint_view import HostEndpointView
from svc.upgrade.manifest_procedure import NAME as MANIFESTS
from svc.upgrade.manifest_procedure import ManifestProcedure
from svc.upgrade.manifest_source import read_manifest
from svc.upgrade.move_steps import move_steps
from svc.upgrade.operator_procedure import NAME as TO_OPERATOR
from svc.upgrade.operator_procedure import OperatorProcedure
from svc.upgrade.procedure import Procedure
from svc.upgrade.request import Request
from svc.upgrade.sidecar_procedure import NAME as SIDECARS
from svc.upgrade.sidecar_procedure import SidecarProcedure
from svc.upgrade.sidecar_steps import FormerTemplate, Template
from svc.upgrade.step import Step
from svc.upgrade.takeover_procedure import NAME as TAKEOVER
from svc.upgrade.takeover_procedure import TakeoverProcedure
from svc.upgrade.temporary_policy import TemporaryPolicy, require_policies
from svc.upgrade.writer import Writer

Maker = Callable[[Writer, Request], Procedure]


def procedure_of(name: str, writer: Writer, request: Request) -> Procedure:
    """Return a procedure by its name; without one, that of what is found in the cluster.

    Raise Blocked if the cluster contradicts the name, CallerError if the request has too much or lacks something."""
    return _MAKERS[choose(writer, name, tuple(_MAKERS))](writer, request)


def special_steps(writer: Writer) -> Mapping[str, Step]:
    """Return the steps that are not about an object of a manifest, by name, to undo them without the inputs of their run."""
    view = HostEndpointView(writer)
    parts = (host_endpoint_steps.NodeLabels, host_endpoint_steps.Switch, host_endpoint_steps.FormerEndpoints)
    own = {part.name: part(writer, view) for part in parts}
    others = (Template(writer, ""), FormerTemplate(writer), TemporaryPolicy(writer))
    return {**own, **{step.name: step for step in others}, **move_steps(writer)}


def _manifests(writer: Writer, request: Request) -> Procedure:
    return _of_manifest(ManifestProcedure, writer, request)


def _manifests_etcd(writer: Writer, request: Request) -> Procedure:
    if request.policies:
        raise CallerError("--policies is for a cluster whose datastore is the Kubernetes API", details="leave it out")
    return _of_manifest(EtcdProcedure, writer, request)


def _of_manifest(kind: type[ManifestProcedure], writer: Writer, request: Request) -> Procedure:
    documents, digest = _read(request, "print one: `svcctl manifests`")
    if not request.policies:
        return kind(writer, documents, {"manifest": digest}, request.to)
    policies, own = read_manifest(request.policies, "")
    require_policies(policies)
    given = {"manifest": digest, "policies": own}
    return kind(writer, [*documents, *policies], given, request.to, [TemporaryPolicy(writer)])


def _sidecars(writer: Writer, request: Request) -> Procedure:
    if request.policies:
        raise CallerError(f"--procedure {SIDECARS} takes no --policies", details="leave it out")
    documents, digest = _read(request, "give the template for your mesh, a file with data.config")
    return SidecarProcedure(writer, documents, digest, request.to)


def _read(request: Request, remedy: str) -> tuple[list[dict[str, Any]], str]:
    if not request.manifest:
        raise CallerError("--manifest is missing", details=remedy)
    return read_manifest(request.manifest, request.sha256)


def _host_endpoints(writer: Writer, request: Request) -> Procedure:
    if request != Request():
        raise CallerError(f"--procedure {HOST_ENDPOINTS} takes no manifest", details="everything follows from the cluster")
    return HostEndpointProcedure(writer)


def _to_operator(writer: Writer, request: Request) -> Procedure:
    if request != Request():
        raise CallerError(f"--procedure {TO_OPERATOR} takes no manifest", details="everything follows from the cluster")
    return OperatorProcedure(writer)


def _takeover(writer: Writer, request: Request) -> Procedure:
    if not request.manifest:
        raise CallerError("--manifest is missing", details="print one: `svcctl manifests --names PROFILE`")
    if request.to:
        raise CallerError(f"--procedure {TAKEOVER} takes no --to", details="the manifest has the version")
    return TakeoverProcedure(writer, *read_manifest(request.manifest, request.sha256))


_MAKERS: Final[Mapping[str, Maker]] = {
    MANIFESTS: _manifests,
    MANIFESTS_ETCD: _manifests_etcd,
    SIDECARS: _sidecars,
    HOST_ENDPOINTS: _host_endpoints,
    TO_OPERATOR: _to_operator,
    TAKEOVER: _takeover,
}
