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
    """StoreError when the store cannot be opened; CallerError for a kind that this version does not serve."""
    match settings["kind"]:
        case "embedded":
            return EmbeddedStore(state_dir / EMBEDDED_FILE, names)
        case "orch":
            with _kubernetes_client():
                from svc.datastore.orch.store import OrchStore  # the Kubernetes client is 25 MiB of memory and 0.3 s
            return OrchStore(settings, names)
    raise CallerError(
        f"datastore_type = {settings['kind']!r} is not supported yet", details='set "datastore_type" to "embedded" or "orch"'
    )


def open_client(settings: Mapping[str, str]) -> "Client":
    """A session with an API server, for what is no datastore: the same settings as `orch`. CallerError as `open_backend`."""
    with _kubernetes_client():
        from svc.datastore.orch.access import Access
        from svc.datastore.orch.client import Client
    return Client(Access(settings))


@contextmanager
def _kubernetes_client() -> Iterator[None]:
    """Around imports that need it: it is an extra of ours."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if str(missing.name).partition(".")[0] not in ("kubernetes", "urllib3"):
            raise
        raise CallerError("the Kubernetes client is not installed", details="install it: pip install 'svc[orch]'") from None
