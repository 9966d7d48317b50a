"""Readers under test, each with a check that does not use the code under test: what was accepted must be acceptable."""

import ipaddress
import json
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import orjson

from fuzz.run import WrongAcceptance
from svc._core.cidr import Address, Cidr
from svc._core.rtnl import NetlinkError, split, unpack_ack, unpack_address, unpack_link, unpack_neighbour, unpack_route
from svc.admin import documents, kinds, label_selector
from svc.agent import introspection as requests
from svc.cni import spool_file as spool_files
from svc.cni.environment import parse_environment
from svc.cni.frame import FrameError, Handover, ReplyReader, RequestReader, pack_request
from svc.cni.introspection_frame import REQUEST_LIMIT, DocumentReader, pack_document
from svc.model import selector
from svc.model.annotations import Features
from svc.model.errors import CallerError
from svc.model.ipam import Block
from svc.model.keys import AffinityKey, BlockKey, HandleKey, IpamConfigKey, Key, ResourceKey
from svc.model.kv_codec import Codec
from svc.names import DEFAULT
from svc.netconf import netconf
from svc.netconf.annotations import ObjectAnnotations, parse_annotations
from svc.netconf.args import parse_args

CODEC: Final = Codec(DEFAULT)
CIDR: Final = Cidr("10.0.0.0/30")
DOCUMENTS: Final[tuple[Key[Any], ...]] = (
    HandleKey("h"),
    AffinityKey("n", CIDR),
    IpamConfigKey(),
    ResourceKey("IPPool", "p"),
)
KINDS: Final = kinds.table(DEFAULT, "")
KINDS_OF_REQUESTS: Final = requests.KINDS
LABELS: Final[tuple[dict[str, str], ...]] = ({}, {"a": "b"}, {"a": "", "zone": "x"}, {"has": "in", "a/b": "c"})
_OBJECT: Final = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9._]{0,252}")
_NETWORK: Final = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9_.]{0,123}")
_CONTAINER: Final = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9_.]*")
_READERS: Final = (unpack_ack, unpack_link, unpack_address, unpack_route, unpack_neighbour)


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise WrongAcceptance(problem)


def request_frame(data: bytes) -> str:
    """Read the frame in two pieces. Its sizes are those of its parts, and it survives packing."""
    cut = len(data) * 7919 % (len(data) + 1)
    reader = RequestReader()
    early = reader.feed(data[:cut])
    call = early or reader.feed(data[cut:])
    if call is None:
        return "incomplete"
    data = data[:cut] if early else data
    start = 52 if call.protocol == 2 else 4
    require(start + 20 + sum(struct.unpack_from("<4I", data, start)) == len(data), "the sizes are not those of the parts")
    again = RequestReader().feed(pack_request(call))
    require(again == call, f"{again} is not {call}")
    return f"layout {call.protocol}"


def reply_frame(data: bytes) -> str:
    """Read the reply in two pieces. Standard output and error are its end."""
    reader, cut = ReplyReader(), len(data) * 7919 % (len(data) + 1)
    try:
        early = reader.feed(data[:cut])
        reply = early or reader.feed(data[cut:])
    except Handover as handover:
        require(len(handover.continuation) <= 20 and handover.seconds >= 0, "the handover is not one")
        return "handover"
    if reply is None:
        return "incomplete"
    data = data[:cut] if early else data
    require(data.endswith(reply.stdout + reply.stderr) and 0 <= reply.status <= 255, f"{reply} is not the frame's")
    return "reply"


def spool_file(data: bytes) -> str:
    """Read a file of the spool, and its request with a header that is right. A file that is accepted survives packing."""
    with suppress(FrameError):
        found = spool_files.read(data)
        require(spool_files.pack(data[64:], found.boot_id, found.nanoseconds) == data, "the file changes")
    spooled = spool_files.read(spool_files.pack(data[64:], "0" * 36, len(data)))
    require(spooled.call.environment["CNI_COMMAND"] == "DEL", "its verb is another one than DEL")
    return "DEL"


def introspection_frame(data: bytes) -> str:
    """Read the frame in two pieces. The document is what the length says, and survives packing."""
    reader, cut = DocumentReader(REQUEST_LIMIT), len(data) * 7919 % (len(data) + 1)
    early = reader.feed(data[:cut])
    found = early if early is not None else reader.feed(data[cut:])
    if found is None:
        return "incomplete"
    data = data if early is None else data[:cut]
    require(len(found) <= REQUEST_LIMIT and data[36:] == found, "the document is not the frame's")
    require(DocumentReader(REQUEST_LIMIT).feed(pack_document(found, REQUEST_LIMIT)) == found, "the document changes")
    return "document"


