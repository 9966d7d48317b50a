"""From the settings of a netconf to a datastore session."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.model.errors import CallerError
from svc.names import Names

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client

EMBEDDED_FILE = "store.db"


def open_backend(settings: dict[str, str], state_dir: Path, names: Names) -> Backend:
    """StoreError when the store cannot be opened; CallerError for settings that lead nowhere."""
    match settings["kind"]:
        case "embedded":
            return EmbeddedStore(state_dir / EMBEDDED_FILE, names)
        case "etcdv3":
            with _extra("etcd", "grpc", "google", "etcd3", "dns"):
                from svc.datastore.etcd.store import EtcdStore  # only here: it loads gRPC

                return EtcdStore(settings, names)
        case "orch":
            with _extra("orch", "kubernetes", "urllib3"):
                from svc.datastore.orch.store import OrchStore  # the Kubernetes client is 25 MiB of memory and 0.3 s
            return OrchStore(settings, names)
    raise CallerError(f"datastore_type = {settings['kind']!r} is not known", details='set "etcdv3", "orch" or "embedded"')


def open_client(settings: Mapping[str, str]) -> "Client":
    """A session with an API server, for what is no datastore: the same settings as `orch`. CallerError as `open_backend`."""
    with _extra("orch", "kubernetes", "urllib3"):
        from svc.datastore.orch.access import Access
        from svc.datastore.orch.client import Client
    return Client(Access(settings))


@contextmanager
def _extra(name: str, *packages: str) -> Iterator[None]:
    """Around imports of what only an extra of ours installs."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if str(missing.name).partition(".")[0] not in packages:
            raise
        raise CallerError(
            f"the Python package {missing.name!r} is not installed", details=f"install the extra: pip install 'svc[{name}]'"
        ) from None
