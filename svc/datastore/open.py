"""From the settings of a netconf to a datastore session."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from svc import __distribution__
from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.imports import whole_imports
from svc.model.errors import CallerError
from svc.names import Names

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client

EMBEDDED_FILE = "store.db"

_EXTRAS = {  # what each extra installs: the distribution of every package that is imported
    "etcd": {"etcd3": "etcd3", "grpc": "grpcio", "google": "protobuf", "dns": "dnspython"},
    "orch": {"kubernetes": "kubernetes", "urllib3": "urllib3"},
}


def open_backend(settings: dict[str, str], state_dir: Path, names: Names) -> Backend:
    """StoreError when the store cannot be opened; CallerError for settings that lead nowhere."""
    match settings["kind"]:
        case "embedded":
            return EmbeddedStore(state_dir / EMBEDDED_FILE, names)
        case "etcdv3":
            with _extra("etcd"):
                with whole_imports():
                    from svc.datastore.etcd.store import EtcdStore  # only here: it loads gRPC
                return EtcdStore(settings, names)
        case "orch":
            with _extra("orch"), whole_imports():
                from svc.datastore.orch.store import OrchStore  # the Kubernetes client is 25 MiB of memory and 0.3 s
            return OrchStore(settings, names)
    raise CallerError(f"datastore_type = {settings['kind']!r} is not known", details='set "etcdv3", "orch" or "embedded"')


def open_client(settings: Mapping[str, str]) -> "Client":
    """A session with an API server, for what is no datastore: the same settings as `orch`. CallerError as `open_backend`."""
    with _extra("orch"), whole_imports():
        from svc.datastore.orch.access import Access
        from svc.datastore.orch.client import Client
    return Client(Access(settings))


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Import what only this extra installs. Raise CallerError that names the distribution if a package is missing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        distribution = _EXTRAS[name].get(str(missing.name).partition(".")[0])
        if distribution is None:
            raise
        raise CallerError(
            f"the Python package {distribution} is not installed",
            details=f"install the extra {name}: {sys.executable} -m pip install '{__distribution__}[{name}]'",
        ) from None
