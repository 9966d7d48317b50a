"""Blockers of a move. Finding them changes nothing."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from svc.admin.ipam_check.check import Wait, check
from svc.admin.ipam_check.observation import Place
from svc.admin.ipam_check.owners import CONTAINER, kind_of
from svc.admin.resources import NODE
from svc.datastore.api import StoreError, UndecodableEntry
from svc.ipam.blocks import RESERVED_HANDLE, allocations
from svc.model.custom_resources import AFFINITY, BLOCK, CONFIG, HANDLE, CustomResourceCodec
from svc.model.endpoint import KIND as ENDPOINT
from svc.model.errors import SvcError
from svc.model.ipam import Affinity, Block, Handle
from svc.model.keys import ALL_PLURALS, VIRTUAL, Host, Key, ResourceKey, ResourceQuery, describe
from svc.model.kv_codec import Value
from svc.model.object_metadata import ApiGroup
from svc.model.resource import Resource, name_error
from svc.move import endpoints, marks, snapshot, steps
from svc.move.convert import Form, converted, moves
from svc.move.marks import ARRIVING, LEFT
from svc.move.nodes import between, hosts_of, is_of_tunnel, kubernetes_name
from svc.names import Names
from svc.values import dataclass

Documents = Mapping[Key, Value]

ACKNOWLEDGEABLE: Final = ("ipam-check", "unknown")
"""The IDs of blockers that a user may acknowledge."""

_NEVER_MOVED: Final = ("ownerReferences", "deletionTimestamp")


@dataclass(frozen=True, slots=True)
class Blocker:
    """Why a move cannot begin: ID, object, problem and fix. `can_be_acknowledged` is whether a user may go on."""

    id: str
    object: str
    problem: str
    fix: str
    can_be_acknowledged: bool = False

    def __str__(self) -> str:
        return f"{self.object}: {self.problem}: {self.fix}"


def preflight(
    source: Place, target: Place, run: str, acknowledged: Collection[str] = (), wait: Wait | None = None
) -> list[Blocker]:
    """Return what blocks a move, without what the user has acknowledged by ID. Change nothing. Raise StoreError."""
    if marks.has_arrived(target, run):
        return []
    found = [*_of_source_lock(source, run), *of_target(marks.present(source), target, run), *of_source(source, wait)]
    try:
        taken = snapshot.look(source)
        documents = taken.decoded(source.names)
    except UndecodableEntry as error:
        return without_acknowledged([*found, _refused("document", source, error)], acknowledged)
    found += of_documents(documents, target)
    found += [*of_unknown(taken.unknown(source.names)), *unknown_kinds(source)]
    return without_acknowledged(found, acknowledged)


def without_acknowledged(found: Iterable[Blocker], acknowledged: Collection[str]) -> list[Blocker]:
    """Return the blockers that the user has not acknowledged, or cannot."""
    return [each for each in found if not (each.can_be_acknowledged and each.id in acknowledged)]


def of_source(source: Place, wait: Wait | None = None) -> list[Blocker]:
    """Return the findings of the check of the source, which a user may acknowledge."""
    return [
        Blocker("ipam-check", finding.object, f"{finding.id}: {finding.problem}", finding.fix, can_be_acknowledged=True)
        for finding in check(source, wait).findings
    ]


def of_documents(documents: Documents, target: Place) -> list[Blocker]:
    """Return the blockers that the documents of a source have in a target."""
    nodes = [entry.value for entry in target.backend.list(ResourceQuery(NODE))]
    found = list(_of_nodes(target, documents, nodes))
    try:
        form = Form(target.names, between(target.names, _of_kind(documents, NODE), nodes), target.pods_are_endpoints)
    except StoreError as error:
        return [*found, Blocker("node", NODE, error.msg, error.details)]
    found += _of_deletions(documents)
    if target.pods_are_endpoints:
        found += _of_kinds(target, documents)
        found += [*_of_names(form, documents), *_of_resources(documents), *_of_allocations(documents)]
        found += _of_endpoints(target.names, documents)
    return found


def _of_kind(documents: Documents, kind: str) -> list[Resource]:
    return [value for value in documents.values() if isinstance(value, Resource) and value.kind == kind]


def _of_source_lock(source: Place, run: str) -> Iterator[Blocker]:
    info = marks.present(source)
    if info is None:
        yield _refused("source", source, marks.not_initialised(source))
    elif marks.is_locked(info):
        mark = marks.mark_of(source.names, info)
        if mark is None or mark.run != run:
            yield _refused("locked", source, marks.locked_by_others(source, mark))


def of_target(source_info: Resource | None, target: Place, run: str) -> list[Blocker]:
    """Return why the target cannot take the content of a source with this ClusterInformation."""
    mark = marks.mark_of(target.names, marks.present(target))
    try:
        if mark is not None and mark.run == run and mark.state == ARRIVING:
            return []
        if not marks.is_predecessor(source_info, target):
            if mark is not None and mark.state == LEFT:
                raise marks.locked_by_others(target, mark)
            steps.require_empty(target)
        steps.contents_of(target)
    except SvcError as error:
        return [_refused("target", target, error)]
    return []


def _refused(id_: str, place: Place, error: SvcError) -> Blocker:
    name = place.backend.place
    return Blocker(id_, name, error.msg.removeprefix(f"{name} "), error.details)


def _of_nodes(target: Place, documents: Documents, nodes: Iterable[Resource]) -> Iterator[Blocker]:
    known = {node.name for node in nodes}
    source = {node.name: kubernetes_name(target.names, node) for node in _of_kind(documents, NODE)}
    for name, kube in source.items():
        if not kube:
            fix = f"set orchRefs in its spec to [{{nodeName: NAME, orchestrator: {target.names.orchestrator}}}]"
            yield Blocker("node", f"node {name}", "it does not say which node of Kubernetes it is", fix)
        elif target.pods_are_endpoints and kube not in known:
            yield Blocker("node", f"node {name}", f"Kubernetes has no node {kube!r}", f"delete it: `svcctl node delete {name}`")
    for host in sorted(hosts_of(documents) - source.keys()):
        fix = "`svcctl node delete` it, or register it again"
        yield Blocker("node", f"node {host}", "it has blocks, and no Node", fix)


def _of_kinds(target: Place, documents: Documents) -> Iterator[Blocker]:
    """Yield the kinds that the target does not serve."""
    served = snapshot.served_kinds(target) or {}
    wanted = {CustomResourceCodec(_group(target)).kind(key) for key in documents if moves(key)}
    for kind in sorted(wanted - served.keys()):
        fix = "install the resource definitions there: `svcctl crd apply`, or those of the program that it belongs to"
        yield Blocker("kind", kind, "the target does not define this kind", fix)
    spaces = {key.namespace for key in documents if moves(key) and isinstance(key, ResourceKey) and key.namespace}
    for space in sorted(spaces):
        if target.client and target.client.get_if_served(f"/api/v1/namespaces/{space}") is None:
            fix = f"kubectl create namespace {space}, or delete its resources"
            yield Blocker("namespace", space, "the target has no such namespace", fix)


def _group(target: Place) -> ApiGroup:
    names = target.names
    return ApiGroup(names, names.api_version if target.backend.has_plain_objects else names.crd_api_version)


def unknown_kinds(source: Place) -> list[Blocker]:
    """Return the kinds in a Kubernetes API that svc does not know and that have objects, which a user may acknowledge."""
    known = {*ALL_PLURALS, BLOCK, AFFINITY, HANDLE, *CONFIG.values()}
    served = snapshot.served_kinds(source) or {}
    return of_unknown(
        f"{_group(source).root}/{plural}"
        for kind, plural in served.items()
        if kind not in known and source.client and source.client.get(f"{_group(source).root}/{plural}", limit="1").get("items")
    )


def _of_names(form: Form, documents: Documents) -> Iterator[Blocker]:
    """Yield documents whose objects would have the same name, and names that no object can have."""
    objects = CustomResourceCodec(ApiGroup(form.names, form.names.crd_api_version))
    seen: dict[tuple[str, str, str], Key] = {}
    for key in converted(form, documents):
        namespace = key.namespace if isinstance(key, ResourceKey) else ""
        name = objects.kind(key), namespace, objects.name(key)
        if other := seen.get(name):
            problem = f"its object would have the name {name[2]!r}, as that of {describe(other)}"
            yield Blocker("name", describe(key), problem, "end the workload of one of them, or rename it")
        seen.setdefault(name, key)
        if isinstance(key, ResourceKey):
            yield from (
                Blocker("name", describe(key), error.line, "make one with another name, and delete it")
                for error in name_error(Resource(key.kind, {"name": key.name}))
            )


def _of_resources(documents: Documents) -> Iterator[Blocker]:
    for key, value in documents.items():
        if not isinstance(value, Resource) or value.kind in (NODE, ENDPOINT, "Profile"):
            continue
        if value.extra:
            problem = f"the Kubernetes API keeps no field {', '.join(sorted(value.extra))} beside its spec"
            yield Blocker("field", describe(key), problem, "remove the field")
        for name in _NEVER_MOVED:
            if value.metadata.get(name):
                fix = "remove it: the object would be deleted in the Kubernetes API"
                yield Blocker("field", describe(key), f"metadata.{name} is set", fix)


def _of_deletions(documents: Documents) -> Iterator[Blocker]:
    for key, value in documents.items():
        if isinstance(value, Block | Affinity | Handle) and value.deleted:
            yield Blocker("deleted", describe(key), "it is marked as deleted", "delete it, or remove the field `deleted`")


def _of_allocations(documents: Documents) -> Iterator[Blocker]:
    """Yield addresses of no pod. Those of tunnels, of services and in cooldown move, and those reserved for Windows."""
    for value in documents.values():
        if not isinstance(value, Block):
            continue
        host = Host.of(value.affinity)
        if host is not None and host.kind == VIRTUAL:
            continue
        for attribute, address in allocations(value):
            handle = attribute.handle_id or ""
            is_kept = attribute.released_at or handle.lower() == RESERVED_HANDLE or is_of_tunnel(handle)
            if not is_kept and kind_of(attribute.secondary or {}) == CONTAINER:
                problem = f"it is allocated to {handle!r}, and to no pod"
                fix = f"end its workload, or `svcctl ipam release --ip {address}`"
                yield Blocker("no-pod", str(address), problem, fix)


def _of_endpoints(names: Names, documents: Documents) -> Iterator[Blocker]:
    for name in endpoints.without_pod(names, endpoints.of_documents(documents)):
        yield Blocker("no-pod", f"endpoint {name}", "it belongs to no pod", "end its workload")


def of_unknown(paths: Iterable[str]) -> list[Blocker]:
    """Return the documents that stay behind, which a user may acknowledge."""
    problem, fix = "svc does not know this document, and does not move it", "move it by the program that it belongs to"
    return [Blocker("unknown", path, problem, fix, can_be_acknowledged=True) for path in paths]
