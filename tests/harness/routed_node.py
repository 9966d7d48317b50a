"""Nodes on two subnets with a router between them, each with svc-routes, and a host outside."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.cluster_node import ClusterNode
from harness.datastores import Site
from harness.enter_netns import entered
from harness.netns import Netns, run

SUBNETS = {"a": ("198.18.1", "fd99:1:"), "b": ("198.18.2", "fd99:2:")}
READY_SECONDS = 30.0
STOP_SECONDS = 20.0
MEBIBYTES = 10


def addresses_of(subnet: str, number: int) -> dict[int, str]:
    """Return the addresses of a node, by IP version."""
    v4, v6 = SUBNETS[subnet]
    return {4: f"{v4}.{number}", 6: f"{v6}:{number}"}


class Fabric:
    """The subnets, and the router between them, which knows no pods."""

    def __init__(self) -> None:
        self.router = Netns("router")
        lines = ["link set lo up"]
        for name, (v4, v6) in SUBNETS.items():
            lines += [f"link add net-{name} type bridge", f"link set net-{name} up"]
            lines += [f"address add {v4}.254/24 dev net-{name}", f"address add {v6}:fe/64 dev net-{name} nodad"]
        run("ip", "-n", self.router.name, "-batch", "-", stdin="\n".join(lines))
        self.router.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")

    def connect(self, netns: Netns, subnet: str, number: int) -> None:
        """Give a namespace an uplink with the address of this number, and its default routes."""
        v4, v6 = SUBNETS[subnet]
        port = f"{subnet}{number}"
        run("ip", "-n", netns.name, "link", "add", "uplink", "type", "veth", "peer", "name", port, "netns", self.router.name)
        run("ip", "-n", self.router.name, "link", "set", port, "master", f"net-{subnet}", "up")
        lines = ["link set lo up", "link set uplink up"]
        lines += [f"address add {v4}.{number}/24 dev uplink", f"address add {v6}:{number}/64 dev uplink nodad"]
        lines += [f"route add default via {v4}.254", f"route add default via {v6}:fe"]
        run("ip", "-n", netns.name, "-batch", "-", stdin="\n".join(lines))

    def close(self) -> None:
        self.router.delete()


class RoutedNode(ClusterNode):
    """A node of the fabric, with its agent and svc-routes."""

    def __init__(self, directory: Path, name: str, site: Site, fabric: Fabric, subnet: str, number: int) -> None:
        self._uplink = (fabric, subnet, number)
        self._routes: subprocess.Popen[bytes] | None = None
        self.routes_log = directory / "routes.log"
        self.addresses = addresses_of(subnet, number)
        super().__init__(directory, name, site)

    def _give_uplink(self) -> None:
        fabric, subnet, number = self._uplink
        fabric.connect(self.netns, subnet, number)
        self.netns.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")

    def routes_command(self, command: str, *options: str) -> list[str]:
        """Return the command line of svc-routes for this node."""
        file = self.directory / "routes.json"
        file.write_text(json.dumps(self.netconf(**self.site.administration)))
        common = ["--netconf", str(file), "--state-dir", str(self.state_dir), "--run-dir", str(self.run_dir)]
        return [sys.executable, "-m", "svc.routes.main", command, *common, *options]

    def start_routes(self, *options: str, mode: str = "on", **environment: str) -> None:
        with self.routes_log.open("ab") as log:
            command = self.routes_command("run", "--mode", mode, *options)
            self._routes = self.netns.begin(*command, stderr=log, env={**os.environ, **environment})

    def stop_routes(self, number: int = signal.SIGTERM) -> int:
        """End svc-routes by a signal. Return its exit status."""
        assert self._routes is not None
        self._routes.send_signal(number)
        status = self._routes.wait(STOP_SECONDS)
        self._routes = None
        return status

    def routes(self, command: str, *options: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Carry out another command of svc-routes on the node."""
        return self.netns.run(*self.routes_command(command, *options), check=check)

    def report(self) -> dict[str, Any]:
        """Return what `svc-routes show -o json` prints; empty while it does not answer."""
        done = self.routes("show", "-o", "json", check=False)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found

    def reasons(self) -> dict[str, str]:
        return {row["network"]: row["reason"] for row in self.report().get("networks", ())}

    def await_report(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first report that meets the condition."""
        deadline = time.monotonic() + READY_SECONDS
        while not condition(report := self.report()):
            log = self.routes_log.read_text()
            assert time.monotonic() < deadline, (report, log)
            assert self._routes is not None, log
            assert self._routes.poll() is None, log
            time.sleep(0.1)
        return report

    def own_routes(self, version: int = 4) -> dict[str, dict[str, Any]]:
        """Return the routes of svc-routes, as `ip` shows them."""
        found = self.netns.ip(f"-{version}", "route", "show", "proto", str(self.site.names.route_protocol))
        return {route["dst"]: route for route in found}

    def close(self) -> None:
        if self._routes is not None:
            self.stop_routes(signal.SIGKILL)
        super().close()


@contextmanager
def echo_server(netns: Netns, address: str, seen: list[str]) -> Iterator[int]:
    """Receive everything that clients send to an address of the namespace, answer with its size, and note who sent it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with entered(netns):
        listening = socket.create_server((address, 0), family=family)

    def serve() -> None:
        while True:
            try:
                client, peer = listening.accept()
            except OSError:
                return
            with client:
                seen.append(str(peer[0]))
                size = 0
                while data := client.recv(1 << 16):
                    size += len(data)
                client.sendall(b"%d" % size)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(STOP_SECONDS)


def transfer(source: Netns, target: Netns, address: str, sender: str = "") -> str:
    """Send 10 MiB over TCP from one namespace to an address of another. Return the address that the receiver sees."""
    seen: list[str] = []
    with echo_server(target, address, seen) as port:
        with entered(source):
            client = socket.create_connection((address, port), READY_SECONDS, (sender, 0) if sender else None)
        with client:
            client.sendall(bytes(MEBIBYTES << 20))
            client.shutdown(socket.SHUT_WR)
            assert client.recv(64) == b"%d" % (MEBIBYTES << 20)
    (peer,) = seen
    return peer


def ping(source: Netns, address: str, *, count: int = 1, seconds: float = 2.0) -> bool:
    return source.run("ping", "-n", "-c", str(count), "-W", str(seconds), address, check=False).returncode == 0
