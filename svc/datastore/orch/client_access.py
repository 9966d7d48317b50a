"""The part of the Kubernetes client that svc uses: its kubeconfig loader, and its connection pool, which knows proxies.

Only this module imports it, and only for access that is not plain (`svc.datastore.orch.plain_access`). The models of the client
need more memory than the rest of svc.
"""

import ssl
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import urllib3
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import exec_provider
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.kube_config import KubeConfigLoader

from svc import deadline

RENEWAL_SECONDS = 10.0  # for the program that returns credentials; also for a thread that waits for it
_IN_CONTEXT = ("ca_certs", "ca_cert_data", "cert_file", "key_file")  # not for the pool, which would load them per connection


class Refused(Exception):
    """A kubeconfig that the client refuses. The message says why."""


class ClientConfiguration(Configuration):
    """A configuration of the client, with a pool like that of a plain access."""

    ca_data = ""  # the client writes certificates that are not in a file into one

    def pool(self, context: ssl.SSLContext, connections: int) -> urllib3.PoolManager:
        """Return a pool of so many idle connections for each server."""
        self.connection_pool_maxsize = connections
        made: urllib3.PoolManager = RESTClientObject(self).pool_manager
        made.connection_pool_kw = {name: value for name, value in made.connection_pool_kw.items() if name not in _IN_CONTEXT}
        made.connection_pool_kw["ssl_context"] = context
        return made


class _Program(subprocess.Popen[str]):
    """Credential program. It is killed at the deadline of the call, because the Kubernetes client sets no timeout."""

    def communicate(self, *_arguments: Any) -> tuple[str, str]:
        with self:
            try:
                return super().communicate(timeout=deadline.remaining(RENEWAL_SECONDS))
            except subprocess.TimeoutExpired:
                self.kill()
                raise


exec_provider.subprocess = SimpleNamespace(Popen=_Program, PIPE=subprocess.PIPE)  # type: ignore[attr-defined, assignment]


def load(data: dict[str, Any], folder: Path) -> ClientConfiguration:
    """Return the access of a kubeconfig in a folder. Raise Refused, and other errors of the client.

    The client may run the credential program."""
    configuration = ClientConfiguration()
    loader: Any = KubeConfigLoader  # untyped
    try:
        loader(config_dict=data, config_base_path=str(folder)).load_and_set(configuration)
    except ConfigException as error:
        told = str(error)  # its other messages quote the file with its secrets
        raise Refused(told if told.startswith("File does not exist") else "an entry is missing or of another type") from None
    return configuration
