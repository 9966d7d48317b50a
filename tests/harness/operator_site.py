"""A cluster whose svc is run by the operator, which is the real program in the version of its Deployment."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.controllers import Process, cluster
from harness.installations import MERGE, document
from harness.kube import Kube, Refused
from harness.polling import eventually
from harness.upgrade_site import SYSTEM, UpgradeSite
from svc.datastore.open import open_client
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import OPERATOR, ORCH, POLICY_V1BETA1, Settings
from svc.deploy.server_apply import apply

Json = dict[str, Any]

DEPLOYMENT = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/svc-controllers"
INSTALLATIONS = "/apis/operator.svc.internal/v1/installations"
INFORMATION = "/apis/crd.svc.internal/v1/clusterinformations"
_PROGRAM = (
    "import sys, svc; svc.__version__ = sys.argv.pop(1); from svc.controllers import main as program; sys.exit(program.main())"
)


def release(version: str) -> list[Json]:
    """Return the manifest of the operator in a version."""
    return objects(Settings(OPERATOR, ORCH, f"svc:{version}", policy_api=POLICY_V1BETA1))


class OperatorSite(UpgradeSite):
    """The cluster. `starts` is false while no other version of the operator is started."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        super().__init__(kube, folder)
        self.starts = True
        self.running = ""  # the version of the operator's process

    def install_release(self, documents: Sequence[Json]) -> None:
        """Apply documents as `kubectl apply --server-side` does."""
        with closing(open_client({"kubeconfig": str(self.kubeconfig)})) as client:
            for _ in apply(client, documents, "kubectl"):
                pass

    def prepare(self) -> None:
        """Install the former release, and wait until its operator is content."""
        self.clear()
        self.install_release(release("0.1.0"))
        body = {"apiVersion": "crd.svc.internal/v1", "kind": "ClusterInformation", "metadata": {"name": "default"}}
        with suppress(Refused):  # it exists
            self.kube.call("POST", INFORMATION, body | {"spec": {"svcVersion": "0.1.0", "datastoreReady": True}})
        with suppress(Refused):
            self.kube.call("POST", INSTALLATIONS, document({"ipPools": [{"cidr": "10.65.0.0/16"}]}))
        eventually(lambda: self.running, lambda version: version == "0.1.0")  # the Installation may be of a test before
        eventually(self.version, lambda version: version == "0.1.0")

    def version(self) -> str:
        """Return the version of which the Installation is, if it is ready."""
        status = self.kube.call("GET", f"{INSTALLATIONS}/default").get("status") or {}
        ready = {each["type"]: each["status"] for each in status.get("conditions") or ()}.get("Ready")
        return str(status.get("version")) if ready == "True" else ""

    def upgrade_words(self, verb: str, *arguments: str, documents: Sequence[Json] | None = None, server: str = "") -> list[str]:
        words = self.words(verb, *arguments, documents=documents or release("0.1.1"), server=server)
        return words if verb in ("undo", "status") else [*words, "--procedure", "operator"]

    @contextmanager
    def operating(self, kube: Kube) -> Iterator[None]:
        """Run the operator in the block, in the version that its Deployment has."""
        ended = threading.Event()
        with ExitStack() as stack:
            folder = self.folder / "operator"
            folder.mkdir()
            made = stack.enter_context(cluster(kube, folder, {"DATASTORE_TYPE": "orch", "ENABLED_CONTROLLERS": "operator"}))
            thread = threading.Thread(target=self._operate, args=(made.start, kube, ended))
            thread.start()
            stack.callback(thread.join)
            stack.callback(ended.set)
            yield

    def _operate(self, start: Any, kube: Kube, ended: threading.Event) -> None:
        process: Process | None = None
        while not ended.wait(0.1):
            try:
                image = kube.call("GET", DEPLOYMENT)["spec"]["template"]["spec"]["containers"][0]["image"]
            except Refused:
                continue
            version = image.rpartition(":")[2]
            if version == self.running or not self.starts:
                continue
            if process is not None:
                process.kill()
                kube.uproot(f"leases/{SYSTEM}/svc-controllers")
            with suppress(Refused):  # an agent writes the version when it starts
                kube.call("PATCH", f"{INFORMATION}/default", {"spec": {"svcVersion": version}}, MERGE)
            process, self.running = start(program=(sys.executable, "-c", _PROGRAM, version, "run")), version
