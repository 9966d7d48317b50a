"""Masquerading of packets from pods to the outside: one table of nftables, written as a whole when something has changed."""

from collections.abc import Iterable, Iterator
from typing import Final

from svc._core.cidr import Cidr
from svc.routes import nft
from svc.routes.nft import Chain, NftProblem
from svc.routes.wanted import Nat

_FAMILIES: Final = {4: ("ipv4_addr", "ip"), 6: ("ipv6_addr", "ip6")}


class NatTable:
    """The table of svc-routes in the network namespace of the calling thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._written: Nat | None = None
        self._listing = ""  # of the table as it was written
        self._is_gone = False  # an earlier process may have left it

    def bring(self, nat: Nat | None, *, is_check: bool, may_delete: bool) -> None:
        """Write the table if other networks are wanted, and after a check if it is not as it was written. Raise NftProblem.

        Without `may_delete` no network is removed from it: a table of an earlier process stays as it is."""
        if nat is None:
            if may_delete and not self._is_gone:
                self.delete()
            return
        if not may_delete:
            if self._written is None and self._list():
                return
            nat = _union(nat, self._written or nat)
        if nat == self._written and not (is_check and self._list() != self._listing):
            return
        self._written, self._is_gone = None, False
        nft.run("-f", "-", stdin=table_text(self._name, nat))
        self._listing = self._list()
        self._written = nat if self._listing else None  # it was deleted in between, and is written again

    def exists(self) -> bool:
        """Return whether the table is there, as far as nft can tell."""
        return not self._is_gone and bool(self._list())

    def delete(self) -> None:
        """Delete the table if it exists. Raise NftProblem."""
        self._written = None
        nft.run("-f", "-", stdin=f"table inet {self._name}\ndelete table inet {self._name}\n")
        self._is_gone = True

    def _list(self) -> str:
        try:
            return nft.run("list", "table", "inet", self._name)
        except NftProblem:
            return ""


def _union(nat: Nat, other: Nat) -> Nat:
    return Nat(nat.pools | other.pools, nat.masqueraded | other.masqueraded)


def table_text(name: str, nat: Nat) -> str:
    """Return the input of nft that replaces the table."""
    return "\n".join([f"table inet {name}", f"delete table inet {name}", f"table inet {name} {{", *_body(nat), "}", ""])


def drop_policies(chains: Iterable[Chain], name: str) -> list[str]:
    """Return a sentence for each chain of another table that drops forwarded packets by its policy."""
    return [
        f"chain {chain.name!r} of table '{chain.family} {chain.table}' drops forwarded packets that no rule accepts: "
        "accept those of the pools there"
        for chain in chains
        if chain.hook == "forward" and chain.policy == "drop" and chain.table != name
    ]


def _body(nat: Nat) -> Iterator[str]:
    for version, (kind, _) in _FAMILIES.items():
        yield from _set(f"pools{version}", kind, version, nat.pools)
        yield from _set(f"nat{version}", kind, version, nat.masqueraded)
    yield "\tchain postrouting {"
    yield "\t\ttype nat hook postrouting priority srcnat; policy accept;"
    for version, (_, word) in _FAMILIES.items():
        yield f"\t\t{word} saddr @nat{version} {word} daddr != @pools{version} masquerade fully-random"
    yield "\t}"


def _set(name: str, kind: str, version: int, networks: Iterable[Cidr]) -> Iterator[str]:
    yield f"\tset {name} {{"
    yield f"\t\ttype {kind}"
    yield "\t\tflags interval"
    elements = ", ".join(str(network) for network in _outermost(networks, version))
    if elements:
        yield f"\t\telements = {{ {elements} }}"
    yield "\t}"


def _outermost(networks: Iterable[Cidr], version: int) -> list[Cidr]:
    """Return the networks of a version without those inside others, because intervals of a set must not overlap."""
    found: list[Cidr] = []
    for network in sorted(network for network in networks if network.version == version):
        if not (found and network in found[-1]):
            found.append(network)
    return found
