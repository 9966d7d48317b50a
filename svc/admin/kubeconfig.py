"""Access to the Kubernetes API for plugins on the host, from the service account of the pod that installs them.

The kubeconfig names a file with the token and never changes. Kubernetes renews the token within the pod about every hour, and
`svcctl install --watch` copies it to that file. Clients that open the file again have a valid token.
"""

import base64
from collections.abc import Mapping
from pathlib import Path

import yaml

from svc.atomic_file import File
from svc.model.errors import CallerError, Code
from svc.names import Names


def service_account_dir(names: Names) -> Path:
    """Return the directory of a pod's own service account."""
    return Path(f"/var/run/secrets/{names.orch_domain}/serviceaccount")


def kubeconfig_name(names: Names) -> str:
    """Return the name of the file in the directory of network configurations."""
    return f"{names.plugin}-kubeconfig"


def files(service_account: Path, environment: Mapping[str, str], conf_dir: Path, names: Names) -> list[File]:
    """Return token and kubeconfig, which only root can read. Raise CallerError outside of a pod."""
    token = File(conf_dir / f"{names.plugin}-token", _part(service_account, "token"), 0o600, renewed=True)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": _cluster(service_account, environment)}],
        "users": [{"name": names.plugin, "user": {"tokenFile": token.path.name}}],  # relative to the kubeconfig
        "contexts": [{"name": f"{names.plugin}-context", "context": {"cluster": "local", "user": names.plugin}}],
        "current-context": f"{names.plugin}-context",
    }
    return [token, File(conf_dir / kubeconfig_name(names), yaml.safe_dump(document, sort_keys=False).encode(), 0o600)]


def _cluster(service_account: Path, environment: Mapping[str, str]) -> dict[str, str]:
    authority = base64.b64encode(_part(service_account, "ca.crt")).decode()
    return {"server": _server(environment), "certificate-authority-data": authority}


def _server(environment: Mapping[str, str]) -> str:
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port:
        raise CallerError(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set",
            details="run this in a pod, or name a kubeconfig in the file given with --netconf",
        )
    protocol = environment.get("KUBERNETES_SERVICE_PROTOCOL") or "https"
    return f"{protocol}://[{host}]:{port}" if ":" in host else f"{protocol}://{host}:{port}"


def _part(service_account: Path, name: str) -> bytes:
    try:
        return (service_account / name).read_bytes()
    except OSError as error:
        raise CallerError(
            f"service account file {str(service_account / name)!r} cannot be read: {error.strerror}",
            details="run this in a pod with a service account, or name a kubeconfig in the file given with --netconf",
            code=Code.IO_FAILURE,
        ) from None
