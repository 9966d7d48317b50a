"""What the kernel part of svc-routes reports."""

from collections.abc import Mapping

from svc._core.cidr import Cidr
from svc.routes.wanted import Way
from svc.values import dataclass, field


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one message was refused: the errno, and what the kernel says."""

    errno: int
    text: str


@dataclass(frozen=True, slots=True)
class Foreign:
    """A route of another program to the same network: its protocol number, and its way in words."""

    protocol: int
    text: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of bringing the kernel to a state: own routes now there, refused ones, and networks with foreign routes.

    `problems` are sentences about devices, NAT and forwarding. `unwanted` own routes are there besides, and may be deleted."""

    routes: Mapping[Cidr, Way] = field(default_factory=dict)
    failures: Mapping[Cidr, Failure] = field(default_factory=dict)
    foreign: Mapping[Cidr, Foreign] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    unwanted: int = 0
