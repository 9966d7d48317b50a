"""The definitions of the custom resources, for API server 1.20 or newer, made from one table for each names profile.

Schemas are structural, and name each field that svc writes, with its type. The server keeps other fields.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from svc.deploy import installation_crd
from svc.deploy.crd_rules import add_rules
from svc.model import controllers_configuration as controllers
from svc.model import custom_resources
from svc.model.pool import ASSIGNMENT_MODES, ENCAPSULATIONS, USES
from svc.names import Names

Json = dict[str, Any]

_STRING: Json = {"type": "string"}
_BOOLEAN: Json = {"type": "boolean"}
_NUMBER: Json = {"type": "integer", "format": "int64"}
_TIME: Json = {"type": "string", "format": "date-time"}
_AFFINITY_PATTERN = r"^(host|virtual):[a-zA-Z0-9\.\-_]+$"
_WITH_STATUS = ("IPPool", controllers.KIND)


def definitions(names: Names, api_version: str, *, with_rules: bool = False) -> list[Json]:
    """Return a CustomResourceDefinition for each kind, in the API group and version `api_version`.

    The group of the operator has only the Installation. API servers before 1.25 refuse rules."""
    if api_version == names.operator_api_version:
        return [installation_crd.definition(names)]
    backing = api_version != names.api_version
    schemas = _schemas(names.version_field, backing=backing)
    found = [_definition(api_version, kind, schema, backing=backing) for kind, schema in schemas.items()]
    for definition in found if with_rules else ():
        (version,) = definition["spec"]["versions"]
        add_rules(definition["spec"]["names"]["kind"], version["schema"]["openAPIV3Schema"])
    return found


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
