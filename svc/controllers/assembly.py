"""Which parts make up each controller that the settings enable."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

from svc.controllers.controller import Controller, Shared
from svc.controllers.copies.copier import Copier
from svc.controllers.copies.network_policies import NetworkPolicies
from svc.controllers.copies.profiles import AccountProfiles, NamespaceProfiles
from svc.controllers.copies.workload_endpoints import Endpoints
from svc.controllers.loadbalancer.service_addresses import ServiceAddresses
from svc.controllers.node.addresses.part import Addresses
from svc.controllers.node.host_endpoint_controller import HostEndpoints
from svc.controllers.node.ipam_blocks import IpamBlocks
from svc.controllers.node.ipam_handles import IpamHandles
from svc.controllers.node.ipam_hosts import IpamHosts
from svc.controllers.node.node_deletion import NodeDeletion
from svc.controllers.node.node_labels import NodeLabels
from svc.controllers.node.pools import Pools
from svc.controllers.operator.installation_controller import InstallationController
from svc.controllers.settings import ACCOUNT, LOAD_BALANCER, NAMESPACE, NODE, OPERATOR, POLICY, WORKLOAD, Settings

Part = Controller[Any]
Factory = Callable[[Shared], Part]

_IN_BOTH: dict[str, tuple[Factory, ...]] = {  # by controller: parts for any datastore
    NODE: (Addresses, IpamHandles, IpamBlocks, IpamHosts, HostEndpoints, Pools),
    LOAD_BALANCER: (ServiceAddresses,),
}
_WITH_ETCD: dict[str, tuple[Factory, ...]] = {  # further parts if the datastore has copies of objects of Kubernetes
    POLICY: (lambda shared: Copier(NetworkPolicies(shared.names), shared),),
    NAMESPACE: (lambda shared: Copier(NamespaceProfiles(shared.names), shared),),
    ACCOUNT: (lambda shared: Copier(AccountProfiles(shared.names), shared),),
    WORKLOAD: (Endpoints,),
    NODE: (NodeLabels, NodeDeletion),
}
_IDLE = "idle: policy agents read these objects from the Kubernetes API"
_EMPTY = "not in this version: it does nothing"

log = logging.getLogger("svc.controllers")


def assemble(settings: Settings, shared: Shared) -> list[Part]:
    """Return the parts of the enabled controllers, and log which controllers are idle with this datastore."""
    return [part for name in settings.controllers for part in _parts(name, settings, shared)]


def _parts(name: str, settings: Settings, shared: Shared) -> Iterator[Part]:
    if name == OPERATOR:
        log.info("controller %s is enabled", name)
        yield InstallationController(shared.for_part(), settings.datastore, settings.namespace)
        return
    in_both, with_etcd = _IN_BOTH.get(name, ()), _WITH_ETCD.get(name, ())
    factories = in_both + (with_etcd if settings.has_copies else ())
    if in_both or with_etcd:
        log.info("controller %s is %s", name, "enabled" if factories else _IDLE)
    else:
        log.warning("controller %s is %s", name, _EMPTY)
    for factory in factories:
        yield factory(shared.for_part())
