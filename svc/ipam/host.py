"""Hosts, which claim blocks: nodes, and virtual hosts for addresses that the whole cluster shares."""

from dataclasses import field

from svc._core.cidr import Cidr
from svc.model.keys import AffinityKey
from svc.values import dataclass

NODE, VIRTUAL = KINDS = ("host", "virtual")


@dataclass(frozen=True, slots=True)
class Host:
    """A node or virtual host that claims blocks. `affinity` is the value of the `affinity` field in its blocks."""

    name: str
    kind: str = NODE
    affinity: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "affinity", f"{self.kind}:{self.name}")

    @staticmethod
    def of(affinity: str | None) -> "Host | None":
        """Return the host of a block with this affinity; None for an unclaimed block."""
        kind, _, name = (affinity or "").partition(":")
        return Host(name, kind) if name else None

    def claim_on(self, cidr: Cidr) -> AffinityKey:
        """Return the key of the host's affinity to a block."""
        return AffinityKey(self.name, cidr, self.kind)

    def __str__(self) -> str:
        return f"node {self.name!r}" if self.kind == NODE else f"{self.kind} host {self.name!r}"


LOAD_BALANCERS = Host("load-balancer", VIRTUAL)  # has the affinities to the blocks for service addresses
