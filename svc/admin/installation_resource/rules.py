"""The rules of the Installation resource. Each error names field, value and remedy."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.admin.field_rules import Found, Rule, fields, items, one_of, typed
from svc.model import installation as shape
from svc.model.field_errors import FieldError
from svc.model.pool import pool_errors
from svc.names import Names
from svc.netconf.fields import MAX_MTU, MIN_MTU, MIN_MTU_IPV6
from svc.values import replace

Json = dict[str, Any]

_SIZE: Final = re.compile(r"([1-9][0-9]*)(Ki|Mi|Gi)")
_SYSCTL: Final = re.compile(r"net([./][^./\s]+)+")  # of a network namespace
_UNITS: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_RENAMED: Final = {"ipipMode": "encapsulation", "vxlanMode": "encapsulation", "disabled": "disableNewAllocations"}
_TEXTS: Final = ("cni.type", *(f"cni.ipam.{key}" for key in shape.IPAM_KEYS))
_POOL_TEXTS: Final = ("name", "cidr", "encapsulation", "nodeSelector", "assignmentMode", "allowedUses[]")
_PLACEHOLDER: Final = "unnamed"  # the name of a listed pool without one, for the rules of pools

_within = partial(fields, open_ended=True)  # an object that may have fields which svc does not read


def texts(names: Names) -> list[str]:
    """Return the paths of the fields of `spec` of type string that svc reads, as `manifest.read` takes them."""
    return [*_TEXTS, *(f"{names.operator_network}.ipPools[].{field}" for field in _POOL_TEXTS)]


def check(spec: Mapping[str, Any], names: Names, *, together: bool = True) -> Found:
    """Yield the errors of a spec. Fields that svc does not read are left out: `unread` names them.

    With `together`, valid fields that exclude each other are errors too."""
    yield from _within(_known(names), "spec", dict(spec))
    if together:
        yield from _together(spec, names)


def check_plugin(spec: Mapping[str, Any], names: Names) -> Found:
    """Yield the errors of the fields that a network of svc depends on, without the rules of pools."""
    pools = items(partial(_within, {"cidr": cidr}, required=("cidr",)))
    network = {shape.SECONDS: _seconds, "ipPools": pools}
    return _within({"cni": _cni(names), names.operator_network: partial(_within, network)}, "spec", dict(spec))


def check_subnets(pools: Iterable[Cidr], subnets: Sequence[Cidr], where: str) -> Found:
    """Yield an error for each listed pool that is outside of the pod subnets that kubeadm has given to the cluster."""
    for index, pool in enumerate(pools):
        of_family = [subnet for subnet in subnets if subnet.version == pool.version]
        if subnets and not any(pool in subnet for subnet in of_family):
            listed = ", ".join(map(str, of_family or subnets))
            problem = f"is not within the pod subnet of kubeadm ({listed})"
            yield FieldError(f"{where}[{index}].cidr", str(pool), problem, "give a range within it")


def unread(spec: Mapping[str, Any], names: Names) -> Iterator[str]:
    """Yield the paths of the fields that svc does not read."""
    known: dict[str, Iterable[str]] = {
        "cni": ("type", "ipam", "binDir", "confDir", "installMode", "specVersion"),
        names.operator_network: _network(),
        "logging": ("cni",),
    }
    for name, value in spec.items():
        if name not in _known(names):
            yield name
        elif name in known and isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in value if inner not in known[name])


def cidr(where: str, value: Any) -> Found:
    """Yield the errors of a range of addresses."""
    try:
        Cidr(value)
    except (TypeError, ValueError) as error:
        yield FieldError(where, value, f"is not a CIDR ({error})", "give ADDRESS/LENGTH, such as 10.0.0.0/16 or fd00::/48")


def pool(where: str, entry: Any) -> Found:
    """Yield the errors of a listed pool on its own."""
    switch = one_of(tuple(shape.SWITCH))
    known: dict[str, Rule] = {
        "name": typed(str),
        "cidr": cidr,
        "encapsulation": one_of(tuple(shape.ENCAPSULATIONS)),
        "natOutgoing": switch,
        "disableNewAllocations": typed(bool),
    }
    known |= {field: lambda _where, _value: iter(()) for field in shape.SAME_NAME}  # the rules of pools check them
    found = [*fields(known, where, entry, required=("cidr",))]
    if not found and Cidr(entry["cidr"]).version == 6 and (value := shape.encapsulation_of(entry)).startswith("IPIP"):
        remedy = "give None, VXLAN or VXLANCrossSubnet"
        found.append(FieldError(f"{where}.encapsulation", value, "is not for IPv6", remedy))
    yield from found
    wrong = {error.field for error in found}
    valid = {name: value for name, value in entry.items() if f"{where}.{name}" not in wrong} if isinstance(entry, dict) else {}
    if "cidr" in valid:
        made = shape.pool_of(valid)
        made.metadata["name"] = made.name or _PLACEHOLDER
        for error in pool_errors(made):
            head, _, field = error.field.partition(".")
            path = field if head == "metadata" else _RENAMED.get(field, field)
            yield replace(error, field=f"{where}.{path}")


def encapsulation_errors(entry: Json, where: str, *, host_local: bool, has_bgp: bool) -> Found:
    """Yield why the encapsulation of a listed pool does not go with the IPAM or the BGP of the cluster."""
    value, field = shape.encapsulation_of(entry), f"{where}.encapsulation"
    is_vxlan = value.startswith("VXLAN")
    if host_local and is_vxlan:
        remedy = "give None, or IPIP or IPIPCrossSubnet for IPv4"
        yield FieldError(field, value, f"does not go with {shape.HOST_LOCAL}", remedy)
    if not (host_local or has_bgp or is_vxlan):
        yield FieldError(field, value, "needs BGP", f"give VXLAN or VXLANCrossSubnet, or set bgp to {shape.ENABLED}")


def mebibytes(size: str) -> int:
    """Return a valid size in MiB, at least 1."""
    match = _SIZE.fullmatch(size)
    assert match
    return max(int(match[1]) * _UNITS[match[2]] // _UNITS["Mi"], 1)


def _known(names: Names) -> dict[str, Rule]:
    positive = _number(1, shape.MAX_SECONDS)
    logging: dict[str, Rule] = {
        "logSeverity": one_of(shape.LOG_LEVELS),
        "logFileMaxSize": _size,
        "logFileMaxAgeDays": positive,
        "logFileMaxCount": positive,
    }
    update: dict[str, Rule] = {"type": one_of((shape.ROLLING_UPDATE,)), "rollingUpdate": typed(dict)}
    return {
        "variant": _served((names.operator_plugin,)),
        shape.PROVIDER: one_of(shape.PROVIDERS),
        "cni": _cni(names),
        names.operator_network: partial(_within, _network()),
        "logging": partial(_within, {"cni": partial(_within, logging)}),
        "registry": _registry,
        "imagePath": typed(str),
        "imagePrefix": typed(str),
        "imagePullSecrets": items(partial(_within, {"name": typed(str)}, required=("name",))),
        "controlPlaneReplicas": positive,
        "nodeUpdateStrategy": partial(_within, update),
        "flexVolumePath": typed(str),
        "kubeletVolumePluginPath": typed(str),
        "componentResources": typed(list),
    }


def _cni(names: Names) -> Rule:
    known: dict[str, Rule] = {
        "type": _served((names.operator_plugin,)),
        "ipam": partial(_ipam, (names.operator_plugin, shape.HOST_LOCAL)),
        "binDir": _directory,
        "confDir": _directory,
        "installMode": one_of(shape.install_modes(names)),
        "specVersion": one_of(shape.SPEC_VERSIONS),
    }
    return partial(_within, known)


def _network() -> dict[str, Rule]:
    switch = one_of(tuple(shape.SWITCH))
    return {
        "ipPools": _pools,
        shape.SECONDS: _seconds,
        "bgp": switch,
        "linuxDataplane": one_of(shape.DATAPLANES),
        "hostPorts": switch,
        "containerIPForwarding": switch,
        "multiInterfaceMode": one_of(shape.MULTI_INTERFACE),
        "mtu": _mtu,
        "sysctl": _sysctls,
        "nodeAddressAutodetectionV4": typed(dict),
        "nodeAddressAutodetectionV6": typed(dict),
    }


def _pools(where: str, value: Any) -> Found:
    yield from typed(list)(where, value)
    entries = value if isinstance(value, list) else []
    if len(entries) > shape.MAX_POOLS:
        remedy = f"list at most {shape.MAX_POOLS}, or make further ones with `svcctl pool apply`"
        yield FieldError(where, len(entries), "is the number of pools", remedy)
    valid = {}
    for index, entry in enumerate(entries):
        found = [*pool(f"{where}[{index}]", entry)]
        yield from found
        if not found:
            valid[index] = entry
    yield from _contradictions(where, valid)


def _contradictions(where: str, entries: Mapping[int, Json]) -> Found:
    """Yield the pools that have the name of an earlier one, or addresses of it."""
    for (first, one), (second, other) in combinations(entries.items(), 2):
        if other.get("name") and one.get("name") == other["name"]:
            problem = f"is also the name of ipPools[{first}]"
            yield FieldError(f"{where}[{second}].name", other["name"], problem, "give each pool its own name, or none")
        if Cidr(one["cidr"]).overlaps(Cidr(other["cidr"])):
            word = "is also the range of" if Cidr(one["cidr"]) == Cidr(other["cidr"]) else "overlaps"
            problem, remedy = f"{word} ipPools[{first}] ({one['cidr']})", "give ranges without common addresses"
            yield FieldError(f"{where}[{second}].cidr", other["cidr"], problem, remedy)


def _together(spec: Mapping[str, Any], names: Names) -> Found:
    """Yield the errors of fields that exclude each other. Each is valid on its own; others have errors already."""
    network, where = _object(spec, names.operator_network), f"spec.{names.operator_network}"
    host_local = shape.ipam_kind(_object(_object(spec, "cni"), "ipam")) == shape.HOST_LOCAL
    has_bgp = network.get("bgp") != shape.DISABLED
    given = network.get("ipPools")
    unlisted = [] if host_local else [{"cidr": shape.DEFAULT_CIDR}]
    listed = unlisted if given is None else given if isinstance(given, list) else []
    for index, entry in enumerate(listed):
        if not any(pool("", entry)):
            yield from encapsulation_errors(entry, f"{where}.ipPools[{index}]", host_local=host_local, has_bgp=has_bgp)
    mtu, ranges = network.get("mtu"), [entry["cidr"] for entry in listed if not any(pool("", entry))]
    if type(mtu) is int and MIN_MTU <= mtu < MIN_MTU_IPV6 and any(Cidr(each).version == 6 for each in ranges):
        yield FieldError(f"{where}.mtu", mtu, "is too small for IPv6", f"give at least {MIN_MTU_IPV6}, or 0")
    dataplane, seconds = network.get("linuxDataplane") or shape.IPTABLES, network.get(shape.SECONDS)
    is_silent = dataplane in shape.DATAPLANES and dataplane not in shape.WITH_STATUS_FILES
    if seconds and is_silent and not any(_seconds("", seconds)):
        problem = f"needs a data plane that reports policy, and linuxDataplane is {dataplane}"
        remedy = f"leave it out, or set linuxDataplane to {', '.join(shape.WITH_STATUS_FILES)}"
        yield FieldError(f"{where}.{shape.SECONDS}", seconds, problem, remedy)


def _object(container: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is an object; an empty one if it is missing or of another type."""
    found = container.get(name)
    return found if isinstance(found, dict) else {}


