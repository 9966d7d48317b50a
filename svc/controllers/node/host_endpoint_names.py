"""Which nodes have host endpoints of which names."""

from collections.abc import Callable, Collection, Iterable
from threading import Lock


class HostEndpointNames:
    """The names of host endpoints by node. Thread-safe. `default_name` returns the name that a node makes without templates.

    Nodes whose names make the same name of a host endpoint share it. The one that makes it without templates has it, or else
    the first one in the alphabet.
    """

    def __init__(self, default_name: Callable[[str], str]) -> None:
        self._default_name = default_name
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
            nodes = self._nodes.get(name, ())
            if len(nodes) < 2:  # nearly always: no name is computed
                return next(iter(nodes), "")
            return self._ranked(name)[0]

    def all(self) -> set[str]:
        """Return the names of all host endpoints."""
        with self._lock:
            return set(self._nodes)

    def shared(self) -> dict[str, list[str]]:
        """Return the names that several nodes make, with these nodes. The first one has the host endpoint."""
        with self._lock:
            return {name: self._ranked(name) for name, nodes in self._nodes.items() if len(nodes) > 1}

    def _ranked(self, name: str) -> list[str]:
        return sorted(self._nodes[name], key=lambda node: (self._default_name(node) != name, node))
