"""Temporary network namespaces."""

import itertools
import json
import os
import secrets
import subprocess
from contextlib import suppress
from types import TracebackType
from typing import Any

from harness.enter_netns import create, delete, entered

MARK = f"{os.getpid()}-{secrets.token_hex(4)}"  # part of the names and aliases that this process uses on the machine
_numbers = itertools.count()


class Netns:
    """A network namespace under /run/netns, deleted at the end of the `with` block."""

    has_files = False  # in /etc/netns. `ip netns exec` mounts them over those of /etc

    def __init__(self, label: str) -> None:
        number = next(_numbers)
        self.name = f"svc-{label}-{MARK}-{number}"
        self.path = f"/run/netns/{self.name}"
        if number:
            create(self.path)
        else:  # this also prepares the directory
            run("ip", "netns", "add", self.name)

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program inside. `ip netns exec`, which takes 2 ms, does it only if it has files to mount."""
        if self.has_files:
            return run("ip", "netns", "exec", self.name, *command, check=check)
        with entered(self):
            return run(*command, check=check)

    def begin(self, *command: str, **options: Any) -> "subprocess.Popen[bytes]":
        """Start a program inside, as `run` does."""
        if self.has_files:
            return subprocess.Popen(["ip", "netns", "exec", self.name, *command], **options)
        with entered(self):
            return subprocess.Popen(command, **options)

    def ip(self, *arguments: str) -> Any:
        """Return the decoded output of `ip -j ARGUMENTS` inside."""
        text = run("ip", "-n", self.name, "-j", *arguments).stdout
        return json.loads(text.replace("fan-map ", "") or "[]")  # a word that Ubuntu adds in iproute2 5.15

    def links(self) -> list[str]:
        """Return the names of the interfaces except the loopback."""
        return [link["ifname"] for link in self.ip("link") if link["ifname"] != "lo"]

    def addresses(self, ifname: str, scope: str = "global") -> list[str]:
        return [
            f"{item['local']}/{item['prefixlen']}"
            for link in self.ip("address", "show", "dev", ifname)
            for item in link.get("addr_info", ())
            if item["scope"] == scope
        ]

    def sysctl(self, path: str) -> str:
        return self.run("cat", f"/proc/sys/{path}").stdout.strip()

    def delete(self) -> None:
        with suppress(OSError):  # the test has deleted it
            delete(self.path)

    def __enter__(self) -> "Netns":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.delete()


def run(*command: str, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Return the completed program. If `check` is set and it failed, raise RuntimeError with its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, input=stdin)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}: {done.stdout}{done.stderr}")
    return done
