"""The table of procedures: how each is made from what the user gives, and its steps that are not those of a manifest."""

from collections.abc import Callable, Mapping
from typing import Final

from svc.model.errors import CallerError
from svc.upgrade import datastore_procedure, host_endpoint_steps
from svc.upgrade.datastore_procedure import NAME as DATASTORE
from svc.upgrade.datastore_procedure import DatastoreProcedure
from svc.upgrade.datastore_sites import read_ends
from svc.upgrade.host_endpoint_procedure import NAME as HOST_ENDPOINTS
from svc.upgrade.host_endpoint_procedure import HostEndpointProcedure
from svc.upgrade.host_endpoint_view import HostEndpointView
from svc.upgrade.manifest_procedure import NAME as MANIFESTS
from svc.upgrade.manifest_procedure import ManifestProcedure
from svc.upgrade.manifest_source import read_manifest
from svc.upgrade.procedure import Procedure
from svc.upgrade.request import Request
from svc.upgrade.step import Step
from svc.upgrade.writer import Writer

Maker = Callable[[Writer, Request], Procedure]


def procedure_of(name: str, writer: Writer, request: Request) -> Procedure:
    """Return a procedure by its name. Raise CallerError if the request has what it does not use, or lacks what it needs."""
    return _MAKERS[name](writer, request)


def special_steps(writer: Writer) -> Mapping[str, Step]:
    """Return the steps that are not about an object of a manifest, by name, to undo them without the inputs of their run."""
    view = HostEndpointView(writer)
    parts = (host_endpoint_steps.NodeLabels, host_endpoint_steps.Switch, host_endpoint_steps.FormerEndpoints)
    return {**{part.name: part(writer, view) for part in parts}, **datastore_procedure.special_steps(writer)}


def _manifests(writer: Writer, request: Request) -> Procedure:
    if not request.manifest:
        raise CallerError("--manifest is missing", details="print one: `svcctl manifests`")
    if request.source or request.target:
        raise CallerError(f"--procedure {MANIFESTS} takes no --source and no --target", details="give --procedure datastore")
    documents, digest = read_manifest(request.manifest, request.sha256)
    return ManifestProcedure(writer, documents, digest, request.to)


def _host_endpoints(writer: Writer, request: Request) -> Procedure:
    if request != Request():
        raise CallerError(f"--procedure {HOST_ENDPOINTS} takes no manifest", details="everything follows from the cluster")
    return HostEndpointProcedure(writer)


def _datastore(writer: Writer, request: Request) -> Procedure:
    if request.to:
        raise CallerError(f"--procedure {DATASTORE} takes no --to", details="the version stays as it is")
    ends = read_ends(writer, request.source, request.target)
    documents, digest = read_manifest(request.manifest, request.sha256) if request.manifest else ((), "")
    return DatastoreProcedure(writer, ends, documents, digest)


_MAKERS: Final[Mapping[str, Maker]] = {MANIFESTS: _manifests, HOST_ENDPOINTS: _host_endpoints, DATASTORE: _datastore}
