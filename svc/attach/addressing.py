"""Read the pod of an ADD, and resolve the addressing: annotations precede the network configuration (specification, 3)."""

from collections.abc import Sequence
from functools import partial

from svc._core.cidr import Address
from svc.attach.request import AddCall, AddRequest
from svc.attach.sources.base import Addressing
from svc.model.annotations import ADDRESSES, FAMILIES, FLOATING, NO_SETTINGS, POOLS, UNMANAGED, AnnotationSettings
from svc.model.endpoint import PRIMARY_INTERFACE
from svc.model.errors import CallerError, Code
from svc.names import Names
from svc.netconf import fields
from svc.orch.pod_info import PodInfo

ANNOTATION = "annotation: "  # begins a decision


def read_pod(call: AddCall) -> PodInfo:
    """Read pod and namespace from the Kubernetes API, if the ADD needs them, and check in parallel that the datastore is ready.

    If the ADD writes no addresses, always read the readiness, because no later write checks it.
    """
    request, netconf, uses_pools = call.request, call.request.netconf, call.request.source.uses_pools
    ask = call.session.expect_ready if uses_pools else call.session.require_ready
    if not (netconf.orchestrator and request.workload.is_pod and (netconf.policy or uses_pools)):
        ask()
        return PodInfo()
    pods, workload = call.context.orchestrators.pods(netconf.orchestrator), request.workload
    found = pods.read(workload.namespace, workload.pod if netconf.policy else "", request.pod_uid, ask)
    if found.namespace.warning:
        call.trace.warning(found.namespace.warning)
    return found


def resolve_addressing(call: AddCall, pod: PodInfo) -> Addressing:
    """Return the addressing. Raise CallerError if annotations or the address requested by the runtime cannot be satisfied."""
    names, request = call.session.names, call.request
    settings = _annotation_settings(names, request, pod)
    request.source.require_supported(names, settings)
    ipam = request.netconf.ipam
    versions = settings.versions or ipam.versions
    address = _address_argument(call, settings, versions)
    for warning in (
        *settings.warnings,
        *_left_aside(settings, versions),
        *_floating_of_namespace(names, request, pod, settings),
    ):
        call.trace.warning(warning)
    for source in dict.fromkeys(settings.sources.values()):
        call.trace.decide(f"{ANNOTATION}{source}")
    addresses = settings.addresses or ((address,) if address else ())
    return Addressing(pod, versions, {**ipam.pools, **settings.pools}, addresses, settings, partial(_renewed, call, pod))


def resolve_current_addressing(call: AddCall, pod: PodInfo) -> Addressing:
    """Do as `resolve_addressing`, but read a cached namespace again before it causes an error."""
    try:
        return resolve_addressing(call, pod)
    except CallerError:
        renewed = _renewed(call, pod)
        if renewed is None:
            raise
        return renewed


def _renewed(call: AddCall, pod: PodInfo) -> Addressing | None:
    fresh = pod.refreshed()
    return None if fresh.namespace == pod.namespace else resolve_addressing(call, fresh)


def _annotation_settings(names: Names, request: AddRequest, pod: PodInfo) -> AnnotationSettings:
    if pod.pod is None or not (pod.annotations or pod.namespace.annotations):
        return NO_SETTINGS
    # imported late: most calls have no annotations
    from svc.netconf.annotations import ObjectAnnotations, parse_annotations

    workload = request.workload
    own = ObjectAnnotations(f"pod {workload.namespace}/{workload.pod}", pod.annotations)
    settings = parse_annotations(
        names, own, ObjectAnnotations(f"namespace {workload.namespace}", pod.namespace.annotations), request.netconf.features
    )
    return settings if request.id.ifname == PRIMARY_INTERFACE else settings.of_another_interface()


def _address_argument(call: AddCall, settings: AnnotationSettings, versions: tuple[int, ...]) -> Address | None:
    """Return the address that the runtime requests, unless annotations override it. Raise CallerError for a wrong family."""
    address = call.request.address
    if address is None:
        return None
    for name in (ADDRESSES, UNMANAGED, POOLS[address.version], *([FAMILIES] if address.version not in versions else [])):
        if name in settings.sources:
            call.trace.warning(f"CNI_ARGS IP = {str(address)!r} is set aside: {settings.sources[name]} comes first")
            return None
    if address.version not in versions:
        raise CallerError(
            f"CNI_ARGS IP = {str(address)!r} is an IPv{address.version} address, but the network assigns none of that family",
            details=f'ask for an address of the other family, or set ipam.assign_ipv{address.version} to "true"',
            code=Code.ADDRESS_UNAVAILABLE,
        )
    return address


def _left_aside(settings: AnnotationSettings, versions: tuple[int, ...]) -> list[str]:
    """Return a warning for each annotation setting that has no effect."""
    has = {address.version for address in settings.addresses} or set(versions)
    pools = [] if settings.addresses else [version for version in settings.pools if version not in has]
    return [
        *(f"{settings.sources[POOLS[version]]} has no effect: the pod gets no IPv{version} address" for version in pools),
        *(
            f"floating address {address} has no effect: the pod gets no IPv{address.version} address"
            for address in settings.floating
            if address.version not in has
        ),
    ]


def _floating_of_namespace(names: Names, request: AddRequest, pod: PodInfo, settings: AnnotationSettings) -> list[str]:
    """Return a warning if floating IPs of the namespace have no effect: the Kubernetes API reads only those of the pod."""
    own = f"{names.annotation_prefix}/{FLOATING}" in pod.annotations
    if own or not settings.floating or request.where.datastore["kind"] != "orch":
        return []
    return [
        f"{settings.sources[FLOATING]} has no effect: with this datastore only annotations of the pod itself make floating IPs"
    ]


def require_mtu(mtu: int, addresses: Sequence[Address]) -> None:
    """Raise CallerError if an address is IPv6 and the MTU is too small, because the kernel has no IPv6 on such a link.

    The families are known only after the assignment: annotations of the pod or a delegated plugin may choose them.
    """
    if mtu and any(address.version == 6 for address in addresses) and (finding := fields.mtu(mtu, ipv6=True)):
        raise CallerError(
            f"an MTU of {mtu} {finding[0]}",
            details=f"mtu of the network configuration, or what the node agent's MTU file holds: {finding[1]}",
        )
