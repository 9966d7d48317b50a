"""The ConfigMap with the network list that the installer writes on each node."""

import json
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.deploy import rbac
from svc.deploy.manifests.pod_parts import certificate_paths
from svc.deploy.manifests.settings import CONF_DIR, CONFIG_KEY, CONFIG_MAP, POLICY_ONLY, Settings

Json = dict[str, Any]

NODE_TOKEN: Final = "__KUBERNETES_NODE_NAME__"  # noqa: S105  # a placeholder
"""What the installer replaces by the name of its node."""

_POLICY_ONLY_MTU: Final = 1500  # of the interfaces that another component makes


def config_map(settings: Settings) -> Json:
    """Return the ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": CONFIG_MAP,
            "namespace": settings.namespace,
            "labels": settings.labels(rbac.node_name(settings.names)),
        },
        "data": {CONFIG_KEY: json.dumps(network_list(settings), indent=2) + "\n"},
    }


def network_list(settings: Settings) -> Json:
    """Return the network list with the part of svc. The installer adds the chained plugins and the CNI version."""
    return {"name": settings.names.network, "plugins": [_plugin(settings)]}


def _plugin(settings: Settings) -> Json:
    names = settings.names
    entry: Json = {
        "type": names.plugin,
        "datastore_type": names.orch_datastore if settings.is_orch else "etcdv3",
        "nodename": NODE_TOKEN,
        "log_file_path": f"{names.log_dir}/cni.log",
        "policy": {"type": names.orch_policy},
        names.orch_section: {"kubeconfig": f"{CONF_DIR}/{names.plugin}-kubeconfig"},
    }
    if not settings.is_orch:
        entry |= {"etcd_endpoints": settings.etcd_endpoints, **certificate_paths(settings)}
    if settings.flavour == POLICY_ONLY:
        entry["mtu"] = _POLICY_ONLY_MTU
    if settings.uses_pod_cidrs:
        return entry | {"ipam": {"type": "host-local", "subnet": "usePodCidr"}}
    return entry | {"ipam": {"type": names.ipam_plugin, **_families(settings)}}


def _families(settings: Settings) -> Json:
    """Return the options by which pods get an address of each pool. Without a pool, and by default, it is one of IPv4."""
    versions = {Cidr(text).version for text in settings.pools}
    if 6 not in versions:
        return {}
    return {"assign_ipv6": "true"} | ({} if 4 in versions else {"assign_ipv4": "false"})
