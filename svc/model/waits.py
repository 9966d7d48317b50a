"""Settings of waits during an ADD, from the network configuration, and the parser of readiness gates."""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from svc.values import dataclass

MAX_URL: Final = 2048  # bytes, the usual limit of servers
_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"(?=.{1,253}\.?\Z)[\w\-]{1,63}(\.[\w\-]{1,63})*\.?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TlsTrust:
    """The verification of a readiness gate's certificate: off, or with the authorities in a file (empty: the system's)."""

    verify: bool = True
    ca_file: str = ""


CHECKED = TlsTrust()


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Readiness gates (specification, R6): all `urls` must answer within `seconds`."""

    urls: tuple[str, ...] = ()
    seconds: float = 30
    trust: TlsTrust = CHECKED


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The wait for policy setup (specification, R7); off if `seconds` is 0. An empty directory is the default one."""

    seconds: float = 0
    directory: str = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """A parsed readiness gate. `host` is a name or an address without brackets; `authority` is unchanged from the URL."""

    url: str
    tls: bool
    host: str
    port: int
    authority: str
    target: str  # path and query


NO_GATES = GateSettings()
NO_POLICY_SETUP = PolicySettings()


def parse_gate(text: str) -> Gate:
    """Parse a readiness gate. Raise ValueError, whose text is the problem, unless the text is a usable http or https URL."""
    _require(len(text) <= MAX_URL, f"has {len(text)} characters, more than {MAX_URL}")
    _require(text.isascii() and text.isprintable() and " " not in text, "has characters that a URL cannot have")
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise ValueError(f"is not a URL ({error})") from None
    _require(url.scheme in _PORTS, "is not an http or https URL")
    _require("@" not in url.netloc, "has credentials, which gates are not asked with")
    _require(port != 0, "has port 0")
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    host = _host(url.hostname or "", bracketed="[" in url.netloc)
    return Gate(text, url.scheme == "https", host, port or _PORTS[url.scheme], url.netloc, target)


def _host(text: str, *, bracketed: bool) -> str:
    _require(bool(text), "has no host")
    if not bracketed:
        _require(bool(_HOST.fullmatch(text)), "has no host name or address that could exist")
        return text
    address = text.replace("%25", "%", 1)  # the escaped '%' before an IPv6 zone, RFC 6874
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        raise ValueError("has no IPv6 address in its brackets") from None
    return address


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)
