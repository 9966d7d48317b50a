"""A cluster with everything that the plugin needs, and sessions with it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.kube import ADMIN_TOKEN, Kube, Refused
from harness.kube import NODES as NODE_USER
from svc.datastore.api import Create, Delete, Entry, NotFound, Update, Write
from svc.datastore.orch.leases import NAMESPACE
from svc.datastore.orch.store import OrchStore
from svc.deploy.crds import definitions
from svc.deploy.rbac import binding, bound, role, role_name
from svc.model.endpoint import PodFacts, Workload, endpoint, endpoint_key
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.names import DEFAULT, Names

Json = dict[str, Any]

RBAC = "rbac.authorization.k8s.io"
RULES = role(DEFAULT, DEFAULT.crd_api_version)["rules"]
VERBS = [(rule["apiGroups"][0], rule["resources"][0], verb) for rule in RULES for verb in rule["verbs"]]
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"


def install(kube: Kube, names: Names = DEFAULT, api_version: str = "") -> None:
    """Install the resource definitions of svc, in the backing API group unless another one is named, and the role of nodes."""
    version = api_version or names.crd_api_version
    kube.apply(definitions(names, version))
    wanted = role(names, version)
    wanted["metadata"]["name"] = f"nodes-{version.partition('/')[0]}"
    kube.apply([wanted, bound(wanted, {"kind": "User", "name": NODE_USER, "apiGroup": RBAC})])
    for rule in wanted["rules"]:
        kube.await_right(NODE_USER, rule["apiGroups"][0], rule["resources"][0], rule["verbs"][-1], allowed=True)


def wipe(kube: Kube, names: Names = DEFAULT, api_version: str = "") -> None:
    """Delete all custom resources, node claims, nodes and pods."""
    group = (api_version or names.crd_api_version).partition("/")[0]
    kube.forget(f"{group}/", f"leases/{NAMESPACE}/", "minions/", "pods/default/")


def grant_role(cluster: Kube, without: tuple[str, str, str] | None = None) -> None:
    """Give the plugin its role without one verb. Wait until the server applies it."""
    wanted = role(DEFAULT, DEFAULT.crd_api_version)
    for rule in wanted["rules"]:
        lost = without is not None and (rule["apiGroups"][0], rule["resources"][0]) == without[:2]
        rule["verbs"] = [verb for verb in rule["verbs"] if not (lost and without and verb == without[2])]
    wanted["rules"] = [rule for rule in wanted["rules"] if rule["verbs"]]
    cluster.apply([wanted, binding(DEFAULT, {"kind": "User", "name": "plugin", "apiGroup": RBAC})])
    for entry in VERBS:
        cluster.await_right("plugin", *entry, allowed=entry != without)


def revoke_role(cluster: Kube) -> None:
    for kind in ("clusterroles", "clusterrolebindings"):
        cluster.call("DELETE", f"/apis/{RBAC}/v1/{kind}/{role_name(DEFAULT)}")


def put_core_node(kube: Kube, name: str, labels: dict[str, str] | None = None, **annotations: str) -> Json:
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations}
    return kube.call("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})


def put_pod(kube: Kube, name: str, node: str = "node1", annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    """Create a scheduled pod with one container."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}, "labels": {"app": "web"}},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "x", "ports": [{"name": "http", "containerPort": 8080}]}],
            **spec,
        },
    }
    return kube.call("POST", PODS, body)


def open_store(kube: Kube, folder: Path, token: str = ADMIN_TOKEN, **user: str) -> OrchStore:
    """Open a session as the user of the token, or of the kubeconfig."""
    return OrchStore({"kubeconfig": str(kube.kubeconfig(folder / "kubeconfig", token, **user))}, DEFAULT)


def wire(store: OrchStore) -> Entry:
    """Write the endpoint of the pod `web`, as an ADD does."""
    workload = Workload("c1", "web", "default")
    key = endpoint_key(DEFAULT, "node1", workload, "eth0")
    spec = {"ipNetworks": ["10.0.0.1/32"], "interfaceName": "svc1", "mac": "x"}
    (entry,) = store.write([Create(key, endpoint(DEFAULT, key, "node1", workload, "eth0", spec=spec, facts=PodFacts()))])
    assert entry == store.get(key)
    assert entry is not None
    return entry


class AdministratorStore(OrchStore):
    """A store that also creates and deletes nodes. For the plugin's store, Kubernetes does that."""

    def __init__(self, kube: Kube, folder: Path, names: Names = DEFAULT, api_group: str = "") -> None:
        kubeconfig = kube.kubeconfig(folder / "administrator")
        super().__init__({"kind": "orch", "kubeconfig": str(kubeconfig), "api_group": api_group}, names)
        self._kube = kube

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        if len(writes) == 1 and isinstance(writes[0].key, ResourceKey) and writes[0].key.kind == "Node":
            return [self._write_node(writes[0].key, writes[0])]
        return super().write(writes, durable=durable)

    def _write_node(self, key: ResourceKey, write: Write) -> Entry | None:
        match write:
            case Create(_, Resource() as node):
                put_core_node(self._kube, key.name, node.labels)
                return self.get(key)
            case Update(_, Resource() as node):
                patch = {"metadata": {"labels": node.labels}}
                self._kube.call("PATCH", f"{NODES}/{key.name}", patch, "application/merge-patch+json")
                return self.get(key)
            case Delete():
                try:
                    self._kube.call("DELETE", f"{NODES}/{key.name}")
                except Refused as refusal:
                    raise NotFound(key) if refusal.status == 404 else refusal from None
        return None
