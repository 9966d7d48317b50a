"""What the program reports: each network with its way and the reason, as JSON and as a table."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from svc._core.cidr import Cidr
from svc.routes.applied import Applied, Failure
from svc.routes.planning import Row
from svc.routes.reasons import Reason
from svc.routes.wanted import Blackhole, Direct, Way
from svc.values import dataclass, field

Json = dict[str, Any]

OFF, WAITING, IDLE, WORKING = STATES = ("off", "waiting", "idle", "working")
STATE_TEXTS: Final = {
    OFF: "off: the mode is off, and nothing is changed",
    WAITING: "waiting: the datastore was not read completely yet",
    IDLE: "idle: another program routes",
    WORKING: "working",
}
WITHOUT_NEED: Final = frozenset({Reason.OWN_SINGLE, Reason.LOCAL, Reason.LOAD_BALANCER})
"""Reasons of networks that need no route."""

_COLUMNS: Final = ("NETWORK", "NODE", "NEXT HOP", "REASON")


@dataclass(frozen=True, slots=True)
class Report:
    """The last outcome. `traces` and `problems` are sentences. `remaining` are own routes that stay in state `idle`."""

    state: str
    rows: Mapping[Cidr, Row] = field(default_factory=dict)
    applied: Applied = field(default_factory=Applied)
    failures: Mapping[Cidr, Failure] = field(default_factory=dict)
    traces: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    held: int = 0
    remaining: int = 0

    def reasons(self) -> Iterator[tuple[Cidr, Row, Reason, str]]:
        """Yield each network with its row, the reason as the kernel has it, and what is known besides."""
        for network, row in self.rows.items():
            reason, text = self._reason(network, row)
            yield network, row, reason, text

    def missing(self) -> Iterator[tuple[Row, Reason, str]]:
        """Yield the rows that need a route and have none."""
        for _, row, reason, text in self.reasons():
            if (row.way is None or reason is not row.reason) and reason not in WITHOUT_NEED:
                yield row, reason, text

    def _reason(self, network: Cidr, row: Row) -> tuple[Reason, str]:
        if row.way is None:
            return row.reason, ""
        if failure := self.failures.get(network):
            return Reason.REFUSED, failure.text
        if foreign := self.applied.foreign.get(network):
            return Reason.FOREIGN, f"protocol {foreign.protocol}, {foreign.text}"
        if self.applied.routes.get(network) != row.way:
            return Reason.NOT_YET, ""
        return row.reason, ""

    def document(self) -> Json:
        """Return everything as JSON."""
        rows = [
            {
                "network": str(network),
                "node": row.node,
                "pool": row.pool,
                "nextHop": next_hop(row.way),
                "inKernel": row.way is not None and self.applied.routes.get(network) == row.way,
                "reason": reason.name,
                "text": f"{reason.value}: {text}" if text else reason.value,
            }
            for network, row, reason, text in sorted(self.reasons(), key=lambda item: item[0])
        ]
        return {
            "state": self.state,
            "traces": list(self.traces),
            "problems": list(self.problems),
            "heldDeletions": self.held,
            "remainingRoutes": self.remaining,
            "routes": len(self.applied.routes),
            "conflicts": len(self.applied.foreign),
            "missing": dict(sorted(Counter(reason.name for _, reason, _ in self.missing()).items())),
            "networks": rows,
        }


def next_hop(way: Way | None) -> str:
    """Return a way in words; empty without a way."""
    if way is None:
        return ""
    if isinstance(way, Blackhole):
        return "blackhole"
    return str(way.gateway) if isinstance(way, Direct) else f"{way.gateway} ({way.kind})"


def as_table(document: Json) -> str:
    """Return the document for people."""
    lines = [f"state: {STATE_TEXTS.get(document['state'], document['state'])}"]
    lines += [f"trace: {text}" for text in document["traces"]]
    lines += [f"problem: {text}" for text in document["problems"]]
    if held := document["heldDeletions"]:
        lines.append(f"{held} routes are kept that the datastore does not need any more: see docs/routes.md, Held deletions")
    if remaining := document["remainingRoutes"]:
        lines.append(f"{remaining} own routes stay until the other program has routes there: see docs/routes.md, Other agents")
    cells = [[row["network"], row["node"], row["nextHop"] or "-", row["text"]] for row in document["networks"]]
    table = [list(_COLUMNS), *cells] if cells else []
    widths = [max(len(row[column]) for row in table) if table else 0 for column in range(len(_COLUMNS) - 1)]
    for row in table:
        lines.append("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]))
    return "\n".join(lines) + "\n"


def as_json(document: Json) -> str:
    """Return the document for programs."""
    return json.dumps(document, indent=2) + "\n"
