"""Which nodes have host endpoints of which names."""

from collections.abc import Collection, Iterable
from threading import Lock


class HostEndpointNames:
    """The names of host endpoints by node. Thread-safe.

    Nodes whose names make the same name of a host endpoint share it. The first node in the alphabet has it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_node: dict[str, frozenset[str]] = {}
        self._nodes: dict[str, set[str]] = {}  # by name of a host endpoint

    def note(self, node: str, names: Collection[str]) -> set[str]:
        """Note the names of a node, none for a node that is gone. Return its former and present names."""
        with self._lock:
            before, now = self._by_node.pop(node, frozenset()), frozenset(names)
            for name in before - now:
                self._nodes[name].discard(node)
                if not self._nodes[name]:
                    del self._nodes[name]
            for name in now:
                self._nodes.setdefault(name, set()).add(node)
            if now:
                self._by_node[node] = now
        return {*before, *now}

    def keep(self, nodes: Iterable[str]) -> None:
        """Forget all other nodes."""
        with self._lock:
            others = self._by_node.keys() - set(nodes)
        for node in others:
            self.note(node, ())

    def node(self, name: str) -> str:
        """Return the node of a host endpoint; empty if no node has one of this name."""
        with self._lock:
            return min(self._nodes.get(name, ()), default="")

    def all(self) -> set[str]:
        """Return the names of all host endpoints."""
        with self._lock:
            return set(self._nodes)

    def shared(self) -> dict[str, list[str]]:
        """Return the names that several nodes make, with these nodes."""
        with self._lock:
            return {name: sorted(nodes) for name, nodes in self._nodes.items() if len(nodes) > 1}
