"""`svcctl install` as the containers of the DaemonSet run it, with the accounts and roles of `svcctl manifests`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from harness import kill_point, short_times
from harness.account_tokens import MountedAccount
from harness.api_proxy import ApiProxy
from harness.kube import Kube
from harness.node import BIN
from harness.polling import eventually, wait_until
from svc.admin.account_token import Token, decode
from svc.datastore.open import open_client
from svc.deploy import rbac
from svc.deploy.manifests.network import config_map
from svc.deploy.manifests.node import INSTALL_WATCH, daemon_set
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import BIN_DIR, CONF_DIR, CONFIG_KEY, Settings
from svc.deploy.server_apply import apply
from svc.names import DEFAULT

Json = dict[str, Any]

SYSTEM = "kube-system"
_APPLIED = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "IPPool")
_SECONDS = 60
SHORT_TIMES: Mapping[str, float] = {  # renewals after 0.9 s, everything else several times a second
    "svc.admin.account_token:RENEWAL_PART": 0.00001,
    "svc.admin.account_token:SHORTEST_SECONDS": 0.2,
    "svc.admin.token_keeper:SHORTEST_SECONDS": 0.2,
    "svc.admin.token_keeper:TRIAL_SECONDS": 0.2,
    "svc.admin.repeated_task:SHORTEST_PAUSE": 0.2,
    "svc.admin.repeated_task:LONGEST_PAUSE": 1.0,
    "svc.admin.installation_watch:LOOK_SECONDS": 0.05,
}
SHORT_LOOKS = {name: seconds for name, seconds in SHORT_TIMES.items() if "RENEWAL_PART" not in name}


def issue(kube: Kube, account: str, namespace: str = SYSTEM) -> str:
    """Return a token of an account, as kubelet requests it for a pod."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3607}}
    answer = kube.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", body)
    return str(answer["status"]["token"])


