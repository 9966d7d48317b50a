"""IP pools: parsing with defaults, and validation."""

from collections.abc import Iterable, Iterator, Sequence

from svc._core.cidr import Cidr
from svc.model import selector
from svc.model.field_errors import MISSING, FieldError, json_kind
from svc.model.resource import Json, Resource, name_error
from svc.model.selector import Selector, SelectorError
from svc.values import dataclass, replace

WORKLOAD, TUNNEL, LOAD_BALANCER = USES = ("Workload", "Tunnel", "LoadBalancer")
AUTOMATIC, MANUAL = ASSIGNMENT_MODES = ("Automatic", "Manual")
NEVER, ALWAYS, CROSS_SUBNET = ENCAPSULATIONS = ("Never", "Always", "CrossSubnet")

_BLOCK_SIZES = {4: range(20, 33), 6: range(116, 129)}
_BLOCK_SIZE = {4: 26, 6: 122}  # if the resource has none
_UNUSABLE = {  # ranges whose addresses pods cannot use, and their kind
    Cidr("0.0.0.0/8"): "reserved",
    Cidr("::/128"): "unspecified",
    Cidr("::ffff:0:0/96"): "IPv4-mapped",
    Cidr("240.0.0.0/4"): "reserved",
    Cidr("169.254.0.0/16"): "link-local",
    Cidr("fe80::/10"): "link-local",
    Cidr("127.0.0.0/8"): "loopback",
    Cidr("::1/128"): "loopback",
    Cidr("224.0.0.0/4"): "multicast",
    Cidr("ff00::/8"): "multicast",
}
_EXAMPLES = "such as 10.0.0.0/16 or fd00::/48"
_FIELDS: dict[str, type] = {  # in the order in which they are written
    "cidr": str,
    "vxlanMode": str,
    "ipipMode": str,
    "natOutgoing": bool,
    "disabled": bool,
    "disableBGPExport": bool,
    "blockSize": int,
    "nodeSelector": str,
    "namespaceSelector": str,
    "allowedUses": list,
    "assignmentMode": str,
}
FIELD_NAMES = tuple(_FIELDS)
TEXT_FIELDS = (*(name for name, kind in _FIELDS.items() if kind is str), "allowedUses[]")
"""Paths in `spec` whose values are strings."""

_CHOICES = {"vxlanMode": ENCAPSULATIONS, "ipipMode": ENCAPSULATIONS, "assignmentMode": ASSIGNMENT_MODES}

Found = Iterator[FieldError]


@dataclass(frozen=True, slots=True)
class Pool:
    """A range of addresses, divided into blocks of one size (`block_size` is a prefix length)."""

    name: str
    cidr: Cidr
    block_size: int
    node_selector: Selector
    namespace_selector: Selector
    allowed_uses: tuple[str, ...]
    assignment_mode: str
    disabled: bool
    usable: bool  # for new addresses: not disabled, not being deleted, not marked unusable by a controller

    @staticmethod
    def from_resource(resource: Resource) -> "Pool":
        """Return the pool, with defaults. Raise ValueError, with the first field error, if it is unusable."""
        found = next(_reading_errors(resource.spec), None)
        if found:
            raise ValueError(f"IP pool {resource.name!r}: {found.line}")
        spec = _defaulted(resource.spec)
        return Pool(
            name=resource.name,
            cidr=Cidr(spec["cidr"]),
            block_size=spec["blockSize"],
            node_selector=selector.parse(spec["nodeSelector"]),
            namespace_selector=selector.parse(spec["namespaceSelector"]),
            allowed_uses=tuple(spec["allowedUses"]),
            assignment_mode=spec["assignmentMode"],
            disabled=spec["disabled"],
            usable=_usable(resource),
        )


def with_defaults(resource: Resource) -> Resource:
    """Return a checked resource as it is stored: with defaults, a canonical CIDR, and ordered fields that are not empty."""
    spec = _defaulted(resource.spec)
    spec["cidr"] = str(Cidr(spec["cidr"]))
    known = {name: spec[name] for name in _FIELDS if spec[name]}
    unknown = {name: value for name, value in resource.spec.items() if name not in _FIELDS}
    return replace(resource, spec=known | unknown)


