"""Whose a block is: a node's, or a virtual host's, which stands for something that the whole cluster shares."""

from dataclasses import field

from svc._core.cidr import Cidr
from svc.model.keys import AffinityKey
from svc.values import dataclass

NODE, VIRTUAL = KINDS = ("host", "virtual")


@dataclass(frozen=True, slots=True)
class Host:
    """Who claims blocks. `affinity` is what its blocks say of it."""

    name: str
    kind: str = NODE
    affinity: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "affinity", f"{self.kind}:{self.name}")

    @staticmethod
    def of(affinity: str | None) -> "Host | None":
        """The owner of a block with this affinity; None when it is nobody's."""
        kind, _, name = (affinity or "").partition(":")
        return Host(name, kind) if name else None

    def claim_on(self, cidr: Cidr) -> AffinityKey:
        """Where its claim on a block is kept."""
        return AffinityKey(self.name, cidr, self.kind)

    def __str__(self) -> str:
        return f"node {self.name!r}" if self.kind == NODE else f"{self.kind} host {self.name!r}"


LOAD_BALANCERS = Host("load-balancer", VIRTUAL)  # owns the blocks that addresses of services come from
