"""From a network that another plugin gives the addresses of to how that plugin is called."""

from collections.abc import Mapping

from svc.attach.delegation import Delegation
from svc.cni.environment import Call
from svc.model.errors import CallerError
from svc.netconf import hostlocal
from svc.netconf.netconf import NetConf


def delegation_of(netconf: NetConf, call: Call, environment: Mapping[str, str], node: str) -> Delegation:
    """CallerError when it is our own IPAM plugin that was called."""
    if call.ipam:
        raise CallerError(
            f"ipam.type = {netconf.ipam.type!r}, but the IPAM plugin of svc was called",
            details="ipam.type: name the plugin that is to be called",
        )
    return Delegation(
        plugin=netconf.ipam.type,
        netconf=netconf.raw,
        release=hostlocal.for_release(netconf.name, netconf.ipam.data_dir),
        environment=environment,
        access=netconf.orchestrator,
        node=netconf.pod_cidr_node or node,
    )
