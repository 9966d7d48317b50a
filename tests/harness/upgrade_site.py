"""A cluster with a former release of svc, and manifests of a newer one, for tests of upgrades."""

import copy
import itertools
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from harness.kube import Kube, Refused
from harness.polling import SERVED_SECONDS, eventually
from svc.ctl.main import main

Json = dict[str, Any]

SYSTEM = "kube-system"
CLIENT_SIDE = "kubectl-client-side-apply"
_numbers = itertools.count()
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
DAEMON_SET = f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets/svc-node"
CONFIG = f"/api/v1/namespaces/{SYSTEM}/configmaps/svc-settings"
PATIENCE = "400s"
"""The default of `--timeout`. The controller of DaemonSets may wait 300 s for pods of a deleted one of the same name."""

DAEMON_SET_STEP, CONFIG_STEP = f"DaemonSet/{SYSTEM}/svc-node", f"ConfigMap/{SYSTEM}/svc-settings"


def container(image: str, **variables: str) -> Json:
    return {"name": "agent", "image": image, "env": [{"name": name, "value": text} for name, text in variables.items()]}


def daemon_set(image: str, **variables: str) -> Json:
    labels = {"app.kubernetes.io/name": "svc-node"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "svc-node", "namespace": SYSTEM},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container(image, **variables)]}},
        },
    }


def config(**data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "svc-settings", "namespace": SYSTEM}, "data": data}


def old() -> list[Json]:
    return [config(mtu="1500", gone="x"), daemon_set("svc:0.1.0", LEVEL="info", GONE="x")]


def new() -> list[Json]:
    return [config(mtu="1500", added="y"), daemon_set("svc:0.1.1", LEVEL="info", ADDED="y")]


def path_of(document: Json) -> str:
    group, metadata = document["apiVersion"], document["metadata"]
    root = f"/apis/{group}" if "/" in group else f"/api/{group}"
    place = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
    return f"{root}{place}/{document['kind'].lower()}s"


