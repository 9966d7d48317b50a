"""A node whose datastore gets other settings, or is replaced by a copy."""

import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode
from harness.datastores import OrchSite, Site, session
from harness.ipam import blocks, put
from harness.node import agent_with
from harness.pod import Pod
from harness.port_forward import PortForward
from svc.agent import maintenance, server
from svc.attach import store_identity, teardown
from svc.attach.datastore_ready import KEY as READY
from svc.attach.journal import Journal
from svc.datastore.api import Backend
from svc.ipam.blocks import allocations
from svc.model.resource import Resource
from svc.netconf.installed import Installed, add_installed

# An agent that retries several times a second, and waits less for a datastore that does not answer.
AGENT = agent_with(
    {
        f"{server.__name__}.PERIOD_SECONDS": 0.5,
        f"{server.__name__}.LOOK_SECONDS": 0.5,
        f"{maintenance.__name__}.RETRY_SECONDS": 0.5,
        f"{teardown.__name__}.ANSWER_SECONDS": 2.0,
        f"{store_identity.__name__}.HOLD_SECONDS": 2.0,
    }
)
SECONDS = 3.0  # in which such an agent looks several times
WITH_OR_WITHOUT = pytest.mark.parametrize("agent", [True, False], ids=["agent", "oneshot"])


@dataclass
class Moving:
    """A node whose datastore gets another address: `old` and `new` are the parts of the network configuration."""

    node: ClusterNode
    old: dict[str, Any]
    new: dict[str, Any]
    inside: int
    _undo: ExitStack = field(default_factory=ExitStack)

    def open_new(self) -> None:
        """Make the datastore reachable by the new settings."""
        if isinstance(self.node.site, OrchSite):
            Path(self.new["orch"]["kubeconfig"]).write_bytes(self.node.site.kubeconfig.read_bytes())
        else:
            self._undo.callback(PortForward(self.node.netns, self.node.site.port, self.inside).close)

    def reach(self, port: int) -> None:
        """Let the node reach this port of the test's loopback."""
        self._undo.callback(PortForward(self.node.netns, port).close)

    def close_old(self) -> None:
        """Make it unreachable by the old settings. Restart a running agent that has read the old kubeconfig."""
        if not isinstance(self.node.site, OrchSite):
            self._undo.enter_context(self.node.cut_off())
            return
        Path(self.old["orch"]["kubeconfig"]).unlink()
        if self.node.has_agent:
            self.node.stop_agent()
            self.node.start_agent(recovered=False)

    def install_new(self) -> None:
        """Record the network with the new settings."""
        self.install(self.new)

    def install(self, settings: dict[str, Any]) -> None:
        """Record the network with these settings as `svcctl install` does: only the agent uses it."""
        path = self.node.directory / "net.conflist"
        plugin = self.node.netconf(**settings)
        path.write_text(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]}))
        add_installed(self.node.state_dir, Installed("", str(self.node.bin_dir), (), str(path)))

    def settings(self) -> list[str]:
        """Return the location of the datastore in each row."""
        with closing(Journal(self.node.state_dir / "journal.db")) as journal:
            return [record.settings.get("etcd_endpoints") or record.settings["kubeconfig"] for record in journal.all()]

    def close(self) -> None:
        self._undo.close()


MakePod = Callable[..., Pod]


def identify(store: Backend, guid: str) -> None:
    put(store, READY, Resource(READY.kind, {"name": READY.name}, {"datastoreReady": True, "clusterGUID": guid}))


def by(pod: Pod, settings: dict[str, Any]) -> Pod:
    """Return the same attachment, for calls with these settings."""
    return pod.copy(config=pod.config | settings)


def allocated(site: Site) -> set[str]:
    """Return the allocated addresses. An agent may be writing them, so that handles and blocks differ for a moment."""
    with session(site) as store:
        return {str(address) for block in blocks(store).values() for _, address in allocations(block)}
