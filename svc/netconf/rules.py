"""What ties fields to each other, to the names of the deployment, and to what this version serves."""

from typing import Any

from svc.model.faults import Faults
from svc.names import Names
from svc.netconf import fields

Values = dict[str, Any]


def check(values: Values, names: Names, faults: Faults) -> None:
    """Adds faults, and puts back what the faulty values fall to. A faulty value has been replaced by its default."""
    _datastore(values, faults)
    _etcd(values, faults)
    _ipam_type(values, names, faults)
    _families(values, faults)
    _pools(values, faults)
    _mtu(values, faults)


def _datastore(values: Values, faults: Faults) -> None:
    kind = values["datastore_type"]
    if kind in fields.SERVED_DATASTORES:
        return
    served = fields.SERVED_DATASTORES[0]
    if not _faulty("datastore_type", faults):
        remedy = f'set "datastore_type": "{served}", the only one that this version serves; without it "etcdv3" is meant'
        faults.add("datastore_type", kind, "is not supported yet", remedy)
    values["datastore_type"] = served


def _etcd(values: Values, faults: Faults) -> None:
    if values["etcd_discovery_srv"] and values["etcd_endpoints"]:
        faults.add("etcd_discovery_srv", values["etcd_discovery_srv"], "excludes etcd_endpoints", "remove one of the two")


def _ipam_type(values: Values, names: Names, faults: Faults) -> None:
    kind = values["ipam.type"]
    remedy = f'set "type": "{names.ipam_plugin}"'
    if kind == "host-local":
        faults.add("ipam.type", kind, "is not supported yet", remedy)
    elif kind not in (None, names.ipam_plugin):
        faults.add("ipam.type", kind, "is not known", remedy)


def _families(values: Values, faults: Faults) -> None:
    paths = ("ipam.assign_ipv4", "ipam.assign_ipv6")
    if all(values[path] == "false" and not _faulty(path, faults) for path in paths):
        faults.add("ipam.assign_ipv4", "false", "leaves no address to assign", 'set it or ipam.assign_ipv6 to "true"')


def _pools(values: Values, faults: Faults) -> None:
    """The pools of a family that is not assigned are not looked at."""
    for version in (4, 6):
        path = f"ipam.ipv{version}_pools"
        if values[f"ipam.assign_ipv{version}"] != "true":
            continue
        findings = [(index, text, fields.pool(text, version)) for index, text in enumerate(values[path])]
        wrong = [(index, text, finding) for index, text, finding in findings if finding]
        for index, text, finding in wrong:
            faults.add(f"{path}[{index}]", text, *finding)
        if wrong:
            values[path] = fields.default_of(path)


def _mtu(values: Values, faults: Faults) -> None:
    mtu = values["mtu"]
    if values["ipam.assign_ipv6"] == "true" and 0 < mtu < fields.MIN_MTU_IPV6:
        faults.add("mtu", mtu, "is too small for IPv6", f"give at least {fields.MIN_MTU_IPV6}, or 0 for the kernel's default")
        values["mtu"] = fields.default_of("mtu")


def _faulty(path: str, faults: Faults) -> bool:
    """Whether the value was refused before: what it fell to is not worth another fault."""
    return any(fault.field == path for fault in faults.found)