def _sysctls(where: str, value: Any) -> Found:
    """Yield the errors of sysctls of pods. In their keys, dots and slashes separate alike."""
    setting: dict[str, Rule] = {"key": _sysctl_key, "value": typed(str)}
    yield from items(partial(fields, setting, required=tuple(setting)))(where, value)
    seen: dict[str, int] = {}
    for index, entry in enumerate(value if isinstance(value, list) else ()):
        key = entry.get("key") if isinstance(entry, dict) else None
        if not isinstance(key, str):
            continue
        first = seen.setdefault(key.replace("/", "."), index)
        if first != index:
            yield FieldError(f"{where}[{index}].key", key, f"is also the key of sysctl[{first}]", "keep one of them")


def _sysctl_key(where: str, value: Any) -> Found:
    yield from typed(str)(where, value)
    if isinstance(value, str) and not _SYSCTL.fullmatch(value):
        yield FieldError(where, value, "is not a sysctl of a pod's network", "give one such as net.ipv4.tcp_keepalive_time")


def _ipam(words: Sequence[str], where: str, value: Any) -> Found:
    found = [*_within({key: _served(words) for key in shape.IPAM_KEYS}, where, value)]
    yield from found
    if found:
        return
    given = {key: value[key] for key in shape.IPAM_KEYS if value.get(key) is not None}
    first, *others = given or ("",)
    for key in others:
        if given[key] != given[first]:
            problem = f"is another spelling of {first}, which is {given[first]!r}"
            yield FieldError(f"{where}.{key}", given[key], problem, f"leave it out, or give {given[first]}")


