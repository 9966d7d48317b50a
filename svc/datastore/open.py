"""From the settings of a netconf to a datastore session."""

from pathlib import Path

from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.model.errors import CallerError
from svc.names import Names

EMBEDDED_FILE = "store.db"


def open_backend(settings: dict[str, str], state_dir: Path, names: Names) -> Backend:
    """StoreError when the store cannot be opened; CallerError for settings or a kind that this version does not serve."""
    if settings["kind"] == "embedded":
        return EmbeddedStore(state_dir / EMBEDDED_FILE, names)
    if settings["kind"] == "etcdv3":
        return _open_etcd(settings, names)
    raise CallerError(f"datastore_type = {settings['kind']!r} is not supported yet", details='set "embedded" or "etcdv3"')


def _open_etcd(settings: dict[str, str], names: Names) -> Backend:
    try:
        from svc.datastore.etcd.store import EtcdStore  # only here: it loads gRPC

        return EtcdStore(settings, names)
    except ModuleNotFoundError as error:
        raise CallerError(
            f"datastore_type = 'etcdv3' needs the Python package {error.name!r}, which is not installed",
            details="install the extra: pip install 'svc[etcd]'",
        ) from error
