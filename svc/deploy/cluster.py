"""What a cluster needs: the definitions of the custom resources, and the rights of the plugin, the least that it needs.

The definitions are for API server 1.20 or newer, made from one table for each names profile. Schemas are structural, and name
each field that svc writes, with its type. The server keeps other fields.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from svc.datastore.api import StoreError
from svc.model import controllers_configuration as controllers
from svc.model import custom_resources
from svc.model.pool import ASSIGNMENT_MODES, ENCAPSULATIONS, USES
from svc.names import Names

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

Json = dict[str, Any]

_STRING: Json = {"type": "string"}
_BOOLEAN: Json = {"type": "boolean"}
_NUMBER: Json = {"type": "integer", "format": "int64"}
_TIME: Json = {"type": "string", "format": "date-time"}
_AFFINITY_PATTERN = r"^(host|virtual):[a-zA-Z0-9\.\-_]+$"
_WITH_STATUS = ("IPPool", controllers.KIND)
_READ = ("get", "list", "watch")
_OWN = ("get", "list", "create", "update", "delete")
_CUSTOM = (  # plural, verbs
    ("ipamblocks", _OWN),
    ("blockaffinities", _OWN),
    ("ipamhandles", _OWN),
    ("ippools", ("list", "watch")),
    ("ipreservations", ("list", "watch")),
    ("clusterinformations", _READ),
)
_OTHERS = (  # API group, plural, verbs
    ("", "pods", ("get",)),
    ("", "pods/status", ("patch",)),
    ("", "nodes", _READ),
    ("", "namespaces", _READ),
    ("coordination.k8s.io", "leases", ("get", "create", "update")),
)
_AUTHORIZATION = "rbac.authorization.k8s.io"
MANAGER = "svcctl"
SERVED_SECONDS = 30.0  # until a server serves a new definition
_POLL_SECONDS = 0.1


def definitions(names: Names, api_version: str) -> list[Json]:
    """Return a CustomResourceDefinition for each kind, in the API group and version `api_version`."""
    backing = api_version != names.api_version
    schemas = _schemas(f"{names.plugin}Version", backing=backing)
    return [_definition(api_version, kind, schema, backing=backing) for kind, schema in schemas.items()]


def _definition(api_version: str, kind: str, spec: Json, *, backing: bool) -> Json:
    group, _, version = api_version.partition("/")
    plural = custom_resources.kind_plural(kind)
    served: Json = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": _object_schema(kind, spec)}}
    if kind in _WITH_STATUS and not backing:
        served["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "scope": "Cluster",
            "versions": [served],
        },
    }


def _object_schema(kind: str, spec: Json) -> Json:
    properties: Json = {"apiVersion": _STRING, "kind": _STRING, "metadata": {"type": "object"}, "spec": spec}
    if kind in _WITH_STATUS:
        properties["status"] = _fields({})
    if kind == controllers.KIND:
        properties["status"] = _fields({"environmentVars": _map(_STRING), "runningConfig": spec})
    return {"type": "object", "properties": properties}


def _schemas(version_field: str, *, backing: bool) -> dict[str, Json]:
    return {
        custom_resources.BLOCK: _block(backing=backing),
        custom_resources.AFFINITY: _affinity(backing=backing),
        custom_resources.HANDLE: _fields(
            {"handleID": _STRING, "block": _map(_NUMBER), "deleted": _BOOLEAN}, ("block", "handleID")
        ),
        custom_resources.CONFIG[backing]: _config(backing=backing),
        "IPPool": _pool(),
        "IPReservation": _fields({"reservedCIDRs": _list(_STRING)}),
        "ClusterInformation": _fields(
            dict.fromkeys(("clusterGUID", "clusterType", version_field, "variant"), _STRING) | {"datastoreReady": _BOOLEAN}
        ),
        "HostEndpoint": _fields({"node": _STRING, "interfaceName": _STRING, "expectedIPs": _list(_STRING)}),
        controllers.KIND: _controllers(),
    }


def _block(*, backing: bool) -> Json:
    attribute = {
        "handle_id": _STRING,
        "secondary": _map(_STRING),
        "alternateOwnerAttrs": _map(_STRING),
        "releasedAt": _TIME | {"nullable": True},
    }
    affinity = _STRING if backing else _STRING | {"pattern": _AFFINITY_PATTERN}
    fields = {
        "cidr": _STRING,
        "affinity": affinity,
        "affinityClaimTime": _TIME,
        "allocations": _list({"type": "integer", "nullable": True}),
        "unallocated": _list({"type": "integer"}),
        "attributes": _list(_fields(attribute)),
        "sequenceNumber": _NUMBER | {"default": 0},
        "sequenceNumberForAllocation": _map(_NUMBER),
        "deleted": _BOOLEAN,
        "strictAffinity": _BOOLEAN,
    }
    return _fields(fields, ("allocations", "attributes", "cidr", "strictAffinity", "unallocated"))


def _affinity(*, backing: bool) -> Json:
    deleted = _STRING if backing else _BOOLEAN
    fields = dict.fromkeys(("state", "node", "type", "cidr"), _STRING) | {"deleted": deleted}
    return _fields(fields, ("cidr", "deleted", "node", "state"))


def _config(*, backing: bool) -> Json:
    most = 2**31 - 1 if backing else 1_000_000  # svc itself stores at most the lower one
    fields = {
        "strictAffinity": _BOOLEAN if backing else _BOOLEAN | {"default": False},
        "autoAllocateBlocks": _BOOLEAN if backing else _BOOLEAN | {"default": True},
        "maxBlocksPerHost": {"type": "integer", "minimum": 0, "maximum": most},
        "kubeVirtVMAddressPersistence": _choice(("Enabled", "Disabled")),
        "ipCooldownSeconds": {"type": "integer", "minimum": 0, "maximum": 1200},
    }
    return _fields(fields, ("autoAllocateBlocks", "strictAffinity"))


def _pool() -> Json:
    fields = dict.fromkeys(("cidr", "nodeSelector", "namespaceSelector"), _STRING)
    fields |= dict.fromkeys(("natOutgoing", "disabled", "disableBGPExport"), _BOOLEAN)
    fields |= dict.fromkeys(("ipipMode", "vxlanMode"), _choice(ENCAPSULATIONS))
    fields |= {"blockSize": {"type": "integer", "minimum": 0, "maximum": 128}, "allowedUses": _list(_choice(USES))}
    fields["assignmentMode"] = _choice(ASSIGNMENT_MODES)
    return _fields(fields, ("cidr",))


def _controllers() -> Json:
    switch, periods, port = _choice(controllers.SWITCH), {controllers.PERIOD: _STRING}, _port()
    template = {
        **dict.fromkeys(("generateName", "interfacePattern", "nodeSelector"), _STRING),
        "interfaceCIDRs": _list(_STRING),
        **dict.fromkeys(("labels", "annotations"), _map(_STRING)),
    }
    endpoints = dict.fromkeys(("autoCreate", "createDefaultHostEndpoint"), switch) | {"templates": _list(_fields(template))}
    sections = dict.fromkeys(controllers.CONTROLLERS, _fields(periods))
    sections[controllers.NODE] = _fields(
        {**periods, "syncLabels": switch, "leakGracePeriod": _STRING, "hostEndpoint": _fields(endpoints)}
    )
    sections[controllers.BALANCER] = _fields({**periods, "assignIPs": _choice(controllers.ASSIGNMENTS)})
    fields = {
        controllers.LEVEL: _choice(controllers.LEVELS),
        controllers.HEALTH: switch,
        controllers.COMPACTION: _STRING,
        controllers.METRICS_PORT: port,
        controllers.DEBUG_PORT: port,
        controllers.SECTIONS: _fields(sections),
    }
    return _fields(fields)


def _port() -> Json:
    return {"type": "integer", "minimum": 0, "maximum": controllers.MAX_PORT}


def _fields(properties: Mapping[str, Json], required: Sequence[str] = ()) -> Json:
    """Return the schema of an object, which may have other fields."""
    schema: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if properties:
        schema["properties"] = dict(properties)
    if required:
        schema["required"] = list(required)
    return schema


def _map(item: Json) -> Json:
    return {"type": "object", "additionalProperties": item}


def _list(item: Json) -> Json:
    return {"type": "array", "items": item}


def _choice(choices: Sequence[str]) -> Json:
    return {"type": "string", "enum": list(choices)}


def role(names: Names, api_version: str) -> Json:
    """Return the ClusterRole, for the API group of the custom resources."""
    group = api_version.partition("/")[0]
    config = "ipamconfigs" if api_version != names.api_version else "ipamconfigurations"
    rules = (*_OTHERS, *((group, plural, verbs) for plural, verbs in (*_CUSTOM, (config, _READ))))
    return {
        "apiVersion": f"{_AUTHORIZATION}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": role_name(names)},
        "rules": [{"apiGroups": [group], "resources": [plural], "verbs": list(verbs)} for group, plural, verbs in rules],
    }


def binding(names: Names, *subjects: Json) -> Json:
    """Return the ClusterRoleBinding of the role to users, groups or service accounts."""
    return {
        "apiVersion": f"{_AUTHORIZATION}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role_name(names)},
        "roleRef": {"apiGroup": _AUTHORIZATION, "kind": "ClusterRole", "name": role_name(names)},
        "subjects": list(subjects),
    }


def role_name(names: Names) -> str:
    """Return the name of the role and of its binding."""
    return f"{names.plugin}-cni"


def apply(client: "Client", documents: Sequence[Json]) -> Iterator[str]:
    """Apply each object, as a forced server-side `kubectl apply`, and yield its name when it is served. Raise StoreError."""
    for document in documents:
        name = str(document["metadata"]["name"])
        path = f"/apis/{document['apiVersion']}/{document['kind'].lower()}s/{name}"
        client.apply(path, document, MANAGER)
        if document["kind"] == "CustomResourceDefinition":
            _await_established(client, path)
        yield name


def _await_established(client: "Client", path: str) -> None:
    deadline = time.monotonic() + SERVED_SECONDS
    while not _is_established(client.get(path)):
        if time.monotonic() > deadline:
            details = "see its conditions: kubectl describe"
            raise StoreError(f"{path} is not served after {SERVED_SECONDS:.0f} seconds", details=details)
        time.sleep(_POLL_SECONDS)


def _is_established(definition: Json) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)