def _served(words: Sequence[str]) -> Rule:
    def rule(where: str, value: Any) -> Found:
        if value not in words:
            yield FieldError(where, value, "is not served", f"give {' or '.join(words)}, or leave it out")

    return rule


def _number(least: int, most: int) -> Rule:
    def rule(where: str, value: Any) -> Found:
        if type(value) is not int or not least <= value <= most:
            yield FieldError(where, value, f"is not a number from {least} to {most}", "give one, or leave it out")

    return rule


def _mtu(where: str, value: Any) -> Found:
    if type(value) is not int or not (value == 0 or MIN_MTU <= value <= MAX_MTU):
        remedy = f"give {MIN_MTU} to {MAX_MTU}, or 0 for the kernel's default"
        yield FieldError(where, value, "is not an MTU", remedy)


def _seconds(where: str, value: Any) -> Found:
    if type(value) is not int or not 0 <= value <= shape.MAX_SECONDS:
        yield FieldError(where, value, "is not a number of seconds", f"give 0, which is off, up to {shape.MAX_SECONDS}")


def _size(where: str, value: Any) -> Found:
    if not isinstance(value, str) or not _SIZE.fullmatch(value):
        yield FieldError(where, value, "is not a size", f"give one such as 100Mi, with a unit of {', '.join(_UNITS)}")


def _directory(where: str, value: Any) -> Found:
    if not isinstance(value, str) or not value.startswith("/"):
        yield FieldError(where, value, "is not an absolute path", "give the path of a directory on each node")


def _registry(where: str, value: Any) -> Found:
    yield from typed(str)(where, value)
    if isinstance(value, str) and value and not value.endswith("/"):
        yield FieldError(where, value, "does not end with '/'", f"give {value}/")
