"""Limits of the calls that run in parallel: of one verb, and for one datastore.

A call to a datastore that does not answer occupies a worker until its deadline. So no datastore has more than SHARED workers,
and when SHARED workers are busy, none gets more than GUARANTEED: the rest is left for other datastores.

A scan of the network configuration shows which datastore a call needs. The result determines only the order of calls.
"""

import re
from typing import Final, NamedTuple

from svc.values import dataclass, field

SHARED: Final = 64  # workers, half of all
GUARANTEED: Final = 16  # of each datastore

# An ADD with a store on this node mostly computes, so more in parallel would only compete for the interpreter. Eight is 10 %
# faster than two: their addresses are one write, and one computes while another is in the kernel. ADDs with a store behind a
# network wait for it; a quarter of the workers is left for the DELs of that store. After a crash a node may have hundreds of
# attachments to recover: most workers are left for calls, and 16 releases share one write.
RECOVERY: Final = "recovery"
_VERBS: Final = ("ADD-local", "ADD-remote", "DEL", "STATUS", "CHECK", "VERSION", "other")
_SHORT: Final = ("STATUS", "CHECK")
LANE_LIMITS: Final = {"ADD-local": 8, "ADD-remote": 48, RECOVERY: 16}

_SERVERS: Final = re.compile(rb'"(?:etcd_endpoints|etcd_discovery_srv|etcd_authority|kubeconfig|\w+_api_root)"\s*:\s*"([^"]+)"')
_OTHER_PLUGIN: Final = b'"host-local"'
_HERE: Final = "embedded"


class Lane(NamedTuple):
    """Jobs that wait in one queue. `name` is the verb or another kind of job; `store` names the datastore, empty for none."""

    name: str
    store: str = ""

    @property
    def is_of_calls(self) -> bool:
        """Whether its jobs are calls of runtimes, and not the agent's own work."""
        return self.name in _VERBS

    @property
    def is_short(self) -> bool:
        """Whether its calls only look: they have right of way."""
        return self.name in _SHORT

    @property
    def gives_way(self) -> bool:
        """Whether its calls pause while short ones are in flight."""
        return self.name.startswith("ADD-")


def lane_of(verb: str, netconf: bytes) -> Lane:
    """Return the lane of a call."""
    store = _store_of(netconf)
    match verb:
        case "ADD":
            return Lane("ADD-local" if store == _HERE else "ADD-remote", store)
        case "DEL" | "CHECK":
            return Lane(verb, store)
        case "STATUS" | "VERSION":
            return Lane(verb)
    return Lane("other", store)


@dataclass(slots=True)
class Busy:
    """Counts of the running jobs. Callers must use it from one thread at a time."""

    lanes: dict[Lane, int] = field(default_factory=dict)
    stores: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def change(self, lane: Lane, difference: int) -> None:
        """Count a job that begins (1) or ends (-1)."""
        self.lanes[lane] = self.lanes.get(lane, 0) + difference
        self.stores[lane.store] = self.stores.get(lane.store, 0) + difference
        self.total += difference
        if not self.lanes[lane]:  # networks come and go
            del self.lanes[lane]
        if not self.stores[lane.store]:
            del self.stores[lane.store]

    def is_full(self, lane: Lane) -> bool:
        """Return True if no further job of the lane may begin now."""
        if self.lanes.get(lane, 0) >= LANE_LIMITS.get(lane.name, SHARED):
            return True
        return bool(lane.store) and self.total >= SHARED and self.stores.get(lane.store, 0) >= GUARANTEED


def _store_of(netconf: bytes) -> str:
    """Return the servers in a network configuration, or the other plugin that keeps the addresses: a call may wait for each."""
    names = _SERVERS.findall(netconf)
    if _OTHER_PLUGIN in netconf:
        names.append(_OTHER_PLUGIN)
    if names:
        return b" ".join(names).decode("latin1")
    return _HERE if b'"embedded"' in netconf else "default"
