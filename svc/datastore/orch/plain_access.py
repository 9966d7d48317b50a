"""Access to an API server that needs nothing of the Kubernetes client, which takes 25 MiB and 0.3 s to load.

It is an address, an authority and a token: what `svcctl install` writes, and what a pod has. Proxies, and every other entry of
a kubeconfig, are left to the client (`svc.datastore.orch.client_access`).
"""

import base64
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3
import yaml

Json = dict[str, Any]

_CLUSTER = {"server", "certificate-authority", "certificate-authority-data"}
_USER = {"token", "tokenFile"}
_KINDS = ("clusters", "contexts", "users")


class PlainConfiguration:
    """What such an access has of a `kubernetes.client.Configuration`, under the same names.

    `ca_data` are certificates in PEM, if no file has them."""

    def __init__(self, host: str = "") -> None:
        self.host = host
        self.ssl_ca_cert: str | None = None
        self.ca_data = ""
        self.cert_file: str | None = None
        self.key_file: str | None = None
        self.verify_ssl = True
        self.api_key: dict[str, str] = {}
        self.refresh_api_key_hook: None = None

    def auth_settings(self) -> Mapping[str, Mapping[str, Any]]:
        return {"BearerToken": {"value": self.api_key.get("BearerToken")}}

    def pool(self, context: ssl.SSLContext, connections: int) -> urllib3.PoolManager:
        """Return a pool of so many idle connections for each server."""
        return urllib3.PoolManager(maxsize=connections, cert_reqs=ssl.CERT_REQUIRED, ssl_context=context)


def has_proxy(environment: Mapping[str, str]) -> bool:
    """Return whether variables name a proxy."""
    return any(name.lower().endswith("_proxy") and value for name, value in environment.items())


def needs_client(kubeconfig: str) -> bool:
    """Return whether an access by this kubeconfig needs the Kubernetes client; False for one that cannot be read."""
    path = Path(kubeconfig)
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return False
    return has_proxy(os.environ) or (isinstance(data, dict) and of_kubeconfig(data, path.parent) is None)


def of_kubeconfig(data: Json, folder: Path) -> PlainConfiguration | None:
    """Return the access of a kubeconfig in a folder; None if it has more entries, or one that cannot be used."""
    try:
        (cluster,), (context,), users = ([_entry(row, kind) for row in data.get(kind) or ()] for kind in _KINDS)
        user: Json = dict(users).get(str(context[1].get("user"))) or {}
        is_plain = cluster[1].keys() <= _CLUSTER and user.keys() <= _USER and len(users) <= 1
        texts = [*cluster[1].values(), *user.values()]
        if not is_plain or not all(isinstance(text, str) and text for text in texts):
            return None
        return _read(cluster[1], user, folder)
    except (ValueError, TypeError, AttributeError, KeyError, OSError):  # also malformed base64, and bytes that are not text
        return None


def _entry(row: Json, kind: str) -> tuple[str, Json]:
    return str(row["name"]), row[kind.removesuffix("s")]


def _read(cluster: Json, user: Json, folder: Path) -> PlainConfiguration | None:
    found = PlainConfiguration(cluster["server"].rstrip("/"))
    if found.host.startswith("https") and "certificate-authority-data" in cluster:
        found.ca_data = base64.standard_b64decode(cluster["certificate-authority-data"]).decode("ascii")
        if not found.ca_data:
            return None
    elif found.host.startswith("https") and "certificate-authority" in cluster:
        authority = Path(os.path.normpath(folder / cluster["certificate-authority"]))
        if not authority.is_file():
            return None
        found.ssl_ca_cert = str(authority)
    if "token" in user:
        found.api_key = {"BearerToken": f"Bearer {user['token']}"}
    elif "tokenFile" in user:
        found.api_key = {"BearerToken": f"Bearer {Path(os.path.normpath(folder / user['tokenFile'])).read_text()}"}
    return found
