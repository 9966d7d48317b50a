"""Installations of clusters in tests: the resource, the workloads that it is about, and everything that it leads to."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.datastores import EtcdSite, Site, session, set_ready
from harness.kube import Kube
from harness.polling import wait_until
from harness.svcctl import Cli, cli_on
from svc.admin.installation_resource.reconcile import path_of
from svc.admin.installation_resource.workloads import path_of as workload_path
from svc.datastore.api import Backend
from svc.deploy.installation_crd import definition
from svc.model.keys import ResourceQuery
from svc.names import DEFAULT

Json = dict[str, Any]

GROUP = DEFAULT.operator_api_version.partition("/")[0]
PATH = path_of(DEFAULT)
CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"
CONFIG_MAP = f"{CONFIG_MAPS}/cni-config"
AGENT, CONTROLLERS = ("DaemonSet", DEFAULT.daemon_set), ("Deployment", DEFAULT.controllers)
NODE_AGENT, PROXY = ("DaemonSet", DEFAULT.node_agent), ("Deployment", DEFAULT.data_path_proxy)
FOUR = (AGENT, CONTROLLERS, NODE_AGENT, PROXY)
MERGE = "application/merge-patch+json"
LABEL, MINE = "app.kubernetes.io/managed-by", DEFAULT.operator_manager
V4, V6 = {"cidr": "10.65.0.0/16"}, {"cidr": "fd65::/48"}


def document(network: Json | None = None, **spec: Any) -> Json:
    """Return an Installation."""
    head = {"apiVersion": DEFAULT.operator_api_version, "kind": "Installation", "metadata": {"name": "default"}}
    return {**head, "spec": {**({} if network is None else {"svcNetwork": network}), **spec}}


def host_local(network: Json | None = None) -> Json:
    return document(network, cni={"type": "Svc", "ipam": {"type": "HostLocal"}})


class InstalledCluster:
    """A cluster with the definition of the resource. `store` is the datastore of its pools."""

    def __init__(self, kube: Kube, site: Site, store: Backend, folder: Path) -> None:
        self.kube, self.site, self.store, self.folder = kube, site, store, folder
        self.kubeconfig = kube.kubeconfig(folder / "admin.kubeconfig")
        self.cli = cli_on(site, folder / "cli") if isinstance(site, EtcdSite) else Cli(folder, fresh=False)

    def install(self) -> None:
        """Install the definition of the resource."""
        self.kube.apply([definition(DEFAULT)])

    def uninstall(self) -> None:
        """Delete the definition, with the resource."""
        name = definition(DEFAULT)["metadata"]["name"]
        self.kube.call("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        self.kube.await_gone(PATH.rpartition("/")[0])

    def file(self, resource: Json) -> str:
        path = self.folder / "installation.json"
        path.write_text(json.dumps(resource))
        return str(path)

    def arguments(self, command: str, resource: Json | None, kubeconfig: Path | None = None) -> list[str]:
        """Return the arguments of a command of svcctl."""
        file = ["-f", self.file(resource)] if resource else []
        return ["installation", command, *file, "--kubeconfig", str(kubeconfig or self.kubeconfig)]

    def call(self, command: str, resource: Json | None = None, *options: str, code: int = 0) -> str:
        """Run a command with an exit status, and return what it prints."""
        found = self.cli(*self.arguments(command, resource), *options)
        assert found.exit_code == code, found.output
        return found.output

    def create(self, resource: Json) -> None:
        """Create the resource, as `kubectl apply` does."""
        self.kube.call("POST", PATH.rpartition("/")[0], resource)

    def change(self, resource: Json) -> None:
        """Replace the spec of the resource."""
        self.kube.call("PUT", PATH, self.resource | {"spec": resource["spec"]})

    def make(self, *workloads: tuple[str, str], **environment: str) -> None:
        """Create workloads of two containers and an init container, as an administrator does."""
        env = [{"name": name, "value": value} for name, value in environment.items()]
        containers = [{"name": name, "image": "x", "env": env} for name in ("main", "side")]
        for kind, name in workloads:
            labels = {"app": name}
            template: Json = {"metadata": {"labels": labels}}
            template["spec"] = {"containers": containers, "initContainers": [{"name": "install", "image": "x"}]}
            spec = {"selector": {"matchLabels": labels}, "template": template}
            self.kube.call("POST", workload_path(kind), {"metadata": {"name": name}, "spec": spec})

    def workload(self, kind: str, name: str) -> Json:
        return self.kube.call("GET", workload_path(kind, name))

    def environment(self, workload: tuple[str, str], container: str = "main") -> Json:
        """Return the variables of a container that have a value."""
        spec = self.workload(*workload)["spec"]["template"]["spec"]
        (found,) = (each for each in (*spec["containers"], *spec["initContainers"]) if each["name"] == container)
        return {each["name"]: each["value"] for each in found.get("env") or () if "value" in each}

    def roll_out(self, *workloads: tuple[str, str]) -> None:
        """Report the pods of workloads as their controllers do when all are updated."""
        numbers = {
            "DaemonSet": dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"), 3),
            "Deployment": dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1),
        }
        for kind, name in workloads:
            generation = self.workload(kind, name)["metadata"]["generation"]
            zero = dict.fromkeys(("currentNumberScheduled", "numberMisscheduled", "numberReady"), 3) if kind == AGENT[0] else {}
            status = {"observedGeneration": generation, **numbers[kind], **zero}
            self.kube.call("PATCH", f"{workload_path(kind, name)}/status", {"status": status}, MERGE)

    def await_ready(self, *workloads: tuple[str, str]) -> None:
        """Report the rollouts of workloads, each change included, until the resource is ready."""

        def is_ready() -> bool:
            self.roll_out(*workloads)
            return self.conditions() == {"Ready": "True", "Progressing": "False", "Degraded": "False"}

        wait_until(is_ready)

    @property
    def resource(self) -> Json:
        return self.kube.call("GET", PATH)

    def conditions(self) -> dict[str, str]:
        """Return the status of each condition."""
        return {each["type"]: each["status"] for each in (self.resource.get("status") or {}).get("conditions") or ()}

    def message(self, kind: str) -> str:
        (found,) = (each for each in self.resource["status"]["conditions"] if each["type"] == kind)
        return str(found["message"])

    def network(self) -> Json:
        """Return the part of svc in the network list."""
        found: Json = json.loads(self.kube.call("GET", CONFIG_MAP)["data"]["config"])["plugins"][0]
        return found

    def pools(self) -> dict[str, Json]:
        return {entry.value.name: entry.value.spec for entry in self.store.list(ResourceQuery("IPPool"))}

    def revisions(self) -> dict[str, str]:
        """Return the revisions of everything that the resource leads to."""
        found = {entry.value.name: entry.revision for entry in self.store.list(ResourceQuery("IPPool"))}
        for path in (PATH, CONFIG_MAP):
            found[path] = self.kube.call("GET", path)["metadata"]["resourceVersion"]
        for kind in ("DaemonSet", "Deployment"):
            for each in self.kube.call("GET", workload_path(kind))["items"]:
                found[each["metadata"]["name"]] = each["metadata"]["resourceVersion"]
        return found

    def clear(self) -> None:
        self.kube.forget(f"{GROUP}/", "daemonsets/kube-system/", "deployments/kube-system/", "controllerrevisions/kube-system/")
        for name in ("cni-config", "kubeadm-config"):
            self.kube.uproot(f"configmaps/kube-system/{name}")
        self.site.clear()


@contextmanager
def installed_cluster(kube: Kube, site: Site, folder: Path) -> Iterator[InstalledCluster]:
    """Yield a cluster whose datastore is ready, and delete everything at the end."""
    with session(site) as store:
        set_ready(store)
        made = InstalledCluster(kube, site, store, folder)
        made.install()
        try:
            yield made
        finally:
            made.clear()
