"""Releases whose datastore is etcd, as manifests for an API server and fake kubelets."""

import base64
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from harness.certificates import Authority
from harness.etcd import Cluster, ServerTls
from harness.ipam import put
from harness.upgrade_site import SYSTEM, UpgradeSite, config, container
from svc.admin.resources import CLUSTER
from svc.datastore.open import open_backend
from svc.model.resource import Resource
from svc.names import DEFAULT, Names

Json = dict[str, Any]

SECRET_NAME = "svc-etcd-secrets"
SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/{SECRET_NAME}"
SECRET_STEP = f"Secret/{SYSTEM}/{SECRET_NAME}"
FILES = {"etcd_ca": "etcd-ca", "etcd_cert": "etcd-cert", "etcd_key": "etcd-key"}
PATHS = {option: f"/certs/{key}" for option, key in FILES.items()}
NO_PATHS = dict.fromkeys(FILES, "")
_VOLUME = {"name": "etcd-certs", "secret": {"secretName": SECRET_NAME}}


def secret(data: Mapping[str, str] | None = None, **labels: str) -> Json:
    metadata = {"name": SECRET_NAME, "namespace": SYSTEM, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": dict(data or {})}


def _workload(kind: str, name: str, version: str, **spec: Any) -> Json:
    labels = {"app.kubernetes.io/name": name}
    agent = container(f"svc:{version}", DATASTORE_TYPE="etcdv3")
    second = container("other:1") | {"name": "second"}
    pod = {"containers": [agent] if kind == "Deployment" else [agent, second], "volumes": [_VOLUME]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    metadata = {"name": name, "namespace": SYSTEM}
    spec |= {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


def release(version: str, endpoints: str, paths: Mapping[str, str], secret_data: Mapping[str, str] | None = None) -> list[Json]:
    """Return a release as it is shipped, with the addresses and paths filled in. The label makes the Secret differ."""
    return [
        config(etcd_endpoints=endpoints, **paths),
        secret(secret_data, release=version),
        _workload("DaemonSet", "svc-node", version),
        _workload("Deployment", "svc-controllers", version, replicas=1, strategy={"type": "Recreate"}),
    ]


class Certificates:
    """An authority with a certificate for the server, and some for clients. `hosts` are its addresses beside 127.0.0.1."""

    def __init__(self, folder: Path, *hosts: str) -> None:
        self._authority = Authority(folder, "root")
        self.server = ServerTls(*self._authority.issue("server", "127.0.0.1", *hosts), clients=self._authority.root)

    def client(self, name: str) -> dict[str, str]:
        """Return the entries of a Secret with a certificate of its own."""
        certificate, key = self._authority.issue(name)
        files = {"etcd-ca": self._authority.root, "etcd-cert": certificate, "etcd-key": key}
        return {name: base64.b64encode(file.read_bytes()).decode() for name, file in files.items()}


def note_version(cluster: Cluster, version: str, folder: Path, data: Mapping[str, str], names: Names = DEFAULT) -> None:
    """Write ClusterInformation as a node does."""
    settings = {"kind": "etcdv3", "etcd_endpoints": cluster.endpoints}
    for option, key in {"etcd_ca_cert_file": "etcd-ca", "etcd_cert_file": "etcd-cert", "etcd_key_file": "etcd-key"}.items():
        if data:
            file = folder / f"note-{key}"
            file.write_bytes(base64.b64decode(data[key]))
            settings[option] = str(file)
    with closing(open_backend(settings, folder, names)) as store:
        spec = {names.version_field: version, "datastoreReady": True}
        put(store, CLUSTER, Resource(CLUSTER.kind, {"name": CLUSTER.name}, spec))


def live_secret(site: UpgradeSite) -> dict[str, str]:
    """Return the entries of the Secret."""
    found: dict[str, str] = site.kube.call("GET", SECRET).get("data") or {}
    return found
