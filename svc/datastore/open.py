"""Open the datastore session that the settings of a network configuration describe."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from svc.datastore.api import Backend, StoreError
from svc.extras import install_command
from svc.imports import whole_imports
from svc.model.errors import CallerError
from svc.names import Names

if TYPE_CHECKING:
    from svc.datastore.etcd.store import EtcdStore
    from svc.datastore.orch.client import Client
    from svc.datastore.orch.store import OrchStore

EMBEDDED_FILE = "store.db"
WAKE_SECONDS = 10.0  # the time between two pings of an idle connection

_EXTRAS = {  # by extra: imported package and its distribution
    "etcd": {"etcd3": "etcd3", "grpc": "grpcio", "google": "protobuf", "dns": "dnspython"},
    "orch": {"kubernetes": "kubernetes", "urllib3": "urllib3"},
}


def open_backend(
    settings: dict[str, str], state_dir: Path, names: Names, *, create: bool = True, right_remedy: str = ""
) -> Backend:
    """Open a session; with `create`, make a missing embedded store. Raise StoreError, and CallerError for invalid settings.

    `right_remedy` is the fix for a right that the API server denies, in a program whose rights are not those of the plugin.
    """
    match settings["kind"]:
        case "embedded":
            file = state_dir / EMBEDDED_FILE
            if not create and not file.exists():
                raise StoreError(
                    f"store {str(file)!r} does not exist",
                    details="the first ADD or `svcctl pool apply` makes it; if the agent has another state directory, repeat "
                    "`svcctl install` with its --state-dir",
                )
            from svc.datastore.embedded import EmbeddedStore  # an installer of the Kubernetes API does not need SQLite

            return EmbeddedStore(file, names)
        case "etcdv3":
            with _extra("etcd"):  # the URL of a server can need a package as well
                return _etcd_store()(settings, names)
        case "orch":
            with _extra("orch"):  # some access needs the Kubernetes client
                return _orch_store()(settings, names, right_remedy)
    raise CallerError(f"datastore_type = {settings['kind']!r} is not known", details='set "etcdv3", "orch" or "embedded"')


def open_client(settings: Mapping[str, str], *, right_remedy: str = "") -> "Client":
    """Open a session with an API server alone, from the settings of `orch`. Raise CallerError if they are invalid."""
    with _extra("orch"), whole_imports():
        from svc.datastore.orch.auth import ApiAuth
        from svc.datastore.orch.client import Client
    with _extra("orch"):
        return Client(ApiAuth(settings), right_remedy)


def wait_quietly(kind: str) -> None:
    """Have the client of a datastore wake up seldom while it waits. Not for a process whose main thread sends requests.

    Such a thread would run the handlers of signals as seldom."""
    if kind == "etcdv3":
        from svc.datastore.etcd.sync_grpc import wake_up_every

        wake_up_every(WAKE_SECONDS)


def load_packages(kind: str) -> None:
    """Import what `open_backend` would import for a kind of datastore. Raise CallerError if a package is not installed."""
    if kind == "etcdv3":
        _etcd_store()
    elif kind == "orch":
        _orch_store()


def _etcd_store() -> "type[EtcdStore]":
    with _extra("etcd"), whole_imports():
        from svc.datastore.etcd.store import EtcdStore  # imported here, because it loads gRPC
    return EtcdStore


def _orch_store() -> "type[OrchStore]":
    with _extra("orch"), whole_imports():
        from svc.datastore.orch.store import OrchStore  # imported here, because it loads urllib3
    return OrchStore


def require_packages(kind: str) -> None:
    """Raise CallerError if a package that a kind of datastore needs is not installed. Load none."""
    extra = {"etcdv3": "etcd", "orch": "orch"}.get(kind, "")
    with _extra(extra):
        for package in _EXTRAS.get(extra, ()):
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Import packages of an extra in the block. Raise CallerError with the name of the distribution if one is missing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        distribution = _EXTRAS[name].get(str(missing.name).partition(".")[0])
        if distribution is None:
            raise
        raise CallerError(
            f"the Python package {distribution} is not installed",
            details=f"install the extra {name}: {install_command(name)}",
        ) from None
