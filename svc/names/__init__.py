"""All names that a deployment may change, in one record.

A deployment that shares its datastore with other software replaces the defaults with a profile (`svc.netconf.names_profiles`;
those in `profiles/` are shipped). No other module spells a key root, an API group or an interface prefix.
`docs/reference/names.md` says what each field is for.
"""

from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """The names of objects, files and interfaces."""

    plugin: str = "svc"  # CNI type of the network plugin, and its executable
    ipam_plugin: str = "svc-ipam"  # CNI type of the IPAM plugin, and its executable
    annotation_prefix: str = "cni.svc.internal"
    orch_domain: str = "kubernetes.io"
    api_version: str = "svc.internal/v3"  # as written in resources; in a key-value store also part of their keys
    crd_api_version: str = "crd.svc.internal/v1"  # of the custom resources that back them
    key_root: str = "/svc"  # of every key in a key-value store
    interface_prefix: str = "svc"  # of host-side interfaces; 11 characters follow
    orchestrator: str = "k8s"  # in endpoints
    label_prefix: str = "svc.internal"  # of labels that svc sets and reads, and of node annotations
    controllers: str = "svc-controllers"
    state_dir: str = "/var/lib/svc"
    run_dir: str = "/var/run/svc"
    log_dir: str = "/var/log/svc/cni"

    orch_section: str = "orch"  # netconf: the section with the access to the Kubernetes API
    orch_api_root: str = "orch_api_root"  # netconf: the API's URL in it
    orch_policy: str = "orch"  # netconf: policy.type
    orch_datastore: str = "orch"  # netconf: datastore_type of the Kubernetes API

    qos_prefix: str = "qos.svc.internal"  # of annotations that shape traffic
    native_domains: tuple[str, ...] = ("svc.internal/", "operator.svc.internal/")  # labels that custom resources have natively
    namespace_profile: str = "kns."  # endpoint profile of a namespace; its name follows
    service_account_profile: str = "ksa."  # of a service account; namespace, dot and name follow
    namespace_label: str = "pcns."  # prefix of a namespace's labels in its profile
    service_account_label: str = "pcsa."
    default_allow_profile: str = "svc-default-allow"  # of automatic host endpoints
    node_address: str = "SvcNodeIP"  # type of the node address that other nodes use
    version_field: str = "svcVersion"  # of ClusterInformation

    network: str = "pods"  # name of the network in an installed configuration, and so part of every handle
    conflist: str = "10-svc.conflist"  # file name of an installed configuration
    environment_prefix: str = "SVC_"  # of variables that configure clients
    operator_api_version: str = "operator.svc.internal/v1"  # of the operator's Installation resource
    operator_network: str = "svcNetwork"  # its section of network settings
    operator_plugin: str = "Svc"  # value of the operator for this plugin and for its IPAM
    operator_manager: str = "svc-operator"  # value of the label `managed-by` on its pools
    operator: str = "svc-controllers"  # Deployment of the operator
    operator_namespace: str = "kube-system"  # its namespace
    operator_status: str = "Installation"  # kind of its group whose object has the conditions of the whole
    installation_version: str = "version"  # field of the status of its Installation
    daemon_set: str = "svc-node"  # DaemonSet of svc
    node_agent: str = "svc-node-agent"  # DaemonSet of the node agent, another program
    overlay_agent: str = "svc-node-agent"  # the same where addresses come from pod CIDRs
    data_path_proxy: str = "svc-data-path-proxy"  # Deployment of the data-path proxy, another program

    manage_cni: str = "SVC_MANAGE_CNI"  # variable by which another product's node agent leaves CNI alone
    cni_installer: str = "install-cni"  # container of that agent that installs its plugin
    route_protocol: int = 83  # of the routes of svc-routes, by which it knows them
    vxlan_device: str = "vxlan.svc"  # tunnels of svc-routes
    vxlan6_device: str = "vxlan-v6.svc"
    ipip_device: str = "ipip.svc"
    nat_table: str = "svc-nat"  # of nftables, family inet
    foreign_devices: tuple[str, ...] = ("vxlan.calico", "vxlan-v6.calico", "flannel.1", "flannel-v6.1", "cilium_host")
    foreign_chains: tuple[str, ...] = ("cali-", "nat-cali-", "FLANNEL-", "CILIUM_", "KIND-MASQ-")  # starts of NAT chains

    upgrade_floor: str = "0.1"  # the oldest version that upgrades start from
    upgrade_target: str = "svcctl"  # the version it goes to; "svcctl" for its own
    mesh_namespace: str = "istio-system"  # namespace of a service mesh, another program
    mesh_injector: str = "istio-sidecar-injector"  # its ConfigMap with the template of sidecars
    sidecar: str = "svc-sidecar"  # container of the policy agent in pods of the mesh

    endpoint_per_interface: bool = True  # every interface of a pod has an endpoint; else only its first one
    container_id_interfaces: bool = False  # a bare container's first host interface ends in the start of its ID, not in a hash

    plain_handles: bool = False  # NETWORK.CONTAINER with single dots, even if the network's name has some
    nodename_file_required: bool = False  # in a cluster the main plugin requires the node agent's file
    network_profiles: bool = False  # a policy agent reads the profile named by a network's endpoints, so it must exist
    foreign_definitions: bool = False  # another product defines the custom resources

    def __hash__(self) -> int:
        """Return the hash of three fields, because every call needs it. Equality compares all fields."""
        return hash((self.plugin, self.key_root, self.interface_prefix))

    @property
    def finalizer(self) -> str:
        """Finalizer of pools, while their blocks are released."""
        return f"{self.label_prefix}/ippool-finalizer"

    @property
    def metadata_annotation(self) -> str:
        """Annotation of custom resources with the metadata that is not native."""
        return f"{self.label_prefix}/metadata"


DEFAULT = Names()