def introspection(data: bytes) -> str:
    """Answer a request without an agent's state. A refusal names field, problem and remedy."""
    kinds = {name: replace(kind, report=lambda _view, _options: []) for name, kind in KINDS_OF_REQUESTS.items()}
    with patch.object(requests, "KINDS", kinds):
        reply = requests.answer(None, data)  # type: ignore[arg-type]
    require(len(orjson.dumps(reply)) < 1 << 20, "the reply is large")
    if refusal := reply.get("error"):
        require(all(refusal[part] for part in ("problem", "remedy")) and "field" in refusal, f"{refusal} is incomplete")
        raise ValueError(refusal["problem"])
    require(reply["kind"] in kinds and reply["data"] == [], f"{reply} is not an answer")
    return str(reply["kind"])


def network_configuration(data: bytes) -> str:
    """Also read it leniently, as a DEL does."""
    with suppress(CallerError):
        netconf.parse(data, DEFAULT, lenient=True)
    found = netconf.parse(data, DEFAULT)
    document = json.loads(data)
    require(_NETWORK.fullmatch(document["name"]) is not None and found.name == document["name"], "the name")
    require(found.mtu == 0 or 68 <= found.mtu <= 65535, f"mtu {found.mtu}")
    require(0 <= found.num_queues <= 4096, f"num_queues {found.num_queues}")
    require(found.log_level in ("ERROR", "WARNING", "INFO", "DEBUG"), f"log_level {found.log_level}")
    for name, kind in (("mtu", int), ("nodename", str), ("ipam", dict), ("log_file_path", str), ("readiness_gates", list)):
        require(document.get(name) is None or type(document[name]) is kind, f"{name} = {document.get(name)!r}")
    for family in ("assign_ipv4", "assign_ipv6"):
        word = document["ipam"].get(family)
        require(word is None or (isinstance(word, str) and word.lower() in ("true", "false")), f"{family} = {word!r}")
    return found.datastore.kind


def cni_args(data: bytes) -> str:
    text = data.decode("utf-8", "surrogateescape")
    parse_args(text, lenient=True)
    found = parse_args(text)
    require(all(pair.count("=") == 1 for pair in text.split(";")) or not text, "not pairs")
    require(not found.ip or str(ipaddress.ip_address(found.ip)) == found.ip, f"address {found.ip}")
    require(bool(found.pod_name) == bool(found.pod_namespace), "half a pod")
    require(not found.pod_name or _OBJECT.fullmatch(found.pod_name) is not None, f"pod {found.pod_name!r}")
    return ",".join(name for name in ("ip", "pod_name", "others") if getattr(found, name))


def environment(data: bytes) -> str:
    """Read variables: KEY=VALUE, each ended by a NUL."""
    pairs = (each.partition(b"=") for each in data.split(b"\0"))
    variables = {key.decode("utf-8", "replace"): value.decode("utf-8", "surrogateescape") for key, _, value in pairs}
    call = parse_environment(variables, ipam=len(data) % 2 == 0)
    require(not call.container_id or _CONTAINER.fullmatch(call.container_id) is not None, f"container {call.container_id!r}")
    require(len(call.ifname) <= 15 and not set(call.ifname) & set("/: \t\n"), f"interface {call.ifname!r}")
    require(call.ifname not in (".", ".."), f"interface {call.ifname!r}")
    return call.verb


def annotations(data: bytes) -> str:
    """Read a JSON object with annotations of a pod, and those of its namespace in `namespace`."""
    document = json.loads(data.decode("utf-8", "replace"))
    given = document if isinstance(document, dict) else {}
    further = given.pop("namespace", None)
    of_pod, of_namespace = (
        {f"{DEFAULT.annotation_prefix}/{name}": text for name, text in each.items() if isinstance(text, str)}
        for each in (given, further if isinstance(further, dict) else {})
    )
    pod, namespace = ObjectAnnotations("pod a/b", of_pod), ObjectAnnotations("namespace a", of_namespace)
    found = parse_annotations(DEFAULT, pod, namespace, Features(ip_addrs_no_ipam=True, floating_ips=True))
    addresses = [ipaddress.ip_address(str(each)) for each in found.addresses]
    require(len({each.version for each in addresses}) == len(addresses), f"addresses {addresses}")
    require(not any(each.is_loopback or each.is_multicast or each.is_unspecified for each in addresses), f"{addresses}")
    require(set(found.versions) <= {4, 6}, f"families {found.versions}")
    mac = bytes.fromhex(re.sub("[:.-]", "", found.mac))
    require(len(mac) in (0, 6) and not (mac and mac[0] & 1), f"hardware address {found.mac}")
    return ",".join(sorted(found.sources))


