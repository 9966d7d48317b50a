"""Checks of a deployment against the cluster, before anything is written.

The apply itself forces every field, so it would change objects of other products. It leaves a present pool as it is, although
the administrator asks for another range.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from svc.admin import pools, resources
from svc.admin.deployment_owners import Owners
from svc.admin.resources import POOL
from svc.datastore.api import StoreError
from svc.datastore.open import open_backend
from svc.deploy.discovery import Discovery
from svc.deploy.manifests.pools import pools_of
from svc.deploy.manifests.settings import Settings
from svc.deploy.server_apply import Applied, apply, is_refusal, joined
from svc.model.custom_resources import BLOCK
from svc.model.errors import CallerError
from svc.model.resource import Resource

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

Json = dict[str, Any]

SUBJECT: Final = "nothing was applied"
RIGHT_REMEDY: Final = "use the kubeconfig of an administrator, with --kubeconfig"


def rehearse(client: "Client", kubeconfig: Path, settings: Settings, documents: Sequence[Json]) -> list[Applied]:
    """Return what the server would store of each object of the deployment, without writing anything.

    Raise CallerError with everything that forbids the apply; StoreError with everything that the server refuses."""
    owners = Owners(client, settings)
    _raise([*owners.refusals(documents)])
    refused, rehearsed = owners.unreadable, list[Applied]()
    with _collected(refused):
        _require_pools(client, kubeconfig, settings)
    with _collected(refused):
        rehearsed += apply(client, documents, dry_run=True)
    if refused:
        raise joined(refused, SUBJECT)
    return rehearsed


@contextmanager
def _collected(refused: list[StoreError]) -> Iterator[None]:
    """Collect what the server refuses, so that one error has all missing rights."""
    try:
        yield
    except StoreError as error:
        if not is_refusal(error):
            raise
        refused.append(error)


def _require_pools(client: "Client", kubeconfig: Path, settings: Settings) -> None:
    """Raise CallerError if `svcctl pool apply` would refuse a pool. A present one stays as it is, and must have the range."""
    wanted = pools_of(settings.pools)
    discovery = Discovery(client)
    is_served = all(discovery.find(settings.store_api_version, kind) for kind in (POOL, BLOCK))
    if not wanted or not is_served:  # without the definitions there are neither pools nor blocks
        return
    access = {"kind": "orch", "kubeconfig": str(kubeconfig), "api_group": settings.store_api_version}
    with closing(open_backend(access, Path(), settings.names, right_remedy=RIGHT_REMEDY)) as store:
        present = {pool.name: pool.spec for pool in resources.get(store, POOL)}
        specs = {each.name: present.get(each.name, each.spec) | {"cidr": each.spec["cidr"]} for each in wanted}
        pools.check(store, [Resource(POOL, each.metadata, specs[each.name]) for each in wanted], ())


def _raise(lines: Sequence[str]) -> None:
    if not lines:
        return
    error = CallerError(f"{len(lines)} error{'s' if len(lines) > 1 else ''}, {SUBJECT}", details="; ".join(lines))
    error.subject, error.errors = SUBJECT, tuple(lines)
    raise error
