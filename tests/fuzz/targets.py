"""The table of all targets, with inputs to begin with. To add a target, add an entry."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from fuzz import readers
from fuzz.run import Target
from svc._core.rtnl import NetlinkError
from svc.cni.call_io import CallInput
from svc.cni.frame import FrameError, pack_alive, pack_handover, pack_reply, pack_request, pack_timeout_extension
from svc.cni.introspection_frame import pack_document
from svc.cni.spool_file import pack as pack_spool_file
from svc.model.errors import SvcError
from svc.model.selector import SelectorError
from svc.names import DEFAULT

ROOT: Final = Path(__file__).parents[2]
CORPUS: Final = Path(__file__).parent / "corpus"
_FIXTURES: Final = ROOT / "tests" / "unit" / "fixtures"

_CALL: Final = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/proc/1/ns/net", "CNI_IFNAME": "eth0"}
_NETCONF: Final[dict[str, Any]] = {
    "cniVersion": "1.1.0",
    "name": "net",
    "type": "svc",
    "datastore_type": "embedded",
    "ipam": {"type": "svc-ipam", "assign_ipv4": "true", "assign_ipv6": "false", "ipv4_pools": ["10.0.0.0/16", "blue"]},
    "mtu": 1450,
    "num_queues": 2,
    "log_level": "info",
    "readiness_gates": ["http://10.0.0.1:8080/ready"],
    "feature_control": {"ip_addrs_no_ipam": True},
    "container_settings": {"allow_ip_forwarding": True},
}
_BLOCK: Final[dict[str, Any]] = {
    "cidr": "10.0.0.0/30",
    "affinity": "host:n",
    "allocations": [0, None, 1, None],
    "unallocated": [1, 3],
    "attributes": [{"handle_id": "h", "secondary": {"pod": "p"}}, {"handle_id": "i", "releasedAt": "2026-01-02T03:04:05Z"}],
    "sequenceNumber": 1784000000000000000,
    "sequenceNumberForAllocation": {"0": 4, "2": 5},
    "deleted": False,
}


def _json(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def _words(text: str) -> list[bytes]:
    return [word.encode() for word in text.split()]


def _plugins() -> Iterator[bytes]:
    for path in sorted((ROOT / "examples").glob("*.conflist")):
        document = json.loads(path.read_text())
        yield json.dumps({"cniVersion": document["cniVersion"], "name": document["name"], **document["plugins"][0]}).encode()


def _datagrams() -> list[bytes]:
    return [bytes.fromhex(path.read_text()) for path in sorted((_FIXTURES / "netlink").glob("*.hex"))]


def _requests() -> Iterator[bytes]:
    for protocol in (1, 2):
        yield pack_request(CallInput("svc", _CALL, json.dumps(_NETCONF).encode(), has_descriptor=True, protocol=protocol))
        yield pack_request(CallInput("svc-ipam", {"CNI_COMMAND": "DEL"}, b"", profile="calico", protocol=protocol))
    yield pack_request(CallInput("svc", _CALL, b"{}", continuation=b"17"))


def _spool_files() -> Iterator[bytes]:
    for variables in ({"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0"}, _CALL):
        yield pack_spool_file(pack_request(CallInput("svc", variables, b'{"name":"net"}')), "0" * 36, 1)


def _replies() -> list[bytes]:
    whole = [pack_reply(0, b"{}", b""), pack_reply(1, b'{"code":7}', b"a line\n"), pack_reply(0, b"", b"", 1)]
    return [*whole, pack_alive() + whole[0], pack_timeout_extension(90) + whole[1], pack_handover(b"17", 20)]


_REQUESTS: Final = _json({"kind": "state"}, {"kind": "attachments", "container": "c1"}, {"kind": "calls", "container": "c1"})
_ANNOTATIONS: Final = _json(
    {"ipv4pools": '["blue", "10.71.0.0/16"]', "ipFamilies": '["IPv4", "IPv6"]', "hwAddr": "0a:58:0a:41:00:07"},
    {"ipAddrs": '["10.0.0.7", "fd00::7"]', "namespace": {"ipv6pools": '["fd65::/112"]'}},
    {"ipAddrsNoIpam": '["10.9.0.1"]', "floatingIPs": '["192.0.2.7"]', "allowedSourcePrefixes": '["10.8.0.0/24"]'},
)
_DOCUMENTS: Final = [  # in the order of `readers.DOCUMENTS`, with blanks for the length that chooses the kind
    text + b" " * ((number - len(text)) % len(readers.DOCUMENTS))
    for number, text in enumerate(
        _json(
            {"block": {"10.0.0.0/30": 1}, "deleted": False},
            {"state": "confirmed", "deleted": False},
            {"strict_affinity": True, "maxBlocksPerHost": 4},
            {"kind": "IPPool", "apiVersion": DEFAULT.api_version, "metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/24"}},
        )
    )
]
_MANIFESTS: Final = [
    *((ROOT / "examples" / name).read_bytes() for name in ("pools.yaml", "reservation.yaml")),
    b"---\n---\n",
    *_json(
        {
            "apiVersion": DEFAULT.api_version,
            "kind": "List",
            "items": [
                {"apiVersion": DEFAULT.api_version, "kind": "HostEndpoint", "metadata": {"name": "h"}, "spec": {"node": "n"}}
            ],
        }
    ),
]
_SELECTORS: Final = [
    b'zone == "a" && has(rack)',
    b"!(a in {'x', 'y'}) || b not in {'z'}",
    b'name starts with "web" && name ends with "1" || name contains "x"',
    b"all()",
    b"a != 'b' && !has(c)",
]
_SELECTOR_WORDS: Final = _words("== != in not && || ! ( ) { } has all() global() contains starts with ends ' \" ,")

TARGETS: Final[Sequence[Target]] = (
    Target("request-frame", readers.request_frame, (FrameError,), list(_requests())),
    Target("spool-file", readers.spool_file, (FrameError,), list(_spool_files())),
    Target("reply-frame", readers.reply_frame, (FrameError,), _replies()),
    Target(
        "introspection-frame", readers.introspection_frame, (FrameError,), [pack_document(text, 4096) for text in _REQUESTS]
    ),
    Target("introspection", readers.introspection, (ValueError,), _REQUESTS, _words("reconcile container kind null calls ,")),
    Target(
        "netconf",
        readers.network_configuration,
        (SvcError,),
        [*_json(_NETCONF), *_plugins()],
        _words("null true etcd_endpoints orch kubernetes ipam policy prevResult cni.dev/valid-attachments routes subnet"),
    ),
    Target(
        "cni-args",
        readers.cni_args,
        (SvcError,),
        [b"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;IP=10.0.0.7", b"IP=fd00::1", b""],
        _words("; = IP= K8S_POD_NAME= K8S_POD_UID= IgnoreUnknown= true false 10.0.0.1/24 ::"),
    ),
    Target(
        "environment",
        readers.environment,
        (SvcError,),
        ["\0".join(f"{key}={value}" for key, value in _CALL.items()).encode(), b"CNI_COMMAND=GC\0CNI_PATH=/opt/cni/bin"],
        [b"\0", b"=", *_words("CNI_COMMAND= CNI_IFNAME= CNI_NETNS= CNI_PATH= CNI_ARGS= TRACEPARENT= CHECK STATUS VERSION ..")],
    ),
    Target("annotations", readers.annotations, (SvcError, ValueError, RecursionError), _ANNOTATIONS),
    Target(
        "address",
        readers.address,
        (ValueError,),
        [
            b"10.0.0.7",
            b"10.65.0.0/16",
            b"fd00::7",
            b"fd65::/112",
            b"::ffff:10.0.0.1",
            b"2001:db8:0:1::/64",
            b"::",
            b"0.0.0.0/0",
        ],
        _words(":: : . / 255 256 ffff /32 /128 %eth0 0x1 01 ::1 1::"),
    ),
    Target("selector", readers.pool_selector, (SelectorError,), _SELECTORS, _SELECTOR_WORDS),
    Target(
        "label-selector",
        readers.command_selector,
        (SelectorError,),
        [b"rack=a,zone!=b", b"env in (test,dev),tier notin (web)", b"has-gpu,!old", *_SELECTORS[:2]],
        [*_SELECTOR_WORDS, *_words("notin ( ) = !")],
    ),
    Target("block", readers.block, (ValueError,), _json(_BLOCK)),
    Target("document", readers.document, (ValueError,), _DOCUMENTS),
    Target("netlink", readers.netlink, (NetlinkError,), _datagrams()),
    Target(
        "manifest",
        readers.manifest,
        (SvcError,),
        _MANIFESTS,
        [b"\n---\n", *_words("&a *a <<: !!binary !!set ? - kind: List items: metadata: 2026-01-02 0x10 ~ |")],
    ),
)


def kept(name: str) -> list[bytes]:
    """Return the inputs that earlier runs have kept for a target."""
    path = CORPUS / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line).encode("latin-1") for line in lines]


def keep(name: str, inputs: Sequence[bytes]) -> None:
    """Add inputs to those that are kept."""
    CORPUS.mkdir(exist_ok=True)
    with (CORPUS / f"{name}.jsonl").open("a") as file:
        file.writelines(json.dumps(data.decode("latin-1")) + "\n" for data in inputs)
