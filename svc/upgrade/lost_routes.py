"""A manifest that takes svc-routes from the nodes, because it was printed without it."""

from collections.abc import Iterator
from typing import Any, Final

from svc.deploy.manifests.node import ROUTES
from svc.upgrade.places import place_of

Json = dict[str, Any]

_PROGRAM: Final = "svc-routes"


def lost_routes(live: Json, applied: Json) -> Iterator[str]:
    """Yield a sentence if an object has svc-routes, and will not have it."""
    if _runs_routes(live) and not _runs_routes(applied):
        yield (
            f"{place_of(live)}: {_PROGRAM} goes, because the manifest does not have it: without another program that routes, "
            "pods do not reach those of other nodes; `svcctl manifests --routes` prints it"
        )


def _runs_routes(workload: Json) -> bool:
    if workload.get("kind") != "DaemonSet":
        return False
    containers = workload["spec"]["template"]["spec"]["containers"]
    return any(each["name"] == ROUTES and each.get("command") == [_PROGRAM] for each in containers)
