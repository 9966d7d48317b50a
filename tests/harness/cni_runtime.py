"""A small runtime that runs chains of plugins as libcni does: in the order of the list, and in reverse for DEL."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.enter_netns import entered
from harness.netns import Netns

Json = dict[str, Any]


class PluginError(Exception):
    """The error of a plugin."""

    def __init__(self, plugin: str, verb: str, error: Json, stderr: str) -> None:
        super().__init__(f"{verb} of {plugin}: {error.get('code')} {error.get('msg')}: {error.get('details')} {stderr}")
        self.plugin = plugin
        self.error = error


@dataclass
class Chain:
    """One attachment of one container to the network of a list.

    `paths` are the directories of plugins, in order of preference. `capabilities` has the runtime's values by capability
    (`portMappings`, ...), and a plugin gets those that it declares. `tools` is the PATH of the plugins.
    """

    netns: Netns  # the node's
    paths: list[Path]
    conflist: Json
    sandbox: Netns
    container: str = "c1"
    ifname: str = "eth0"
    args: str = ""
    capabilities: Json = field(default_factory=dict)
    tools: str = os.environ["PATH"]
    result: Json | None = None

    def add(self) -> Json:
        """Return the result of the last plugin.

        Raise PluginError if one fails; the effects of the previous plugins stay until `delete`.
        """
        previous: Json | None = None
        for plugin in self._plugins():
            previous = self._call("ADD", plugin, previous)
        self.result = previous
        assert previous is not None
        return previous

    def check(self) -> None:
        for plugin in self._plugins():
            self._call("CHECK", plugin, self.result)

    def delete(self) -> None:
        """Run the plugins in reverse. Each gets the result of the whole chain, except before version 0.4.0."""
        for plugin in reversed(self._plugins()):
            self._call("DEL", plugin, None if self._version in ("0.3.0", "0.3.1") else self.result)
        self.result = None

    @property
    def _version(self) -> str:
        return str(self.conflist["cniVersion"])

    def _plugins(self) -> list[Json]:
        return list(self.conflist["plugins"])

    def _call(self, verb: str, plugin: Mapping[str, Any], previous: Json | None) -> Json | None:
        with entered(self.netns):
            done = subprocess.run(
                [str(self._find(plugin["type"]))], input=json.dumps(self._netconf(plugin, previous)),
                env=self._environment(verb), capture_output=True, text=True, check=False,
            )  # fmt: skip
        output = json.loads(done.stdout) if done.stdout.strip() else None
        if done.returncode:
            raise PluginError(plugin["type"], verb, output or {}, done.stderr)
        assert output is None or isinstance(output, dict)
        return output

    def _netconf(self, plugin: Mapping[str, Any], previous: Json | None) -> Json:
        declared = plugin.get("capabilities", {})
        runtime_values = {name: self.capabilities[name] for name in self.capabilities if declared.get(name)}
        netconf = {name: value for name, value in plugin.items() if name != "capabilities"}
        netconf |= {"name": self.conflist["name"], "cniVersion": self._version}
        if runtime_values:
            netconf["runtimeConfig"] = runtime_values
        if previous is not None:
            netconf["prevResult"] = previous
        return netconf

    def _environment(self, verb: str) -> dict[str, str]:
        return {
            "CNI_COMMAND": verb, "CNI_CONTAINERID": self.container, "CNI_NETNS": self.sandbox.path, "CNI_IFNAME": self.ifname,
            "CNI_ARGS": self.args, "CNI_PATH": os.pathsep.join(map(str, self.paths)), "PATH": self.tools,
        }  # fmt: skip

    def _find(self, name: str) -> Path:
        for path in self.paths:
            if (path / name).exists():
                return path / name
        raise FileNotFoundError(f"no plugin {name!r} in {', '.join(map(str, self.paths))}")