def user_of(kube: Kube, token: str) -> str:
    """Return the user that the API server takes the token for; empty if it refuses the token."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status = kube.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)["status"]
    return str(status["user"]["username"]) if status.get("authenticated") else ""


@contextmanager
def rights(kube: Kube, settings: Settings, folder: Path) -> Iterator[None]:
    """Apply accounts, roles and pools of the manifests, inside the block."""
    found = [each for each in objects(settings) if each["kind"] in _APPLIED]
    try:
        with closing(open_client({"kubeconfig": str(kube.kubeconfig(folder / "administrator"))})) as client:
            list(apply(client, found))
        user = f"system:serviceaccount:{settings.namespace}:{rbac.node_name(settings.names)}"
        wait_until(lambda: _may_request(kube, user, settings))
        if group := settings.store_api_version.partition("/")[0]:
            kube.await_right(user, group, "clusterinformations", "create", allowed=True, namespace="")
            plugin = f"system:serviceaccount:{settings.namespace}:{rbac.plugin_account(settings.names)}"
            kube.await_right(plugin, group, "ippools", "list", allowed=True, namespace="")
        yield
    finally:
        for kind in ("serviceaccounts", "roles", "rolebindings"):
            kube.forget(f"{kind}/{SYSTEM}/{settings.names.plugin}-")
        kube.forget(f"clusterroles/{settings.names.plugin}-", f"clusterrolebindings/{settings.names.plugin}-")


def _may_request(kube: Kube, user: str, settings: Settings) -> bool:
    attributes = {
        "resource": "serviceaccounts", "subresource": "token", "verb": "create", "namespace": settings.namespace,
        "name": rbac.plugin_account(settings.names),
    }  # fmt: skip
    spec = {"user": user, "resourceAttributes": attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool(kube.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)["status"]["allowed"])


class PodInstaller:
    """A pod of the DaemonSet: its mounted account, and the directories of its node in `folder`."""

    def __init__(self, kube: Kube, settings: Settings, folder: Path, proxy: ApiProxy | None = None) -> None:
        self.kube = kube
        self.settings = settings
        self.folder = folder
        self.state_dir, self.run_dir, self.bin_dir, self.conf_dir = (folder / each for each in ("state", "run", "bin", "net.d"))
        self.account = MountedAccount(folder / "account")
        authority = kube.authority.read_text()
        self.account.write(ca=authority, namespace=settings.namespace)
        self.mount_token()
        self.environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(kube.port)}
        if proxy is not None:
            port = proxy.url.rpartition(":")[2]
            self.environment |= {"KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PROTOCOL": "http"}
        self.environment |= {"KUBERNETES_NODE_NAME": "node1"}
        self.netconf = folder / "config"
        self.netconf.write_text(config_map(settings)["data"][CONFIG_KEY].replace(CONF_DIR, str(self.conf_dir)))
        self.out, self.err = folder / "watch.out", folder / "watch.err"

    def mount_token(self) -> None:
        """Give the pod a new token of its own."""
        self.account.write(token=issue(self.kube, rbac.node_name(self.settings.names), self.settings.namespace))

    @property
    def token_file(self) -> Path:
        return self.conf_dir / f"{self.settings.names.plugin}-token"

    @property
    def kubeconfig(self) -> Path:
        return self.conf_dir / f"{self.settings.names.plugin}-kubeconfig"

    @property
    def token(self) -> Token:
        """The installed token, with what it says of itself."""
        return decode(self.token_file.read_text())

    def arguments(self, container: int) -> list[str]:
        """Return the arguments of a container of the DaemonSet, with the directories of this test."""
        found: list[str] = self._containers()[container]["args"]
        here = {
            DEFAULT.state_dir: self.state_dir, DEFAULT.run_dir: self.run_dir, BIN_DIR: self.bin_dir, CONF_DIR: self.conf_dir,
            "/etc/svc/config/config": self.netconf,
        }  # fmt: skip
        return [str(here.get(each, each)) for each in found]

    def run(self, *more: str, check: bool = True, program: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
        """Run the init container to its end."""
        command = [*(program or [str(BIN / "svcctl")]), *self.arguments(0), *self._account_option(), *more]
        done = subprocess.run(
            command, env=os.environ | self._variables(0), capture_output=True, text=True, check=False, timeout=_SECONDS
        )
        assert not check or done.returncode == 0, done
        return done

    @contextmanager
    def watching(
        self, times: Mapping[str, float] = SHORT_TIMES, *, kill: Sequence[str] = (), program: Sequence[str] = ()
    ) -> "Iterator[subprocess.Popen[bytes]]":
        """Run the container `install-watch` inside the block, with shorter times. `kill` is where it kills itself."""
        inner = [sys.executable, short_times.__file__, ",".join(f"{name}={value}" for name, value in times.items())]
        inner += [kill_point.__name__, *kill, "svc.ctl.main"] if kill else ["svc.ctl.main"]
        command = [*program, *inner, *self.arguments(1), *self._account_option()]
        paths = {"PYTHONPATH": str(Path(kill_point.__file__).parents[1])}
        with self.out.open("ab") as out, self.err.open("ab") as err:
            process = subprocess.Popen(command, env=os.environ | paths | self._variables(1), stdout=out, stderr=err)
        try:
            yield process
        finally:
            process.kill()
            process.wait(_SECONDS)

    def await_watch(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait until the process has installed everything, and goes on."""
        eventually(lambda: (process.poll(), self.out.read_text()), lambda found: found[0] is not None or ".json" in found[1])
        assert process.poll() is None, self.err.read_text()

    @property
    def requested_memory(self) -> float:
        """What the container `install-watch` requests, in MiB."""
        (found,) = (each for each in self._containers() if each["name"] == INSTALL_WATCH)
        return float(found["resources"]["requests"]["memory"].removesuffix("Mi"))

    def errors(self) -> list[str]:
        """Return what the container has reported as failed."""
        failures = "not renewed", "version not noted", "node not registered"
        return [line for line in self.err.read_text().splitlines() if line.startswith(failures)]

    def entry(self) -> Json:
        """Return the network configuration of svc as the runtime passes it on."""
        document = json.loads((self.conf_dir / self.settings.names.conflist).read_text())
        own: Json = document["plugins"][0]
        return own | {"name": document["name"], "cniVersion": document["cniVersion"]}

    def _containers(self) -> list[Json]:
        """Return those of the installer."""
        pod = daemon_set(self.settings)["spec"]["template"]["spec"]
        return [*pod["initContainers"], *pod["containers"][1:]]

    def _variables(self, container: int) -> dict[str, str]:
        found = self._containers()[container]["env"]
        return {each["name"]: each["value"] for each in found if "value" in each} | self.environment

    def _account_option(self) -> list[str]:
        return ["--service-account", str(self.account.folder)]


def end(process: "subprocess.Popen[bytes]", number: int = signal.SIGTERM, seconds: float = 10.0) -> int:
    """Ask a process to end, and return its exit status. It must end in time."""
    process.send_signal(number)
    return process.wait(seconds)


def memory(process: "subprocess.Popen[bytes]") -> float:
    """Return the resident memory of a process, in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