def check_pool(resource: Resource, others: Iterable[Pool], existing_blocks: Iterable[Cidr], previous: Pool | None) -> list[str]:
    """Return all field errors of a pool to create, or to replace `previous`. `others` are the stored pools."""
    return [error.line for error in pool_errors(resource, others, existing_blocks, previous)]


def pool_errors(
    resource: Resource, others: Iterable[Pool] = (), existing_blocks: Iterable[Cidr] = (), previous: Pool | None = None
) -> list[FieldError]:
    """Return what `check_pool` does, as field errors."""
    spec = _defaulted({name: value for name, value in resource.spec.items() if not _mistyped(name, value)})
    found = [*name_error(resource), *_unknown_fields(resource.spec), *_type_errors(resource.spec)]
    found += [*_choice_errors(spec), *_selector_errors(spec), *_use_errors(spec), *_cidr_errors(spec)]
    if spec["cidr"] and not list(_cidr_errors(spec)):
        cidr = Cidr(spec["cidr"])
        neighbours = [pool for pool in others if pool.name != resource.name]
        found += [*_range_errors(spec, cidr), *_size_errors(spec, cidr), *_encapsulation_errors(spec, cidr)]
        found += [*_overlap_errors(cidr, neighbours), *_block_errors(spec, cidr, existing_blocks)]
        found += [] if previous is None else _change_errors(spec, cidr, previous)
    return found


def _defaulted(spec: Json) -> Json:
    """Return all known fields. Empty and zero values count as missing."""
    defaults: Json = {name: kind() for name, kind in _FIELDS.items()}
    defaults |= {"vxlanMode": NEVER, "ipipMode": NEVER, "assignmentMode": AUTOMATIC}
    defaults |= {"nodeSelector": "all()", "allowedUses": [WORKLOAD, TUNNEL]}
    defaults["blockSize"] = _BLOCK_SIZE[6 if ":" in str(spec.get("cidr")) else 4]
    return {name: spec.get(name) or default for name, default in defaults.items()}


def _usable(resource: Resource) -> bool:
    if resource.spec.get("disabled") or resource.metadata.get("deletionTimestamp"):
        return False
    conditions = (resource.status or {}).get("conditions")
    unfit = {"type": "Allocatable", "status": "False"}.items()
    return not any(unfit <= condition.items() for condition in conditions or () if isinstance(condition, dict))


def _reading_errors(given: Json) -> Found:
    """Yield the field errors that make a stored pool unusable."""
    yield from _type_errors(given)
    spec = _defaulted(given)
    for use in spec["allowedUses"]:
        if not isinstance(use, str):
            yield FieldError("spec.allowedUses[]", use, f"is {json_kind(use)}", "give strings")
    yield from _cidr_errors(spec)
    yield from _size_errors(spec, Cidr(spec["cidr"]))
    yield from _selector_errors(spec)


def _mistyped(name: str, value: object) -> bool:
    return name in _FIELDS and value is not None and type(value) is not _FIELDS[name]


def _type_errors(given: Json) -> Found:
    if given.get("cidr") in (None, ""):
        yield FieldError("spec.cidr", MISSING, "is missing", f"give the pool's range, {_EXAMPLES}")
    for name, value in given.items():
        if _mistyped(name, value):
            yield _error(given, name, f"is {json_kind(value)}", f"give {json_kind(_FIELDS[name]())}")


def _unknown_fields(given: Json) -> Found:
    for name in given.keys() - _FIELDS.keys():
        yield _error(given, name, "is not a field of an IP pool", f"leave it out, or use one of {', '.join(_FIELDS)}")


def _choice_errors(spec: Json) -> Found:
    for name, choices in _CHOICES.items():
        if spec[name] not in choices:
            yield _error(spec, name, "is not known", f"give one of {', '.join(choices)}")
    for use in spec["allowedUses"]:
        if use not in USES:
            yield FieldError("spec.allowedUses[]", use, "is not known", f"give some of {', '.join(USES)}")


def _selector_errors(spec: Json) -> Found:
    for name in ("nodeSelector", "namespaceSelector"):
        try:
            if selector.parse(spec[name]).uses_global:
                yield _error(spec, name, "uses global()", "select by labels, or with all()")
        except SelectorError as error:
            yield _error(spec, name, "is not a selector", str(error))


