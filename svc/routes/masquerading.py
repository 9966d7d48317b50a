"""NAT of this node as svc-routes brings it and reports it: its own table, and the chains of other programs."""

from svc.names import Names
from svc.routes import legacy_tables, nft, traces
from svc.routes.nat import NatTable, drop_policies
from svc.routes.nft import NftProblem
from svc.routes.wanted import Nat


class Masquerading:
    """The NAT table, and what is wrong with it. For one thread."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._table = NatTable(names.nat_table)
        self._failed: Nat | None = None  # tried again with the next check, or if another one is wanted
        self._problem = ""  # of the last attempt
        self._search_problem = ""  # of the last search for chains
        self._policies: list[str] = []  # sentences about chains that drop forwarded packets
        self._is_due = True
        self._others_masquerade = False  # as the last search has found

    def forget(self) -> None:
        """Check the table at the next `bring`."""
        self._is_due = True

    def bring(self, nat: Nat | None, *, may_delete: bool) -> list[str]:
        """Bring the table to what is wanted. Return sentences about what is wrong with it, and about policies."""
        is_check = self._is_due
        if nat is None or nat != self._failed or is_check:  # otherwise routes would wait for nft, which may need seconds
            self._attempt(nat, may_delete=may_delete)
        if is_check and not self._problem:
            self._read_policies(nat)
        return [*self._problems(nat, self._problem), *self._policies]

    def stand_aside(self, nat: Nat | None, *, may_delete: bool) -> list[str]:
        """Bring the table to what is wanted if it is there; delete it if another program has NAT chains. Return problems."""
        self._problem = ""
        if self._others_masquerade:
            self._attempt(None, may_delete=True)
        elif self._table.exists():
            self._attempt(nat, may_delete=may_delete)
        return self._problems(nat, self._problem or self._search_problem)

    def foreign_chains(self) -> list[str]:
        """Return a sentence for each table with NAT chains of another program."""
        chains, self._search_problem = legacy_tables.chains(), ""
        try:
            chains += nft.chains()
        except NftProblem as problem:
            self._search_problem = str(problem)
        found = [*traces.of_chains(self._names, chains)]
        self._others_masquerade = bool(found)
        return found

    def delete(self) -> list[str]:
        """Delete the table. Return the problem, if there is one."""
        try:
            self._table.delete()
        except NftProblem as problem:
            return [str(problem)] if nft.is_installed() else []  # svc-routes makes its table only by nft
        return []

    def _attempt(self, nat: Nat | None, *, may_delete: bool) -> None:
        is_check, self._is_due = self._is_due, False
        self._failed, self._problem = None, ""
        try:
            self._table.bring(nat, is_check=is_check, may_delete=may_delete)
        except NftProblem as problem:
            self._failed, self._problem = nat, str(problem)

    def _read_policies(self, nat: Nat | None) -> None:
        try:
            self._policies = drop_policies([*nft.chains(), *legacy_tables.dropping()], self._names.nat_table)
        except NftProblem as problem:
            self._failed, self._problem = nat, str(problem)

    def _problems(self, nat: Nat | None, problem: str) -> list[str]:
        """Return a problem, if there is one and NAT is turned on: otherwise nothing is missed."""
        return [problem] if problem and nat is not None else []
