"""A temporary node whose datastore is shared with other nodes."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from harness import forks
from harness.audit import IpamAudit
from harness.datastores import Site, discard_claim, session
from harness.netns import Netns
from harness.node import Node, agent_with, netconf
from harness.pod import Pod
from harness.port_forward import PortForward
from harness.state import pod_links
from svc.attach import teardown
from svc.attach.journal import Journal
from svc.datastore.etcd import connection

CONTAINER = "0123456789abcdef"

# An agent with less than half of the normal timeouts for a datastore.
IMPATIENT = agent_with({f"{connection.__name__}.CALL_SECONDS": 4.0, f"{teardown.__name__}.ANSWER_SECONDS": 2.0})


class ClusterNode(Node):
    """A node, with its name in the datastore. Each object is a new machine of that name.

    It uses the datastore of the first site, and reaches the servers of the others.
    """

    def __init__(
        self, directory: Path, name: str, *sites: Site, agent: bool = True, agent_program: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.site = sites[0]
        self._agent_modules = forks.CLUSTER_MODULES if self.site.port else forks.MODULES
        self._ways: dict[int, PortForward] = {}
        discard_claim(self.site, name)
        super().__init__(directory, agent=agent, agent_program=agent_program)
        self._connect({site.port for site in sites if site.port})

    def __enter__(self) -> "ClusterNode":
        return self

    def netconf(self, **changes: Any) -> dict[str, Any]:
        return netconf(**{"nodename": self.name, **self.site.config, **changes})

    def pod(self, netns: Netns, container: str = CONTAINER, *, args: str = "", ifname: str = "eth0", **config: Any) -> Pod:
        """Return one attachment; options that are not fields of a pod go to its network configuration."""
        config = self.netconf(**config)
        return Pod(self, netns, container, config, ifname, args, str(config["type"]))

    def ctl(self, *arguments: str, **options: Any) -> CompletedProcess[str]:
        """Run svcctl on the node's datastore, as an administrator."""
        file = self.directory / "netconf.json"
        file.write_text(json.dumps(self.netconf(**self.site.administration)))
        return self.svcctl("--netconf", str(file), *arguments, **options)

    @contextmanager
    def cut_off(self, *sites: Site) -> Iterator[None]:
        """Make the servers of these sites, or of all, unreachable inside the `with` block."""
        ports = {site.port for site in sites} or set(self._ways)
        self._disconnect(ports)
        try:
            yield
        finally:
            self._connect(ports)

    @contextmanager
    def silenced(self, site: Site) -> Iterator[None]:
        """Stop the replies of the server inside the `with` block."""
        forward = self._ways[site.port]
        forward.stop()
        try:
            yield
        finally:
            forward.go_on()

    def close(self) -> None:
        super().close()
        self._disconnect(set(self._ways))

    def _connect(self, ports: set[int]) -> None:
        self._ways |= {port: PortForward(self.netns, port) for port in ports}

    def _disconnect(self, ports: set[int]) -> None:
        for port in ports:
            self._ways.pop(port).close()


def audit(nodes: Sequence[ClusterNode]) -> IpamAudit:
    """Read the owner of each address from the shared datastore and every node's journal."""
    with ExitStack() as stack:
        store = stack.enter_context(session(nodes[0].site))
        journals = [stack.enter_context(closing(Journal(node.state_dir / "journal.db"))) for node in nodes]
        return IpamAudit.read(store, *journals)


def disagreements(nodes: Sequence[ClusterNode]) -> list[str]:
    """Return the contradictions between datastore, journals and kernels."""
    links = {name: index for node in nodes for name, index in pod_links(node).items()}
    return audit(nodes).disagreements(links)


def remains(nodes: Sequence[ClusterNode]) -> list[str]:
    """Return what is left of pods."""
    links = [f"interface {name}" for node in nodes for name in pod_links(node)]
    return [*audit(nodes).entries(), *links]
