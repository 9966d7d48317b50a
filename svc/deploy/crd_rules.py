"""Rules for custom resources in CEL, which API servers since 1.25 check at each write.

svcctl has the same rules, and more. A rule here refuses only what svcctl refuses: a rule that is too strict would lock objects
that other programs have written, also against changes of their status.
"""

from typing import Any, Final

from svc.model import controllers_configuration as controllers
from svc.model.custom_resources import CONFIG, CONFIG_NAME
from svc.model.pool import LOAD_BALANCER, NEVER, TUNNEL

Json = dict[str, Any]

VALIDATIONS: Final = "x-kubernetes-validations"
_MAX_USES: Final = 8  # of `allowedUses`: the API server estimates the cost of rules by the length of lists
_MAX_TEXT: Final = {"cidr": 64, "nodeSelector": 1024, "namespaceSelector": 1024}
_IS_V6: Final = "self.cidr.contains(':')"
_OLD_IS_V6: Final = "oldSelf.cidr.contains(':')"
_HAS_IPIP: Final = f"(has(self.ipipMode) && self.ipipMode != '{NEVER}')"
_HAS_VXLAN: Final = f"(has(self.vxlanMode) && self.vxlanMode != '{NEVER}')"
_USES: Final = "(has(self.allowedUses) && size(self.allowedUses) > 0)"  # an empty list counts as the default one
_IS_BALANCER: Final = f"({_USES} && '{LOAD_BALANCER}' in self.allowedUses)"
_WAS_BALANCER: Final = _IS_BALANCER.replace("self.", "oldSelf.")


def _size(this: str) -> str:
    """Return the block size of a pool; that of its family if it is missing or 0."""
    default = f"({this}.cidr.contains(':') ? 122 : 26)"
    return f"(has({this}.blockSize) && {this}.blockSize != 0 ? {this}.blockSize : {default})"


_SPEC: Final[dict[str, tuple[tuple[str, str], ...]]] = {  # by kind: rule, and the message if it is false
    "IPPool": (
        # An IPv6 range has several spellings, and svcctl writes the canonical one.
        (f"self.cidr == oldSelf.cidr || ({_IS_V6} && {_OLD_IS_V6})", "cidr cannot change: create a pool of another name"),
        (f"{_size('self')} == {_size('oldSelf')}", "blockSize cannot change: create a pool of another name"),
        (
            f"{_IS_V6} ? {_size('self')} in [{', '.join(map(str, range(116, 129)))}]"
            f" : {_size('self')} in [{', '.join(map(str, range(20, 33)))}]",
            "blockSize: give 20 to 32 for IPv4, 116 to 128 for IPv6",
        ),
        (f"!{_HAS_IPIP} || !{_IS_V6}", f"ipipMode is not for IPv6: set it to {NEVER}"),
        (f"!{_HAS_IPIP} || !{_HAS_VXLAN}", f"ipipMode and vxlanMode exclude each other: set one of them to {NEVER}"),
        (
            f"!{_IS_BALANCER} || (size(self.allowedUses) == 1 && !{_HAS_IPIP} && !{_HAS_VXLAN}"
            " && !(has(self.disableBGPExport) && self.disableBGPExport)"
            " && (!has(self.nodeSelector) || self.nodeSelector in ['', 'all()']))",
            f"use {LOAD_BALANCER} goes with no other use, encapsulation, node selector or disableBGPExport",
        ),
        (f"!{_WAS_BALANCER} || {_IS_BALANCER}", f"a pool with use {LOAD_BALANCER} keeps it: create a pool of another name"),
        (
            f"!has(self.namespaceSelector) || self.namespaceSelector == '' || ({_USES} && !('{TUNNEL}' in self.allowedUses))",
            f"namespaceSelector is not for use {TUNNEL}: set allowedUses",
        ),
    ),
    "HostEndpoint": (
        ("has(self.node) && self.node != ''", "node is missing: name the node"),
        (
            "(has(self.interfaceName) && self.interfaceName != '') || (has(self.expectedIPs) && size(self.expectedIPs) > 0)",
            'interfaceName is missing: name an interface, or "*" for all of the node, or give expectedIPs',
        ),
    ),
    "ClusterInformation": (
        (
            "!has(self.clusterGUID) || !has(oldSelf.clusterGUID) || self.clusterGUID == '' || oldSelf.clusterGUID == ''"
            " || self.clusterGUID == oldSelf.clusterGUID",
            "clusterGUID cannot change: it identifies the data",
        ),
    ),
    **dict.fromkeys(
        CONFIG.values(),
        (
            (
                "self.strictAffinity || self.autoAllocateBlocks",
                "without autoAllocateBlocks, strictAffinity must be true",
            ),
        ),
    ),
}
_SINGLETONS: Final = ("ClusterInformation", controllers.KIND, *CONFIG.values())


def add_rules(kind: str, schema: Json) -> None:
    """Add the rules of a kind to the schema of its objects."""
    spec = schema["properties"]["spec"]
    if rules := _SPEC.get(kind):
        spec[VALIDATIONS] = [{"rule": rule, "message": message} for rule, message in rules]
    if kind == "IPPool":
        for name, longest in _MAX_TEXT.items():
            spec["properties"][name] = spec["properties"][name] | {"maxLength": longest}
        spec["properties"]["allowedUses"] = spec["properties"]["allowedUses"] | {"maxItems": _MAX_USES}
    if kind in _SINGLETONS:
        message = f"only one object of this kind counts: name it {CONFIG_NAME!r}"
        schema[VALIDATIONS] = [{"rule": f"self.metadata.name == '{CONFIG_NAME}'", "message": message}]
