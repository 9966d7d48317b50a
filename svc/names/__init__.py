"""Every name that a deployment may change, in one record.

A deployment that shares its datastore with other software replaces the defaults with a profile (`svc.netconf.names_profiles`;
those in `profiles/` are shipped). No other module spells a key root, an API group or an interface prefix.
`docs/reference/names.md` says what each field is for.
"""

from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """What objects, files and interfaces are called."""

    plugin: str = "svc"  # CNI type of the network plugin, and its executable
    ipam_plugin: str = "svc-ipam"  # CNI type of the IPAM plugin, and its executable
    annotation_prefix: str = "cni.svc.internal"
    orch_domain: str = "kubernetes.io"
    api_version: str = "svc.internal/v3"  # as written in resources; in a key-value store also part of their keys
    crd_api_version: str = "crd.svc.internal/v1"  # of the custom resources that back them
    key_root: str = "/svc"  # of every key in a key-value store
    interface_prefix: str = "svc"  # of host-side interfaces; 11 characters follow
    orchestrator: str = "k8s"  # in endpoints
    label_prefix: str = "svc.internal"  # of labels that we set and read, and of the annotations of nodes
    controllers: str = "svc-controllers"
    state_dir: str = "/var/lib/svc"
    run_dir: str = "/var/run/svc"
    log_dir: str = "/var/log/svc/cni"

    orch_section: str = "orch"  # netconf: the section with the access to the orchestrator's API
    orch_api_root: str = "orch_api_root"  # netconf: the API's URL in it
    orch_policy: str = "orch"  # netconf: policy.type
    orch_datastore: str = "orch"  # netconf: datastore_type of the orchestrator's API

    qos_prefix: str = "qos.svc.internal"  # of annotations that shape traffic
    native_domains: tuple[str, ...] = ("svc.internal/", "operator.svc.internal/")  # labels that custom resources carry openly
    namespace_profile: str = "kns."  # endpoint profile of a namespace; its name follows
    service_account_profile: str = "ksa."  # of a service account; namespace, dot and name follow
    namespace_label: str = "pcns."  # namespace's labels, as its profile hands them on
    service_account_label: str = "pcsa."
    default_allow_profile: str = "svc-default-allow"  # of automatic host endpoints
    node_address: str = "SvcNodeIP"  # type of a node's address that other nodes reach it by
    version_field: str = "svcVersion"  # of the cluster's information

    network: str = "pods"  # name of the network in an installed configuration, and so part of every handle
    conflist: str = "10-svc.conflist"  # file name of an installed configuration
    environment_prefix: str = "SVC_"  # of variables that configure clients
    operator_api_version: str = "operator.svc.internal/v1"  # of the operator's installation resource
    operator_network: str = "svcNetwork"  # its section of network settings
    operator_plugin: str = "Svc"  # its word for this plugin, and for its address management
    operator_manager: str = "svc-operator"  # value of the label `managed-by` on its pools

    endpoint_per_interface: bool = True  # every interface of a pod is an endpoint; else only its first is
    container_id_interfaces: bool = False  # a bare container's first host interface ends in the start of its id, not in a hash

    plain_handles: bool = False  # NETWORK.CONTAINER with single dots, whatever the network's name
    nodename_file_required: bool = False  # in a cluster, the main plugin waits for the file of the node agent
    network_profiles: bool = False  # a policy agent reads the profile that a network's endpoints name, so it must be there

    def __hash__(self) -> int:
        """Of a part, for every call needs it: equality tells the rest."""
        return hash((self.plugin, self.key_root, self.interface_prefix))

    @property
    def finalizer(self) -> str:
        """On pools, while their blocks are given up."""
        return f"{self.label_prefix}/ippool-finalizer"

    @property
    def metadata_annotation(self) -> str:
        """On custom resources: the metadata that the orchestrator does not keep openly."""
        return f"{self.label_prefix}/metadata"


DEFAULT = Names()
