"""Containers on reference plugins, which call svc for their addresses."""

from pathlib import Path
from typing import Any

import pytest

from harness.node import Called
from harness.pod import Pod

REFERENCE = Path("/usr/lib/cni")


def require_plugin(kind: str) -> None:
    """Skip the test if the plugin is not installed."""
    if not (REFERENCE / kind).exists():
        pytest.skip("needs Debian's containernetworking-plugins")


class Attached:
    """A container on a reference plugin, which calls svc for its addresses."""

    def __init__(self, pod: Pod, kind: str) -> None:
        self.pod = pod
        self._kind = kind
        self._path = f"{pod.node.bin_dir}:{REFERENCE}"
        self.result: Any = None

    def call(self, verb: str, **changes: Any) -> Called:
        pod = self.pod
        return pod.node.call(
            verb, pod.config | changes, plugin=str(REFERENCE / self._kind), container=pod.container, netns=pod.netns.path,
            extra={"CNI_PATH": self._path}, args=pod.args,
        )  # fmt: skip

    def add(self) -> "Attached":
        called = self.call("ADD")
        assert called.status == 0, called
        self.result = called.output
        return self

    @property
    def addresses(self) -> list[str]:
        return [str(ip["address"]).split("/")[0] for ip in self.result["ips"]]

    @property
    def address(self) -> str:
        return self.addresses[0]
