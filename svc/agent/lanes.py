"""How many calls may run at the same time: of one verb, and for one datastore.

A datastore that does not answer keeps a worker for as long as a call may take. So no datastore has more than SHARED workers,
and once so many are busy, none gets more than GUARANTEED: the rest stays for the others.

A quick look at its network configuration shows which datastore a call needs. That decides only the order.
"""

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

SHARED: Final = 64  # workers, half of all
GUARANTEED: Final = 16  # of each datastore

# An ADD with a store on this node hardly waits, it computes: any number side by side would only take the interpreter from each
# other. Eight, for their addresses are one write then, and one may compute while another is in the kernel: a tenth more than
# two. With a store that is asked over a network they wait; a quarter of the workers stays for the DELs of that store.
# Recovery after a crash of a node may have hundreds of attachments: most workers stay for calls, and so many releases share one
# write.
RECOVERY: Final = "recovery"
_LIMITS: Final = {"ADD here": 8, "ADD afar": 48, RECOVERY: 16}

_SERVERS: Final = re.compile(rb'"(?:etcd_endpoints|etcd_discovery_srv|etcd_authority|kubeconfig|\w+_api_root)"\s*:\s*"([^"]+)"')
_OTHER_PLUGIN: Final = b'"host-local"'
_HERE: Final = "embedded"


Name = TypeVar("Name")


class Lane(NamedTuple):
    """Jobs that wait in one line: `name` is the verb, or what else it is; `store` names the datastore, empty for none."""

    name: str
    store: str = ""


def lane_of(verb: str, netconf: bytes) -> Lane:
    """Return the lane of a call."""
    store = _store_of(netconf)
    match verb:
        case "ADD":
            return Lane("ADD here" if store == _HERE else "ADD afar", store)
        case "DEL":
            return Lane("DEL", store)
        case "STATUS" | "VERSION":
            return Lane(verb)
    return Lane("other", store)


@dataclass(slots=True)
class Busy:
    """The jobs that run. Used by one thread at a time."""

    lanes: dict[Lane, int] = field(default_factory=dict)
    stores: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def change(self, lane: Lane, difference: int) -> None:
        """Count a job that begins (1) or ends (-1)."""
        _count(self.lanes, lane, difference)
        _count(self.stores, lane.store, difference)
        self.total += difference

    def is_full(self, lane: Lane) -> bool:
        """Return whether no further job of the lane may begin now."""
        if self.lanes.get(lane, 0) >= _LIMITS.get(lane.name, SHARED):
            return True
        return bool(lane.store) and self.total >= SHARED and self.stores.get(lane.store, 0) >= GUARANTEED


def _count(numbers: dict[Name, int], name: Name, difference: int) -> None:
    number = numbers.get(name, 0) + difference
    if number:
        numbers[name] = number
    else:  # networks come and go
        del numbers[name]


def _store_of(netconf: bytes) -> str:
    """Return the servers that are named, or another plugin that keeps the addresses: each may be waited for."""
    names = _SERVERS.findall(netconf)
    if _OTHER_PLUGIN in netconf:
        names.append(_OTHER_PLUGIN)
    if names:
        return b" ".join(names).decode("latin1")
    return _HERE if b'"embedded"' in netconf else "default"
