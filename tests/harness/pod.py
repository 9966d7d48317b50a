"""One attachment of a container from the runtime's side: the arguments of its calls, and the result of its ADD."""

import copy
import json
from dataclasses import dataclass
from typing import Any

from harness.netns import Netns
from harness.node import Called, Calling, Node


@dataclass
class Pod:
    """An attachment. Every call has the same arguments, as runtimes must give them. A test can change the fields in between."""

    node: Node
    netns: Netns
    container: str
    config: dict[str, Any]
    ifname: str = "eth0"
    args: str = ""
    plugin: str = "svc"
    result: Any = None

    def call(self, verb: str, *, netns: str | None = None, **changes: Any) -> Called:
        """Call the plugin. `changes` apply to the network configuration of this call only."""
        return self.begin(verb, netns=netns, **changes).result()

    def begin(self, verb: str, *, netns: str | None = None, **changes: Any) -> Calling:
        """Start the same call without waiting for it."""
        return self.node.begin(
            verb, self.config | changes, plugin=self.plugin, container=self.container,
            netns=self.netns.path if netns is None else netns, ifname=self.ifname, args=self.args,
        )  # fmt: skip

    def add(self, **changes: Any) -> Any:
        """Return the result of a successful ADD, and keep it for later calls."""
        called = self.call("ADD", **changes)
        assert called.status == 0, called
        self.result = called.output
        return called.output

    def check(self, **changes: Any) -> Called:
        """Call CHECK with the result of the ADD, as runtimes do."""
        return self.call("CHECK", **{"prevResult": self.result, **changes})

    def delete(self, **changes: Any) -> None:
        called = self.call("DEL", **changes)
        assert (called.status, called.output) == (0, None), called

    @property
    def addresses(self) -> list[str]:
        return [ip["address"].split("/")[0] for ip in self.result["ips"]]

    @property
    def host_name(self) -> str:
        return str(self.result["interfaces"][0]["name"])

    @property
    def host_link(self) -> dict[str, Any]:
        """Return the host interface, with all details of `ip -d`."""
        (link,) = self.node.netns.ip("-d", "link", "show", "dev", self.host_name)
        return dict(link)

    def failed(self, verb: str, **changes: Any) -> Called:
        """Require that a call fails as the CNI specification says, with an error object on standard output."""
        called = self.call(verb, **changes)
        assert called.status != 0, called
        assert set(called.output) == {"cniVersion", "code", "msg", "details"}, called
        return called

    def copy(self, **changes: Any) -> "Pod":
        """Return another attachment with the same arguments except the changed ones."""
        other = copy.copy(self)
        other.result = None
        other.config = json.loads(json.dumps(self.config))
        for name, value in changes.items():
            assert hasattr(other, name), name
            setattr(other, name, value)
        return other


def refused(pod: Pod, code: int, *words: str) -> None:
    """Require that an ADD fails with this code, and that its message and details contain the words."""
    error = pod.failed("ADD").output
    assert error["code"] == code, error
    for word in words:
        assert word in f"{error['msg']}: {error['details']}", error
