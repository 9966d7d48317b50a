"""Checks of fields against each other, the names profile, and what this version supports."""

from functools import partial
from typing import Any

from svc.model.field_errors import Check, FieldErrors
from svc.names import Names
from svc.netconf import fields, host_local

Values = dict[str, Any]


def check(values: Values, names: Names, errors: FieldErrors) -> None:
    """Add field errors, and reset invalid values to their defaults. Earlier field errors have already reset theirs."""
    _datastore(values, errors)
    _orchestrator(values, errors)
    _ipam(values, names, errors)
    if not errors.check("mtu", values["mtu"], fields.mtu(values["mtu"], ipv6=values["ipam.assign_ipv6"] == "true")):
        values["mtu"] = fields.default_of("mtu")
    _gates(values, errors)


def _datastore(values: Values, errors: FieldErrors) -> None:
    if _faulty("datastore_type", errors):
        values["datastore_type"] = "embedded"  # so that DEL continues: no ADD can have succeeded with an invalid type
    if values["etcd_discovery_srv"] and values["etcd_endpoints"]:
        errors.add("etcd_discovery_srv", values["etcd_discovery_srv"], "excludes etcd_endpoints", "remove one of the two")
    if values["datastore_type"] == "etcdv3":
        _pair(values, "etcd_cert_file", "etcd_key_file", errors)


def _orchestrator(values: Values, errors: FieldErrors) -> None:
    """Require access to the Kubernetes API if the datastore or policy uses it."""
    if values["datastore_type"] == "orch":
        reason = 'datastore_type "orch" needs it'
    elif values["policy.type"]:
        reason = f'policy.type "{values["policy.type"]}" needs it'
    else:
        return
    if not (values["orch.kubeconfig"] or values["orch.orch_api_root"] or _faulty("orch", errors)):
        errors.missing("orch.kubeconfig", f"{reason}: give the path of a kubeconfig, or orch.orch_api_root")
    _pair(values, "policy.k8s_client_certificate", "policy.k8s_client_key", errors)


def _pair(values: Values, certificate: str, key: str, errors: FieldErrors) -> None:
    for given, other in ((certificate, key), (key, certificate)):
        if values[given] and not values[other] and not _faulty(other, errors):
            errors.add(given, values[given], f"is of no use without {other}", f"give both {certificate} and {key}, or neither")


def _ipam(values: Values, names: Names, errors: FieldErrors) -> None:
    """Check the type, the families, and the pools of the families that are assigned."""
    kind = values["ipam.type"]
    if kind not in (None, names.ipam_plugin, host_local.TYPE):
        errors.add("ipam.type", kind, "is not known", f'set "type": "{names.ipam_plugin}" or "{host_local.TYPE}"')
    paths = ("ipam.assign_ipv4", "ipam.assign_ipv6")
    if all(values[path] == "false" and not _faulty(path, errors) for path in paths):
        errors.add("ipam.assign_ipv4", "false", "leaves no address to assign", 'set it or ipam.assign_ipv6 to "true"')
    for version in (4, 6):
        if values[f"ipam.assign_ipv{version}"] == "true":
            _entries(f"ipam.ipv{version}_pools", values, partial(fields.pool, version=version), errors)


def _gates(values: Values, errors: FieldErrors) -> None:
    urls = values["readiness_gates"]
    if len(urls) > fields.MAX_GATES:
        errors.add("readiness_gates", urls, f"has {len(urls)} URLs", f"give at most {fields.MAX_GATES}")
    _entries("readiness_gates", values, fields.gate, errors)
    if len(urls) > fields.MAX_GATES:
        values["readiness_gates"] = fields.default_of("readiness_gates")


def _entries(path: str, values: Values, check: Check, errors: FieldErrors) -> None:
    """Check each entry of a list. Reset the list if one is invalid."""
    valid = [errors.check(f"{path}[{index}]", text, check(text)) for index, text in enumerate(values[path])]
    if not all(valid):
        values[path] = fields.default_of(path)


def _faulty(path: str, errors: FieldErrors) -> bool:
    """Return True if the field, or one in its section, already has a field error: a second one is not helpful."""
    return any(error.field == path or error.field.startswith(f"{path}.") for error in errors.found)
