"""The access of a node to the Kubernetes API: a kubeconfig, and a file with the token that it names.

Both are made from the folder of a service account. Kubernetes mounts such a folder into each pod. Its file `namespace` says
that tokens can be requested there (`svc.admin.account_token`). A folder without this file was made by hand.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from svc.atomic_file import File
from svc.model.errors import CallerError, Code
from svc.names import Names
from svc.values import dataclass

Json = dict[str, Any]

_MODE: Final = 0o600  # only root can read them


@dataclass(frozen=True, slots=True)
class Access:
    """The folder of an account, the variables with the address of the API server, and the directory of the two files."""

    account: Path
    environment: Mapping[str, str]
    conf_dir: Path
    names: Names

    @property
    def token_file(self) -> Path:
        return self.conf_dir / f"{self.names.plugin}-token"

    @property
    def kubeconfig(self) -> Path:
        return self.conf_dir / kubeconfig_name(self.names)

    @property
    def namespace(self) -> str:
        """The namespace of the account's pod; empty for a folder that was made by hand."""
        path = self.account / "namespace"
        return self._read(path.name).decode(errors="replace").strip() if path.exists() else ""

    def own_token(self) -> str:
        """Return the token of the account itself. Raise CallerError if it cannot be read, or is empty."""
        token = self._read("token")
        if not token.strip():
            raise _unreadable(self.account / "token", "it is empty")
        return token.decode(errors="replace")

    def files(self, token: str = "") -> list[File]:
        """Return token and kubeconfig. Without a token, it is that of the account. Raise CallerError outside of a pod."""
        data = token.encode() if token else self.own_token().encode()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": self._cluster()}],
            "users": [{"name": self.names.plugin, "user": {"tokenFile": self.token_file.name}}],  # relative to the kubeconfig
            "contexts": [{"name": f"{self.names.plugin}-context", "context": {"cluster": "local", "user": self.names.plugin}}],
            "current-context": f"{self.names.plugin}-context",
        }
        kubeconfig = File(self.kubeconfig, yaml.safe_dump(document, sort_keys=False).encode(), _MODE)
        return [File(self.token_file, data, _MODE, renewed=True), kubeconfig]

    def settings(self) -> dict[str, str]:
        """Return settings of a session of the account itself. Raise CallerError outside of a pod."""
        authority = {"k8s_certificate_authority": str(self.account / "ca.crt")}
        return {"orch_api_root": self._server(), "k8s_auth_token": self.own_token().strip()} | authority

    def _cluster(self) -> Json:
        return {"server": self._server(), "certificate-authority-data": base64.b64encode(self._read("ca.crt")).decode()}

    def _server(self) -> str:
        host, port = (self.environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host or not port:
            raise CallerError(
                "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set",
                details="run this in a pod, or name a kubeconfig in the file given with --netconf",
            )
        protocol = self.environment.get("KUBERNETES_SERVICE_PROTOCOL") or "https"
        return f"{protocol}://[{host}]:{port}" if ":" in host else f"{protocol}://{host}:{port}"

    def _read(self, name: str) -> bytes:
        try:
            return (self.account / name).read_bytes()
        except OSError as error:
            raise _unreadable(self.account / name, str(error.strerror)) from None


def kubeconfig_name(names: Names) -> str:
    """Return the name of the kubeconfig in the directory of the network list."""
    return f"{names.plugin}-kubeconfig"


def _unreadable(path: Path, reason: str) -> CallerError:
    return CallerError(
        f"service account file {str(path)!r} cannot be read: {reason}",
        details="run this in a pod with a service account, or name a kubeconfig in the file given with --netconf",
        code=Code.IO_FAILURE,
    )
