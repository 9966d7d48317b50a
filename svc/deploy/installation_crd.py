"""The definition of the Installation resource, for API server 1.20 or newer, with the names of a profile.

It is cluster-scoped, has a separate status, and keeps fields that svc does not read. Null counts as a missing field: what a
server-side apply leaves of an object whose fields it removes, servers of release 1.20 take for null. The module
`svc.admin.installation_resource.rules` has the rules that a schema cannot express.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from svc.model import installation as shape
from svc.model.pool import ASSIGNMENT_MODES, USES
from svc.names import Names

Json = dict[str, Any]

_STRING: Json = {"type": "string"}
_TEXT: Json = {"type": "string", "nullable": True}
_BOOLEAN: Json = {"type": "boolean"}
_OBJECT: Json = {"type": "object", "nullable": True, "x-kubernetes-preserve-unknown-fields": True}
_COLUMNS = (("Ready", "Ready"), ("Progressing", "Progressing"), ("Degraded", "Degraded"))


def definition(names: Names) -> Json:
    """Return the CustomResourceDefinition."""
    group, _, version = names.operator_api_version.partition("/")
    properties = {"apiVersion": _STRING, "kind": _STRING, "metadata": {"type": "object"}}
    schema = {"type": "object", "properties": {**properties, "spec": _spec(names), "status": _status()}}
    columns = [_column("Version", ".status.version")]
    columns += [_column(name, f'.status.conditions[?(@.type=="{kind}")].status') for name, kind in _COLUMNS]
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
    }
    kind = {"kind": shape.KIND, "listKind": f"{shape.KIND}List", "plural": shape.PLURAL, "singular": shape.KIND.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{shape.PLURAL}.{group}"},
        "spec": {"group": group, "names": kind, "scope": "Cluster", "versions": [served]},
    }


def _spec(names: Names) -> Json:
    ipam = dict.fromkeys(shape.IPAM_KEYS, _TEXT)
    cni = {
        "type": _TEXT,
        "ipam": _fields(ipam),
        "binDir": _TEXT,
        "confDir": _TEXT,
        "installMode": _choice(shape.install_modes(names)),
        "specVersion": _choice(shape.SPEC_VERSIONS),
    }
    log = {
        "logSeverity": _choice(shape.LOG_LEVELS),
        "logFileMaxSize": _TEXT,
        "logFileMaxAgeDays": _number(1),
        "logFileMaxCount": _number(1),
    }
    return _fields(
        {
            "variant": _TEXT,
            shape.PROVIDER: _choice(shape.PROVIDERS),
            "cni": _fields(cni),
            names.operator_network: _network(),
            "logging": _fields({"cni": _fields(log)}),
            **dict.fromkeys(("registry", "imagePath", "imagePrefix", "flexVolumePath", "kubeletVolumePluginPath"), _TEXT),
            "imagePullSecrets": _list(_fields({"name": _TEXT}, ("name",))),
            "controlPlaneReplicas": _number(1),
            "nodeUpdateStrategy": _OBJECT,
            "componentResources": _list(_OBJECT),
        }
    )


def _network() -> Json:
    switch = _choice(tuple(shape.SWITCH))
    pool = {
        **dict.fromkeys(("name", "cidr", "nodeSelector"), _TEXT),
        "encapsulation": _choice(tuple(shape.ENCAPSULATIONS)),
        "natOutgoing": switch,
        **dict.fromkeys(("disableNewAllocations", "disableBGPExport"), _BOOLEAN),
        "blockSize": {"type": "integer", "minimum": 0, "maximum": 128},
        "allowedUses": _list(_choice(USES)),
        "assignmentMode": _choice(ASSIGNMENT_MODES),
    }
    return _fields(
        {
            "ipPools": {**_list(_fields(pool, ("cidr",))), "maxItems": shape.MAX_POOLS},
            shape.SECONDS: _number(0),
            **dict.fromkeys(("bgp", "hostPorts", "containerIPForwarding"), switch),
            "linuxDataplane": _choice(shape.DATAPLANES),
            "multiInterfaceMode": _choice(shape.MULTI_INTERFACE),
            "mtu": _number(0),
            "sysctl": _list(_fields({"key": _TEXT, "value": _TEXT}, ("key", "value"))),
            **dict.fromkeys(("nodeAddressAutodetectionV4", "nodeAddressAutodetectionV6"), _OBJECT),
        }
    )


def _status() -> Json:
    condition = {
        **dict.fromkeys(("type", "status"), _STRING),
        **dict.fromkeys(("reason", "message"), _TEXT),
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": {"type": "integer", "format": "int64"},
    }
    return _fields({"version": _STRING, "computed": _OBJECT, "conditions": _list(_fields(condition, ("type", "status")))})


def _fields(properties: Mapping[str, Json], required: Sequence[str] = ()) -> Json:
    """Return the schema of an object, which may have other fields."""
    return {**_OBJECT, "properties": dict(properties)} | ({"required": list(required)} if required else {})


def _list(item: Json) -> Json:
    return {"type": "array", "nullable": True, "items": item}


def _choice(words: Sequence[str]) -> Json:
    return {"type": "string", "enum": list(words)}


def _number(least: int) -> Json:
    return {"type": "integer", "format": "int32", "minimum": least}


def _column(name: str, path: str) -> Json:
    return {"name": name, "type": "string", "jsonPath": path}
