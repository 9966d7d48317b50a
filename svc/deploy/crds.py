"""The definitions of the custom resources, for API server 1.20 or newer: made from one table, for each names profile.

Schemas are structural, and name each field that svc writes, with its type. The server keeps other fields.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from svc.model import custom_resources
from svc.model.pool import ASSIGNMENT_MODES, ENCAPSULATIONS, USES
from svc.names import Names

Json = dict[str, Any]

_STRING: Json = {"type": "string"}
_BOOLEAN: Json = {"type": "boolean"}
_NUMBER: Json = {"type": "integer", "format": "int64"}
_TIME: Json = {"type": "string", "format": "date-time"}
_OPEN = {"x-kubernetes-preserve-unknown-fields": True}
_AFFINITY_PATTERN = r"^(host|virtual):[a-zA-Z0-9\.\-_]+$"


def definitions(names: Names, api_version: str) -> list[Json]:
    """Return a CustomResourceDefinition for each kind, in the API group and version `api_version`."""
    backing = api_version != names.api_version
    schemas = _schemas(f"{names.plugin}Version", backing=backing)
    return [_definition(api_version, kind, schema, backing=backing) for kind, schema in schemas.items()]


def _definition(api_version: str, kind: str, spec: Json, *, backing: bool) -> Json:
    group, _, version = api_version.partition("/")
    plural = custom_resources.kind_plural(kind)
    served: Json = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": _object_schema(kind, spec)}}
    if kind == "IPPool" and not backing:
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
        properties["status"] = {"type": "object", **_OPEN}
    return {"type": "object", "properties": properties}


_WITH_STATUS = ("IPPool", "KubeControllersConfiguration")


def _schemas(version_field: str, *, backing: bool) -> dict[str, Json]:
    """Return the schema of each kind's spec."""
    return {
        custom_resources.BLOCK: _block(backing=backing),
        custom_resources.AFFINITY: _affinity(backing=backing),
        custom_resources.HANDLE: _fields(
            {"handleID": _STRING, "block": _map(_NUMBER), "deleted": _BOOLEAN}, ("block", "handleID"), **_OPEN
        ),
        custom_resources.CONFIG[backing]: _config(backing=backing),
        "IPPool": _pool(),
        "IPReservation": _fields({"reservedCIDRs": _list(_STRING)}, (), **_OPEN),
        "ClusterInformation": _fields(
            dict.fromkeys(("clusterGUID", "clusterType", version_field, "variant"), _STRING) | {"datastoreReady": _BOOLEAN},
            (),
            **_OPEN,
        ),
        "HostEndpoint": _fields({"node": _STRING, "interfaceName": _STRING, "expectedIPs": _list(_STRING)}, (), **_OPEN),
        "KubeControllersConfiguration": _fields({}, (), **_OPEN),
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
        "attributes": _list(_fields(attribute, (), **_OPEN)),
        "sequenceNumber": _NUMBER | {"default": 0},
        "sequenceNumberForAllocation": _map(_NUMBER),
        "deleted": _BOOLEAN,
        "strictAffinity": _BOOLEAN,
    }
    return _fields(fields, ("allocations", "attributes", "cidr", "strictAffinity", "unallocated"), **_OPEN)


def _affinity(*, backing: bool) -> Json:
    deleted = _STRING if backing else _BOOLEAN
    fields = dict.fromkeys(("state", "node", "type", "cidr"), _STRING) | {"deleted": deleted}
    return _fields(fields, ("cidr", "deleted", "node", "state"), **_OPEN)


def _config(*, backing: bool) -> Json:
    most = 2**31 - 1 if backing else 1_000_000  # svc itself stores at most the lower one
    fields = {
        "strictAffinity": _BOOLEAN if backing else _BOOLEAN | {"default": False},
        "autoAllocateBlocks": _BOOLEAN if backing else _BOOLEAN | {"default": True},
        "maxBlocksPerHost": {"type": "integer", "minimum": 0, "maximum": most},
        "kubeVirtVMAddressPersistence": _choice(("Enabled", "Disabled")),
        "ipCooldownSeconds": {"type": "integer", "minimum": 0, "maximum": 1200},
    }
    return _fields(fields, ("autoAllocateBlocks", "strictAffinity"), **_OPEN)


def _pool() -> Json:
    fields = dict.fromkeys(("cidr", "nodeSelector", "namespaceSelector"), _STRING)
    fields |= dict.fromkeys(("natOutgoing", "disabled", "disableBGPExport"), _BOOLEAN)
    fields |= dict.fromkeys(("ipipMode", "vxlanMode"), _choice(ENCAPSULATIONS))
    fields |= {"blockSize": {"type": "integer", "minimum": 0, "maximum": 128}, "allowedUses": _list(_choice(USES))}
    fields["assignmentMode"] = _choice(ASSIGNMENT_MODES)
    return _fields(fields, ("cidr",), **_OPEN)


def _fields(properties: Mapping[str, Json], required: Sequence[str], **more: Any) -> Json:
    schema: Json = {"type": "object", **more}
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
