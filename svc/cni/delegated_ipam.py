"""Address source for networks with another IPAM plugin."""

from collections.abc import Mapping

from svc.attach.sources.delegated import DelegatedSource
from svc.netconf import host_local
from svc.netconf.netconf import NetConf


def delegated_source(netconf: NetConf, environment: Mapping[str, str], node: str = "") -> DelegatedSource:
    """Return the source of the network's addresses. Only ADD needs `node`: by default it uses the pod CIDRs of that node."""
    return DelegatedSource(
        plugin=netconf.ipam.type,
        release_netconf=host_local.for_release(netconf.name, netconf.ipam.data_dir),
        environment=environment,
        netconf=netconf.raw,
        access=netconf.orchestrator,
        node=netconf.pod_cidr_node or node,
    )