def _use_errors(spec: Json) -> Found:
    uses = spec["allowedUses"]
    if TUNNEL in uses and spec["namespaceSelector"]:
        remedy = f"leave it out, or set allowedUses to {[WORKLOAD]}"
        yield _error(spec, "namespaceSelector", f"is not for use {TUNNEL}", remedy)
    if LOAD_BALANCER in uses:
        alone = {"allowedUses": [LOAD_BALANCER], "ipipMode": NEVER, "vxlanMode": NEVER, "disableBGPExport": False}
        for name, wanted in (alone | {"nodeSelector": "all()"}).items():
            if spec[name] != wanted:
                yield _error(spec, name, f"does not go with use {LOAD_BALANCER}", f"set it to {wanted}")


def _cidr_errors(spec: Json) -> Found:
    try:
        Cidr(spec["cidr"] or "0.0.0.0/0")  # a missing CIDR is reported separately
    except ValueError as error:
        yield _error(spec, "cidr", f"is not a CIDR ({str(error).rpartition(': ')[2]})", f"give ADDRESS/LENGTH, {_EXAMPLES}")


def _range_errors(spec: Json, cidr: Cidr) -> Found:
    found = {unusable: kind for unusable, kind in _UNUSABLE.items() if cidr.overlaps(unusable)}
    if found:
        verb = "is" if any(cidr in unusable for unusable in found) else "has addresses that are"
        listed = ", ".join(f"{kind} ({unusable})" for unusable, kind in found.items())
        yield _error(spec, "cidr", f"{verb} {listed}", "choose a range that is routed between nodes")


def _size_errors(spec: Json, cidr: Cidr) -> Found:
    size, sizes = spec["blockSize"], _BLOCK_SIZES[cidr.version]
    if size not in sizes:
        allowed = f"give {sizes[0]} to {sizes[-1]}, or leave it out for {_BLOCK_SIZE[cidr.version]}"
        yield _error(spec, "blockSize", f"is not a prefix length of an IPv{cidr.version} block", allowed)
    elif size < cidr.length and not spec["disabled"]:
        remedy = f"set blockSize to {max(cidr.length, sizes[0])} or more, or give a larger range"
        yield _error(spec, "cidr", f"is smaller than one block of /{size}", remedy)


def _encapsulation_errors(spec: Json, cidr: Cidr) -> Found:
    if spec["ipipMode"] == NEVER:
        return
    if cidr.version == 6:
        yield _error(spec, "ipipMode", "is not for IPv6", "set it to Never; vxlanMode works for both versions")
    elif spec["vxlanMode"] != NEVER:
        yield _error(spec, "ipipMode", f"excludes vxlanMode = {spec['vxlanMode']!r}", "set one of them to Never")


def _overlap_errors(cidr: Cidr, others: Sequence[Pool]) -> Found:
    for pool in others:
        if pool.cidr.overlaps(cidr):
            remedy = "choose another range, or delete that pool first"
            yield FieldError("spec.cidr", str(cidr), f"overlaps IP pool {pool.name!r} ({pool.cidr})", remedy)


def _block_errors(spec: Json, cidr: Cidr, blocks: Iterable[Cidr]) -> Found:
    odd = [block for block in blocks if block.length != spec["blockSize"] and block.overlaps(cidr)]
    if odd:
        remedy = f"set blockSize to {odd[0].length}, or release the addresses of the old blocks first"
        yield _error(spec, "blockSize", f"differs from {len(odd)} existing blocks in the range (such as {odd[0]})", remedy)


def _change_errors(spec: Json, cidr: Cidr, previous: Pool) -> Found:
    remedy = "create a pool of another name, and delete this one"
    if cidr != previous.cidr:
        yield _error(spec, "cidr", f"cannot replace {str(previous.cidr)!r}", remedy)
    if spec["blockSize"] != previous.block_size:
        yield _error(spec, "blockSize", f"cannot replace {previous.block_size}", remedy)
    if LOAD_BALANCER in previous.allowed_uses and LOAD_BALANCER not in spec["allowedUses"]:
        yield _error(spec, "allowedUses", f"cannot replace {list(previous.allowed_uses)}", remedy)


def _error(spec: Json, name: str, problem: str, remedy: str) -> FieldError:
    return FieldError(f"spec.{name}", spec[name], problem, remedy)
