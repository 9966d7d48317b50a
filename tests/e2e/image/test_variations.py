"""Pods of svc with less than the manifests give them, and the pod of the controllers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from harness.kube import Kube
from harness.kubelet_node import BIN_DIR, CONF_DIR
from harness.svc_pods import AGENT, CONTROLLERS, CONTROLLERS_POD, NODE_POD, SvcPods, variables
from svc.dataplane.sysctls import VARIABLE

pytestmark = [pytest.mark.root, pytest.mark.server, pytest.mark.slow]

Json = dict[str, Any]

SANDBOX = "less"


@pytest.fixture
def sandbox(pods: SvcPods, kube: Kube) -> Iterator[None]:
    """Make a pod without containers and its network namespace. End the pod of the node after the test."""
    pods.real.node.site.add_pod(SANDBOX, "node2")
    path = f"/run/netns/{SANDBOX}"
    pods.real.host("sh", "-c", f"mkdir -p /run/netns && touch {path} && unshare --net={path} true")
    yield
    pods.end(NODE_POD)
    kube.uproot(f"pods/default/{SANDBOX}")
    pods.real.host("sh", "-c", f"umount {path} && rm {path}")


def agent_of(spec: Json) -> Json:
    found: Json = next(each for each in spec["containers"] if each["name"] == AGENT)
    return found


def refused_add(pods: SvcPods) -> str:
    """Return the error object of an ADD, which must fail."""
    found = json.loads(pods.real.host("cat", str(CONF_DIR / "10-svc.conflist")).stdout)
    entry = found["plugins"][0] | {"name": found["name"], "cniVersion": found["cniVersion"]}
    called = variables("ADD", SANDBOX, f"/var/run/netns/{SANDBOX}")
    done = pods.real.host(str(BIN_DIR / "svc"), stdin=json.dumps(entry), check=False, **called)
    assert done.returncode == 1, done
    return done.stdout


@pytest.mark.parametrize("missing", ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"])
def test_each_capability_is_needed(pods: SvcPods, sandbox: None, missing: str) -> None:
    def without(spec: Json) -> None:
        agent_of(spec)["securityContext"]["capabilities"]["add"].remove(missing.removeprefix("CAP_"))

    pods.start_node_pod(without)
    assert "CAP_NET_ADMIN and CAP_SYS_ADMIN" in refused_add(pods)


def test_writable_sysctls_are_needed(pods: SvcPods, sandbox: None) -> None:
    """The error names the variable with which an agent in a container finds them."""

    def without(spec: Json) -> None:
        agent = agent_of(spec)
        agent["env"] = [each for each in agent["env"] if each["name"] != VARIABLE]

    pods.start_node_pod(without)
    assert VARIABLE in refused_add(pods)


def test_agent_refuses_sysctls_that_are_read_only(pods: SvcPods, sandbox: None) -> None:
    def protected(spec: Json) -> None:
        for mount in agent_of(spec)["volumeMounts"]:
            if mount["mountPath"] == "/host/proc/sys":
                mount["readOnly"] = True

    pods.start_node_pod(protected, ready=False)
    pods.real.wait("the agent has ended", lambda: f"{VARIABLE} = '/host/proc/sys' cannot be used" in pods.log(AGENT))


def test_controllers_run_as_another_user_than_root(pods: SvcPods) -> None:
    pods.start_controllers()
    try:
        pods.wait_ready(CONTROLLERS_POD)
        status = pods.real.host("cat", f"/proc/{pods.pid(CONTROLLERS)}/status").stdout
        assert "Uid:\t10001\t10001\t10001\t10001" in status
        assert "CapEff:\t0000000000000000" in status
        assert "Usage" in pods.run_in(CONTROLLERS, "svc-controllers", "--help").capitalize()
        assert "Read-only file system" in pods.run_in(CONTROLLERS, "touch", "/tmp/../new", check=False)
    finally:
        pods.end(CONTROLLERS_POD, seconds=0)
