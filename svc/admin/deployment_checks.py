"""What the cluster has already, and what forbids that a deployment is applied to it. Nothing is written.

The apply itself forces every field, so it would change a pool in use, and objects of other products.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from svc.admin import pools, resources
from svc.admin.deployment_owners import Owners
from svc.admin.resources import POOL
from svc.datastore.open import open_backend
from svc.deploy.discovery import Discovery
from svc.deploy.manifests.pools import pools_of
from svc.deploy.manifests.settings import Settings
from svc.model.custom_resources import BLOCK
from svc.model.errors import CallerError
from svc.model.resource import Resource

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

Json = dict[str, Any]

RIGHT_REMEDY: Final = "use the kubeconfig of an administrator, with --kubeconfig"


def require_applicable(client: "Client", kubeconfig: Path, settings: Settings, documents: Sequence[Json]) -> None:
    """Raise CallerError with everything that forbids it; StoreError. The `documents` are the objects of the deployment."""
    _raise([*Owners(client, settings).refusals(documents)])
    _require_pools(client, kubeconfig, settings)


def _require_pools(client: "Client", kubeconfig: Path, settings: Settings) -> None:
    """Raise CallerError if `svcctl pool apply` would refuse a pool, with what the present one says besides."""
    wanted = pools_of(settings.pools)
    discovery = Discovery(client)
    is_served = all(discovery.find(settings.store_api_version, kind) for kind in (POOL, BLOCK))
    if not wanted or not is_served:  # without the definitions there are neither pools nor blocks
        return
    access = {"kind": "orch", "kubeconfig": str(kubeconfig), "api_group": settings.store_api_version}
    with closing(open_backend(access, Path(), settings.names, right_remedy=RIGHT_REMEDY)) as store:
        present = {pool.name: pool.spec for pool in resources.get(store, POOL)}
        pools.check(store, [Resource(POOL, each.metadata, present.get(each.name, {}) | each.spec) for each in wanted], ())


def _raise(lines: Sequence[str]) -> None:
    if not lines:
        return
    subject = "nothing was applied"
    error = CallerError(f"{len(lines)} error{'s' if len(lines) > 1 else ''}, {subject}", details="; ".join(lines))
    error.subject, error.errors = subject, tuple(lines)
    raise error
