"""A cluster with the workloads of another product, as its manifests make them, and the manifest of svc that takes it over."""

import json
from pathlib import Path
from typing import Any

from harness.datastores import OrchSite, session, set_ready
from harness.kube import Kube
from harness.operator_move_site import NODES, OperatorMoveSite
from harness.upgrade_site import SYSTEM, UpgradeSite
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import NETWORKING, NONE, ORCH, POLICY_V1BETA1, Settings
from svc.netconf.names_profiles import load_profile

Json = dict[str, Any]

CALICO = load_profile("calico")
POLICY_AGENT = f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets/{CALICO.node_agent}"
CONTROLLERS = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{CALICO.controllers}"
NETWORK = """{"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [{"type": "calico", "log_level": "info",
"datastore_type": "kubernetes", "nodename": "__KUBERNETES_NODE_NAME__", "mtu": __CNI_MTU__, "ipam": {"type": "calico-ipam"},
"policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}}]}"""


def workload(kind: str, name: str, containers: list[Json], installers: list[Json]) -> Json:
    labels = {"k8s-app": name}
    spec: Json = {"containers": containers, "serviceAccountName": name}
    spec |= {"initContainers": installers} if installers else {}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": SYSTEM, "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip


def product() -> list[Json]:
    """Return the objects of the other product that a takeover is about."""
    source = {"valueFrom": {"configMapKeyRef": {"name": "calico-config", "key": "cni_network_config"}}}
    install = {"name": "install-cni", "image": "calico/cni:v3.28.0", "env": [{"name": "CNI_NETWORK_CONFIG", **source}]}
    ipam = {"name": "upgrade-ipam", "image": "calico/cni:v3.28.0"}
    agent = {"name": "calico-node", "image": "calico/node:v3.28.0", "env": [{"name": "IP", "value": "autodetect"}]}
    controllers = {"name": "calico-kube-controllers", "image": "calico/kube-controllers:v3.28.0"}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "calico-config", "namespace": SYSTEM}}
    accounts = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": SYSTEM}}
        for name in ("calico-node", "calico-kube-controllers", "calico-cni-plugin")
    ]
    return [
        *accounts,
        config | {"data": {"cni_network_config": NETWORK}},
        workload("DaemonSet", "calico-node", [agent], [ipam, install]),
        workload("Deployment", "calico-kube-controllers", [controllers], []),
    ]


def manifest() -> list[Json]:
    """Return the manifest of svc with the names of the product."""
    settings = Settings(NETWORKING, ORCH, "svc:0.1.0", names=CALICO, profile="calico", crds=NONE, policy_api=POLICY_V1BETA1)
    return objects(settings)


class TakeoverSite(OperatorMoveSite):
    """The cluster, and svcctl of its administrator."""

    key = f"{CALICO.label_prefix}/svc-takeover"

    def __init__(self, kube: Kube, folder: Path) -> None:
        self.kube = kube
        self.site = OrchSite(kube, folder, CALICO)
        self.upgrades = UpgradeSite(kube, folder)
        self.documents = manifest()

    def install(self) -> None:  # type: ignore[override]
        """Make the objects of the product."""
        with session(self.site) as store:
            set_ready(store)
        for document in product():
            folder = document["kind"].lower() + "s"
            root = "/apis/apps/v1" if document["apiVersion"] == "apps/v1" else "/api/v1"
            self.kube.call("POST", f"{root}/namespaces/{SYSTEM}/{folder}", document)

    def words(self, verb: str, *arguments: str, server: str = "") -> list[str]:
        found = self.upgrades.words(verb, *arguments, documents=self.documents, server=server)
        more = [] if verb in ("undo", "status") else ["--procedure", "takeover"]
        return ["--names", "calico", *found, *more]

    def state(self) -> Json:
        """Return what a takeover changes, without what servers write."""
        found: Json = {"labels": self.labels()}
        for path in ("/apis/apps/v1/daemonsets", "/apis/apps/v1/deployments", "/api/v1/serviceaccounts"):
            for each in self.kube.call("GET", path)["items"]:
                if each["metadata"]["namespace"] == SYSTEM and each["metadata"]["name"].startswith(("svc", "calico")):
                    found[f"{path}/{each['metadata']['name']}"] = json.dumps(each.get("spec"), sort_keys=True)
        return found

    def clear(self) -> None:
        self.upgrades.clear()
        for kind in ("configmaps", "serviceaccounts", "roles", "rolebindings"):
            self.kube.forget(f"{kind}/{SYSTEM}/calico-", f"{kind}/{SYSTEM}/svc-")
        self.kube.forget("clusterroles/calico-", "clusterrolebindings/calico-")
        for name in NODES:
            path = f"/api/v1/nodes/{name}"
            self.kube.call("PATCH", path, {"metadata": {"labels": {self.key: None}}}, "application/merge-patch+json")
        self.kube.forget("crd.projectcalico.org/")