def address(data: bytes) -> str:
    """Read an address or a network. Another library reads the same."""
    text = data.decode("utf-8", "replace")
    if "/" not in text:
        found = Address(text)
        require(found.packed == _accepted(ipaddress.ip_address, text).packed, f"{text!r} is not {found}")
        require(Address(str(found)) == found, f"{found} has no canonical text")
        return f"IPv{found.version}"
    network = Cidr(text)
    other = _accepted(ipaddress.ip_network, text)
    same = (network.first.packed, network.length) == (other.network_address.packed, other.prefixlen)
    require(same and Cidr(str(network)) == network, f"{text!r} is not {network}")
    return f"IPv{network.version}/{network.length}"


def _accepted(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise WrongAcceptance(f"{text!r} is accepted: {error}") from None


def pool_selector(data: bytes) -> str:
    """A selector and its canonical text match the same labels."""
    return _same_selector(selector.parse(data.decode("utf-8", "replace")))


def command_selector(data: bytes) -> str:
    return _same_selector(label_selector.parse(data.decode("utf-8", "replace")))


def _same_selector(found: selector.Selector) -> str:
    again = selector.parse(str(found))
    require(str(again) == str(found), f"{again} is not {found}")
    require([again.matches(each) for each in LABELS] == [found.matches(each) for each in LABELS], f"{found} has two meanings")
    return re.sub(r"[\w./-]+|'[^']*'|\"[^\"]*\"", "x", str(found))[:40]


def block(data: bytes) -> str:
    """Each ordinal is either allocated, by an attribute that exists, or free. The document survives encoding."""
    found = CODEC.decode(BlockKey(CIDR), data)
    document = json.loads(data)
    require(document["cidr"] == str(CIDR), f"block {document['cidr']}")
    allocated = {ordinal: tag for ordinal, tag in enumerate(document["allocations"]) if tag is not None}
    require(len(document["allocations"]) == 4, "the number of addresses")
    require(sorted([*allocated, *document["unallocated"]]) == [0, 1, 2, 3], "free and allocated")
    require(all(0 <= tag < len(document["attributes"] or ()) for tag in allocated.values()), "an attribute is missing")
    again = CODEC.decode(BlockKey(CIDR), CODEC.encode(found))
    require(_form(again) == _form(found), f"{again} is not {found}")
    return f"{len(allocated)} allocated"


def _form(found: Block) -> Any:
    return found.to_json()


def document(data: bytes) -> str:
    """The length chooses the kind. A document survives encoding."""
    key = DOCUMENTS[len(data) % len(DOCUMENTS)]
    found = CODEC.decode(key, data)
    again = CODEC.decode(key, CODEC.encode(found))
    require(again == found, f"{again} is not {found}")
    return type(found).__name__


def netlink(data: bytes) -> str:
    """Each parser reads the datagram or refuses it. Messages are whole and within the datagram."""
    answers = []
    for read in _READERS:
        try:
            answers.append(str(read(data) is not None))
        except NetlinkError as refusal:
            answers.append(str(refusal.errno))
    messages = [message for _, _, message in split(data)]
    require(sum(map(len, messages)) <= len(data), "more than the datagram")
    require(all(len(each) >= 16 for each in messages), "a message without a header")
    return " ".join(answers)


def manifest(data: bytes) -> str:
    """Read documents as `svcctl apply` does."""
    wanted, problems = documents.read([("file", data)], KINDS, DEFAULT)
    for each in wanted:
        require(isinstance(each.resource.spec, dict), f"spec {each.resource.spec!r}")
        json.dumps(each.resource.to_json(DEFAULT.api_version), ensure_ascii=False).encode()  # datastores are written in UTF-8
        require(all(isinstance(value, str) for value in each.resource.labels.values()), f"labels {each.resource.labels!r}")
    if problems:
        raise CallerError("; ".join(problems))
    return ",".join(each.kind.name for each in wanted)
