"""From the settings of a netconf to a datastore session."""

from pathlib import Path

from svc.datastore.api import Backend
from svc.datastore.embedded import EmbeddedStore
from svc.model.errors import CallerError
from svc.names import Names

EMBEDDED_FILE = "store.db"


def open_backend(settings: dict[str, str], state_dir: Path, names: Names) -> Backend:
    """StoreError when the store cannot be opened; CallerError for a kind that this version does not serve."""
    match settings["kind"]:
        case "embedded":
            return EmbeddedStore(state_dir / EMBEDDED_FILE, names)
        case "orch":
            from svc.datastore.orch.store import OrchStore  # the Kubernetes client is 25 MiB of memory and 0.3 s

            return OrchStore(settings, names)
    raise CallerError(
        f"datastore_type = {settings['kind']!r} is not supported yet", details='set "datastore_type" to "embedded" or "orch"'
    )