class UpgradeSite:
    """The cluster, and svcctl of its administrator."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        self.kube, self.folder = kube, folder
        self.kubeconfig = kube.kubeconfig(folder / "administrator")
        self.state_dir = folder / "state"
        self._made: list[str] = []

    def install(self, documents: Sequence[Json], manager: str = CLIENT_SIDE) -> None:
        """Create objects as `kubectl apply` does without server-side apply."""
        for document in documents:
            body = copy.deepcopy(document)
            body["metadata"].setdefault("annotations", {})[LAST_APPLIED] = json.dumps(document)
            self.kube.call("POST", f"{path_of(document)}?fieldManager={manager}", body)
            self._made.append(f"{path_of(document)}/{document['metadata']['name']}")

    def edit(self, path: str, body: Json, manager: str = "kubectl-edit") -> Json:
        """Change an object as a person does."""
        return self.kube.call("PATCH", f"{path}?fieldManager={manager}", body, "application/strategic-merge-patch+json")

    def get(self, path: str) -> Json | None:
        try:
            return self.kube.call("GET", path)
        except Refused as refusal:
            if refusal.status != 404:
                raise
            return None

    def manifest(self, documents: Sequence[Json], name: str = "new.json") -> Path:
        """Write a manifest."""
        file = self.folder / name
        file.write_text("\n---\n".join(json.dumps(each) for each in documents))
        return file

    def run(self, verb: str, *arguments: str, documents: Sequence[Json] | None = None, server: str = "") -> Result:
        """Run svcctl in this process."""
        return self.call(*self.words(verb, *arguments, documents=documents, server=server))

    def succeeds(self, verb: str, *arguments: str) -> None:
        """Run svcctl, which must end well."""
        done = self.run(verb, *arguments)
        assert done.exit_code == 0, done.output

    def call(self, *words: str) -> Result:
        """Run svcctl with these arguments in this process."""
        return CliRunner().invoke(main, words)

    def words(self, verb: str, *arguments: str, documents: Sequence[Json] | None = None, server: str = "") -> list[str]:
        """Return the arguments of svcctl. A server is that of a proxy."""
        kubeconfig = self.kubeconfig
        if server:
            kubeconfig = self.folder / "through-proxy"
            text = self.kubeconfig.read_text().replace(self.kube.url, server)
            kubeconfig.write_text(text)
        words = ["--state-dir", str(self.state_dir), "upgrade", verb, "--kubeconfig", str(kubeconfig), *arguments]
        if verb in ("apply", "undo") and "--timeout" not in arguments:
            words += ["--timeout", PATIENCE]
        return words if verb in ("undo", "status") else [*words, "--manifest", str(self.manifest(documents or new()))]

    def state(self, documents: Sequence[Json]) -> dict[str, Json | None]:
        """Return what the manifest's objects say, without what servers write."""
        found: dict[str, Json | None] = {}
        for document in documents:
            path = f"{path_of(document)}/{document['metadata']['name']}"
            live = self.get(path)
            found[path] = live and {name: live.get(name) for name in ("data", "spec", "rules", "subjects")}
        return found

    def record(self) -> Json | None:
        live = self.get(f"/api/v1/namespaces/{SYSTEM}/configmaps/svc-upgrade")
        return live and live["data"] | {"steps": json.loads(live["data"]["steps"])}

    def everything(self) -> dict[str, str]:
        """Return the revision of each object that a run may write; of workloads the generation, which their status leaves."""
        found: dict[str, str] = {}
        for kind in ("configmaps", "secrets"):
            for each in self.kube.call("GET", f"/api/v1/namespaces/{SYSTEM}/{kind}")["items"]:
                found[f"{kind}/{each['metadata']['name']}"] = each["metadata"]["resourceVersion"]
        for kind, group, field in (("leases", "coordination.k8s.io", "resourceVersion"), ("daemonsets", "apps", "generation")):
            for each in self.kube.call("GET", f"/apis/{group}/v1/namespaces/{SYSTEM}/{kind}")["items"]:
                found[f"{kind}/{each['metadata']['name']}"] = str(each["metadata"][field])
        return found

    def _await_controller(self, probe: Json) -> None:
        """Wait until the controller of a kind knows which of its objects are gone.

        Otherwise it replaces their pods, and that of DaemonSets then waits minutes for the new pods to belong to a DaemonSet of
        the same name."""
        probe["metadata"]["name"] = f"probe-{next(_numbers)}"
        self.kube.call("POST", path_of(probe), probe)
        path = f"{path_of(probe)}/{probe['metadata']['name']}"
        eventually(
            lambda: self.kube.call("GET", path)["status"], lambda status: status.get("observedGeneration"), SERVED_SECONDS
        )

    def _forget_workloads(self) -> None:
        has_replicas = bool(self.kube.call("GET", f"/apis/apps/v1/namespaces/{SYSTEM}/replicasets")["items"])
        self.kube.forget(f"daemonsets/{SYSTEM}/", f"deployments/{SYSTEM}/")
        probe = daemon_set("svc:0.1.0")
        probe["spec"]["template"]["spec"]["nodeSelector"] = {"no-node": "has-this"}
        self._await_controller(probe)
        if has_replicas:
            none = daemon_set("svc:0.1.0") | {"kind": "Deployment"}
            none["spec"]["replicas"] = 0
            self._await_controller(copy.deepcopy(none))
            self.kube.forget(f"replicasets/{SYSTEM}/")
            self._await_controller(none | {"kind": "ReplicaSet"})

    def clear(self) -> None:
        """Delete what upgrades and installations have left."""
        self._forget_workloads()
        kinds = ("daemonsets", "deployments", "replicasets", "controllerrevisions", "pods", "poddisruptionbudgets")
        self.kube.forget(*(f"{kind}/{SYSTEM}/" for kind in kinds))
        self.kube.forget(
            *(
                f"{kind}/{SYSTEM}/svc-"
                for kind in ("configmaps", "secrets", "leases", "serviceaccounts", "roles", "rolebindings")
            )
        )
        self.kube.forget("clusterroles/svc-", "clusterrolebindings/svc-")
        self.kube.forget(f"events/{SYSTEM}/")  # each run lists the objects of all kinds
        self.kube.uproot(f"configmaps/{SYSTEM}/cni-config")


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system that has one free page."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    try:
        (folder / "filler").write_bytes(b"x" * 15 * 4096)
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def running_site(kube: Kube, folder: Path) -> Iterator[UpgradeSite]:
    """Yield a site, and clear it."""
    site = UpgradeSite(kube, folder)
    try:
        yield site
    finally:
        site.clear()
