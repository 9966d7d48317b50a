"""Objects of the kinds of a definition: whether there are some, and whether its schema accepts them. Blocks of a pool."""

from collections.abc import Iterator
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.datastore.orch.client import ApiError
from svc.model.custom_resources import BLOCK
from svc.upgrade.bundle import kinds_of
from svc.upgrade.places import Place, place_of
from svc.upgrade.writer import Cluster, lacking

Json = dict[str, Any]

MAX_CHECKED: Final = 500  # objects of a kind that are checked one by one
_REFUSED: Final = 422


def _all(cluster: Cluster, definition: Json) -> Iterator[Json]:
    api_version, _ = kinds_of(definition)[0]
    path = f"/apis/{api_version}/{definition['spec']['names']['plural']}"
    for number, each in enumerate(cluster.items(path, limit=str(MAX_CHECKED))):
        if number == MAX_CHECKED:
            return
        yield each


def count_objects(cluster: Cluster, definition: Json) -> int:
    """Return the number of objects of a definition, up to the number that is checked."""
    return sum(1 for _ in _all(cluster, definition))


def has_blocks(cluster: Cluster, pool: Json) -> bool:
    """Return whether nodes have blocks of a pool, from which pods may have addresses."""
    place, cidr = Place(cluster.names.crd_api_version, BLOCK, "", "any"), Cidr(pool["spec"]["cidr"])
    blocks = cluster.items(cluster.folder(place)) if cluster.served(place) else ()
    return any(Cidr(each["spec"]["cidr"]) in cidr for each in blocks)


def undecodable(cluster: Cluster, definition: Json) -> Iterator[str]:
    """Yield a sentence for each object that the schema of a definition refuses. The server checks by a dry run."""
    if "status" not in definition or not kinds_of(definition):
        return
    api_version, kind = kinds_of(definition)[0]
    for each in _all(cluster, definition):
        metadata = each["metadata"]
        place = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
        path = f"/apis/{api_version}{place}/{definition['spec']['names']['plural']}/{metadata['name']}"
        try:
            cluster.client.replace(path, each, dryRun="All")
        except ApiError as error:
            if error.status == _REFUSED:
                yield f"{kind}/{metadata['name']} is refused by the new definition: {error.msg}"
            if error.lacks_right:
                raise lacking(place_of(each | {"apiVersion": api_version, "kind": kind}), "update", error) from error
