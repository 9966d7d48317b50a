"""Which nodes have an agent that is alive, as the claims on their names show it.

An agent increments the counter of its claim every 5 s. A datastore of one node has no claims.
"""

import time
from collections.abc import Collection, Mapping

from svc.attach.node_claim import POLL_SECONDS, WATCH_SECONDS
from svc.datastore.api import MAX_WRITES, Backend, entry_of
from svc.model.claim import NodeClaim
from svc.model.keys import NodeClaimKey


def nodes_with_agent(backend: Backend, nodes: Collection[str]) -> set[str]:
    """Return the nodes whose counter changes, or appears, within 15 s. Return before if all do. Raise StoreError.

    A living agent writes a deleted claim again."""
    first = _claims(backend, nodes)
    alive: set[str] = set()
    until = time.monotonic() + WATCH_SECONDS
    while (waiting := set(nodes) - alive) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        present = _claims(backend, waiting)
        alive |= {node for node in waiting if node in present and present[node] != first.get(node)}
    return alive


def _claims(backend: Backend, nodes: Collection[str]) -> Mapping[str, NodeClaim]:
    names, claims = sorted(nodes), dict[str, NodeClaim]()
    for start in range(0, len(names), MAX_WRITES):
        part = names[start : start + MAX_WRITES]
        for name, found in zip(part, backend.get_all([NodeClaimKey(name) for name in part]), strict=True):
            if (entry := entry_of(found)) is not None:
                claims[name] = entry.value
    return claims
