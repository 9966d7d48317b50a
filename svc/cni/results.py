"""JSON of results, errors and versions, in the CNI version that the runtime requests.

Differences between the versions:

* 0.1.0, 0.2.0: one IPv4 and one IPv6 address, `ip4` and `ip6`, each with its gateway and routes; no interfaces
* 0.3.0 to 0.4.0: lists; an address has its family in `version`
* 1.0.0: the same without `version`
* 1.1.0: more members of interfaces and routes
"""

from typing import Any

from svc.model import cni_versions
from svc.model.errors import SvcError
from svc.model.result import IpConfig, Result

Json = dict[str, Any]

_INTERFACE_1_1 = ("mtu", "socketPath", "pciID")
_ROUTE_1_1 = ("mtu", "advmss", "priority", "table", "scope")


def render(result: Result, version: str) -> Json:
    """Return the JSON of a result. Members that the version does not define are left out."""
    if not cni_versions.at_least(version, "0.3.0"):
        families = {f"ip{family}": _family(result, family) for family in (4, 6)}
        return {"cniVersion": version} | _given(**families, dns=result.dns.to_json())
    return {"cniVersion": version} | _given(
        interfaces=[_since(item.to_json(), _INTERFACE_1_1, version) for item in result.interfaces],
        ips=[_ip(item, version) for item in result.ips],
        routes=[_since(item.to_json(), _ROUTE_1_1, version) for item in result.routes],
        dns=result.dns.to_json(),
    )


def render_error(error: SvcError, version: str) -> Json:
    """Return the JSON of an error. JSON is UTF-8: invalid characters of the message are escaped."""
    data: Json = {"cniVersion": version, "code": int(error.code), "msg": _utf8(error.msg)}
    return data | _given(details=_utf8(error.details))


def render_version(version: str) -> Json:
    """Return the reply to VERSION."""
    return {"cniVersion": version, "supportedVersions": list(cni_versions.SUPPORTED)}


def _family(result: Result, family: int) -> Json:
    """Return the first address of the family with the family's routes; empty if the result lacks one."""
    first = next((item for item in result.ips if item.family == family), None)
    if first is None:
        return {}
    routes = [_since(item.to_json(), _ROUTE_1_1, "0.2.0") for item in result.routes if item.family == family]
    return {"ip": first.address} | _given(gateway=first.gateway, routes=routes)


def _ip(item: IpConfig, version: str) -> Json:
    family = {} if cni_versions.at_least(version, "1.0.0") else {"version": str(item.family)}
    return family | item.to_json()


def _since(data: Json, young: tuple[str, ...], version: str) -> Json:
    """Remove the members that version 1.1.0 introduced, for an older version."""
    if cni_versions.at_least(version, "1.1.0"):
        return data
    return {key: value for key, value in data.items() if key not in young}


def _given(**members: object) -> Json:
    return {key: value for key, value in members.items() if value}


def _utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
