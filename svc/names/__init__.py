"""Every name that a deployment may change, in one record.

The defaults are ours. A deployment that shares its datastore with other software replaces them with a profile; no
other module spells a key root, an API group or an interface prefix.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """What objects, files and interfaces are called."""

    plugin: str = "svc"  # CNI type of the network plugin, and its executable
    ipam_plugin: str = "svc-ipam"  # CNI type of the IPAM plugin, and its executable
    annotation_prefix: str = "cni.svc.internal"
    orch_domain: str = "kubernetes.io"
    api_version: str = "svc.internal/v3"  # as written in resources
    crd_api_version: str = "crd.svc.internal/v1"  # of the custom resources that back them
    key_root: str = "/svc"  # of every key in a key-value store
    interface_prefix: str = "svc"  # of host-side interfaces; 11 characters follow
    orchestrator: str = "k8s"  # in endpoints
    label_prefix: str = "svc.internal"  # of labels that we set and read
    controllers: str = "svc-controllers"
    state_dir: str = "/var/lib/svc"
    run_dir: str = "/var/run/svc"
    log_dir: str = "/var/log/svc/cni"
    operator_domain: str = "operator.svc.internal"  # of labels and annotations that an operator puts on custom resources


DEFAULT = Names()
