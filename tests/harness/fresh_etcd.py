"""An etcd with certificates for a fresh cluster, whose node and pods reach it at the node's address."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.etcd import cluster
from harness.etcd_release import SECRET, Certificates, secret
from harness.fresh_cluster import FreshCluster
from harness.kube import NODE_ADDRESS
from harness.node import netconf, pool_document

Json = dict[str, Any]

_FILES = {"etcd_ca_cert_file": "etcd-ca", "etcd_cert_file": "etcd-cert", "etcd_key_file": "etcd-key"}


class FreshEtcd:
    """The addresses of etcd, as the node knows them, and what its administrator does with it from there."""

    def __init__(self, fresh: FreshCluster, endpoints: str, data: dict[str, str], folder: Path) -> None:
        self._fresh, self._folder = fresh, folder
        self.options = ("--datastore", "etcd", "--etcd-endpoints", endpoints, "--etcd-tls")
        self.config: Json = {"datastore_type": "etcdv3", "etcd_endpoints": endpoints}
        for option, key in _FILES.items():
            file = folder / key
            file.write_bytes(base64.b64decode(data[key]))
            self.config[option] = str(file)
        self.data = data

    def install(self, pool: str) -> None:
        """Bring svc into the cluster, with its Secret and a pool."""
        self._fresh.kube.call("POST", SECRET.rpartition("/")[0], secret(self.data))
        self._fresh.apply(*self.options)
        network, document = self._folder / "netconf.json", self._folder / "pool.json"
        network.write_text(json.dumps(netconf(**self.config)))
        document.write_text(pool_document("pool", pool))
        self._fresh.svcctl("--netconf", str(network), "pool", "apply", "-f", str(document), on_node=True)


@contextmanager
def running(fresh: FreshCluster, folder: Path) -> Iterator[FreshEtcd]:
    """Run an etcd that the node reaches, and that accepts clients with a certificate alone."""
    certificates = Certificates(folder, NODE_ADDRESS)
    with cluster(folder, tls=certificates.server) as made:
        fresh.reach(made.members[0].ports[0])
        endpoints = made.endpoints.replace("127.0.0.1", NODE_ADDRESS)
        yield FreshEtcd(fresh, endpoints, certificates.client("client"), folder)
