"""Two network namespaces that ping each other, attached by the real executable and agent, with addresses of svc's IPAM.

Run as root: `make demo`. Everything happens in separate namespaces, which are deleted at the end.
"""

import sys
import tempfile
from pathlib import Path

from harness.netns import Netns
from harness.node import POOL4, POOL6, Called, Node, netconf


def main() -> int:
    with Netns("pod-a") as a, Netns("pod-b") as b, Node(Path(tempfile.mkdtemp(prefix="svc-demo-"))) as node:
        print(f"node      namespace {node.netns.name}, agent pid {node.agent_pid}, embedded store in {node.state_dir}")
        node.apply_pools()
        print(f"pools     {POOL4} and {POOL6}, by `svcctl pool apply`")
        config = netconf(ipam={"assign_ipv6": "true"})
        addresses = [_add(node, config, container, pod) for container, pod in (("pod-a", a), ("pod-b", b))]
        reached = [
            _ping(source, target) for source, targets in zip((a, b), reversed(addresses), strict=True) for target in targets
        ]
        for container, pod in (("pod-a", a), ("pod-b", b)):
            called = node.call("DEL", config, netns=pod.path, container=container)
            print(f"DEL       {container}: {_agent_time(called)}")
        left = [name for name in node.netns.links() if name.startswith("svc")]
        print(f"left over interfaces: {len(left)}")
    return 0 if all(reached) and not left else 1


def _add(node: Node, config: dict[str, object], container: str, pod: Netns) -> list[str]:
    called = node.call("ADD", config, netns=pod.path, container=container)
    if called.status:
        raise SystemExit(f"ADD failed: {called.output}")
    addresses = [ip["address"].split("/")[0] for ip in called.output["ips"]]
    print(f"ADD       {container}: {' '.join(addresses)} by {called.output['interfaces'][0]['name']}, {_agent_time(called)}")
    return addresses


def _agent_time(called: Called) -> str:
    """Return the time from the log line that every call prints, on standard error too."""
    return f"{called.stderr.rpartition('total=')[2].strip()} ms in the agent"


def _ping(source: Netns, target: str) -> bool:
    done = source.run("ping", "-c", "2", "-i", "0.2", "-W", "2", target, check=False)
    summary = next((line for line in done.stdout.splitlines() if "packets transmitted" in line), done.stderr.strip())
    print(f"ping      {source.name.split('-')[2]} -> {target}: {summary}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
