"""A cluster with a deployment by manifests, and the controllers of the operator beside it, for tests of moves."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from harness.datastores import OrchSite, session, set_ready
from harness.ipam import put_pool
from harness.kube import Kube
from harness.polling import eventually
from harness.upgrade_site import SYSTEM, UpgradeSite
from svc.datastore.api import Backend, Conflict
from svc.datastore.open import open_client
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import NETWORKING, NONE, ORCH, POLICY_V1BETA1, Settings
from svc.deploy.server_apply import apply
from svc.names import DEFAULT

Json = dict[str, Any]

NEW = f"{DEFAULT.plugin}-system"
NODES = ("node1", "node2")
KEY = f"{DEFAULT.label_prefix}/operator-node-migration"
POOL = "10.65.0.0/16"


def agents(namespace: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{DEFAULT.daemon_set}"


def controllers(namespace: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/deployments/{DEFAULT.controllers}"


def is_set_ready(store: Backend) -> bool:
    """Unlock a datastore. Return whether no other program was at work on the same object."""
    try:
        set_ready(store)
    except Conflict:
        return False
    return True


class OperatorMoveSite:
    """The cluster, and svcctl of its administrator."""

    key = KEY
    selector = "app.kubernetes.io/name=svc-node"

    def __init__(self, kube: Kube, folder: Path) -> None:
        self.kube = kube
        self.site = OrchSite(kube, folder)
        self.upgrades = UpgradeSite(kube, folder)
        self.words_of = ["--procedure", "to-operator"]

    def install(self, flavour: str = NETWORKING, namespace: str = SYSTEM, **more: Any) -> None:
        """Apply the manifests."""
        with session(self.site) as store:
            eventually(partial(is_set_ready, store), bool)  # the controllers make this object as well
            put_pool(store, "pool-v4", POOL, ipipMode="Always", natOutgoing=True)
        settings = Settings(flavour, ORCH, "svc:0.1.0", namespace=namespace, crds=NONE, policy_api=POLICY_V1BETA1, **more)
        client = open_client({"kubeconfig": str(self.upgrades.kubeconfig)})
        try:
            for _ in apply(client, objects(settings), "svcctl"):
                pass
        finally:
            client.close()

    def words(self, verb: str, *arguments: str, server: str = "") -> list[str]:
        found = self.upgrades.words(verb, *arguments, server=server)
        return found if verb in ("undo", "status") else [*found[: found.index("--manifest")], *self.words_of]

    def run(self, verb: str, *arguments: str, server: str = "") -> Result:
        from svc.ctl.main import main

        return CliRunner().invoke(main, self.words(verb, *arguments, server=server))

    def succeeds(self, verb: str, *arguments: str) -> Result:
        done = self.run(verb, *arguments)
        assert done.exit_code == 0, done.output
        return done

    def labels(self) -> dict[str, str | None]:
        return {name: self.kube.call("GET", f"/api/v1/nodes/{name}")["metadata"]["labels"].get(self.key) for name in NODES}

    def agents_of_nodes(self) -> Counter[str]:
        """Return how many pods of an agent run on each node, ending ones left out."""
        pods = self.kube.call("GET", f"/api/v1/pods?labelSelector={self.selector}")["items"]
        alive = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
        return Counter(each["spec"]["nodeName"] for each in alive if each["spec"].get("nodeName"))

    def state(self) -> Json:
        """Return everything that a move may change, without what servers write."""
        found: Json = {"labels": self.labels()}
        paths = ["/apis/apps/v1/daemonsets", "/apis/apps/v1/deployments", "/api/v1/configmaps", "/api/v1/serviceaccounts"]
        paths += [
            f"/apis/rbac.authorization.k8s.io/v1/{kind}"
            for kind in ("clusterrolebindings", "rolebindings", "roles", "clusterroles")
        ]
        paths += ["/apis/crd.svc.internal/v1/ippools"]
        for path in paths:
            for each in self.kube.call("GET", path)["items"]:
                name, namespace = each["metadata"]["name"], each["metadata"].get("namespace", "")
                if name.startswith(("svc", "cni-config", "pool-")) and name != "svc-upgrade":
                    content = {key: each.get(key) for key in ("spec", "data", "subjects", "rules")}
                    notes = json.loads(each["metadata"].get("annotations", {}).get("svc.internal/metadata", "{}"))
                    notes.pop("creationTimestamp", None)  # another one of a pool that was created again
                    found[f"{path}/{namespace}/{name}"] = json.dumps([content, notes], sort_keys=True)
        return found

    @contextmanager
    def watched(self) -> Iterator[list[tuple[Json, Json]]]:
        """Watch the agents: yield moments at which a node had none or two, with the labels at that time."""
        over, found = threading.Event(), list[tuple[Json, Json]]()
        other = OperatorMoveSite.__new__(OperatorMoveSite)
        other.kube = self.kube.connected_again()

        def watch() -> None:
            while not over.wait(0.03):
                before, counts, after = other.labels(), other.agents_of_nodes(), other.labels()
                if before == after and (wrong := {name: counts[name] for name in NODES if counts[name] != 1}):
                    found.append((wrong, before))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()
            other.kube.stop()

    def clear(self) -> None:
        self.upgrades.clear()
        for kind in (
            "daemonsets",
            "deployments",
            "replicasets",
            "controllerrevisions",
            "pods",
            "poddisruptionbudgets",
            "configmaps",
        ):
            self.kube.forget(f"{kind}/{NEW}/")
        for kind in ("serviceaccounts", "roles", "rolebindings"):
            self.kube.forget(f"{kind}/{NEW}/", f"{kind}/{SYSTEM}/svc-")
        for name in NODES:
            path = f"/api/v1/nodes/{name}"
            self.kube.call("PATCH", path, {"metadata": {"labels": {self.key: None}}}, "application/merge-patch+json")
        self.kube.forget("operator.svc.internal/", "crd.svc.internal/")
