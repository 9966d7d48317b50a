"""Installations of the wheel, without and with each of its extras, in an otherwise empty environment."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.bare import BareNode, build_wheel, environment, with_extra
from harness.cluster_node import ClusterNode
from harness.datastores import EmbeddedSite, Site, furnish
from harness.netns import Netns
from harness.pod import Pod
from harness.shim import ROOT

pytestmark = pytest.mark.slow

ALL_HELP = """
import sys
import click
from click.testing import CliRunner
from svc.ctl.main import main

def show(command, words):
    done = CliRunner().invoke(main, [*words, "--help"], catch_exceptions=False)
    assert done.exit_code == 0 and "Usage: " in done.output, (words, done.output)
    print(*words)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            show(command.get_command(context, name), [*words, name])

show(main, [])
"""
STORES: dict[str, dict[str, Any]] = {
    "etcd": {"datastore_type": "etcdv3", "etcd_endpoints": "http://127.0.0.1:1"},
    "orch": {"datastore_type": "orch", "orch": {"orch_api_root": "http://127.0.0.1:1"}},
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("env"), wheel)


@pytest.fixture(scope="module", params=["", "etcd", "orch"], ids=["bare", "etcd", "orch"])
def extra(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def programs(extra: str, bare: Path) -> Iterator[Path]:
    with with_extra(bare, *filter(None, [extra])):
        yield bare


@pytest.fixture(scope="module")
def shared(extra: str, request: pytest.FixtureRequest) -> Iterator[Site | None]:
    """Return the datastore of the extra, with pools."""
    if not extra:
        yield None
        return
    site: Site = request.getfixturevalue(f"{extra}_site")
    furnish(site, "node1")
    yield site
    site.clear()


def pod(node: ClusterNode, sandbox: Netns, name: str) -> Pod:
    node.site.add_pod(name)
    return node.pod(sandbox, name, args=f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}")


def output(*command: object) -> str:
    """Return the output of a program that must succeed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, env=clean)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def head_of_checkout() -> str:
    """Return the commit of the sources; empty if they are not those of a repository."""
    if not (ROOT / ".git").exists():
        return ""
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_every_command_shows_its_help(programs: Path) -> None:
    shown = output(programs / "python", "-I", "-c", ALL_HELP).splitlines()
    assert {"install", "pool apply", "crd print", "clusterinfo lock", "ipam show"} <= set(shown)
    for command in ([], ["run"]):
        assert "usage: svc-agent" in output(programs / "svc-agent", *command, "--help").lower()
    assert "Usage: svcctl" in output(programs / "svcctl", "--help")


def test_version_and_definitions_are_printed_without_a_server(programs: Path) -> None:
    version = output(programs / "svc", "-v")
    assert version.strip() != "0.0.0"
    assert output(programs / "svcctl", "--version") == f"svcctl {version}"
    client = json.loads(output(programs / "svcctl", "version", "--client", "-o", "json"))["client"]
    assert client["version"] == version.strip()
    assert (client["commit"] or "").removesuffix("-dirty") == head_of_checkout()
    assert "kind: CustomResourceDefinition" in output(programs / "svcctl", "crd", "print")
    assert "kind: ClusterRole" in output(programs / "svcctl", "crd", "role")


@pytest.mark.root
def test_pods_are_wired(programs: Path, shared: Site | None, tmp_path: Path) -> None:
    """The agent wires two pods. The DEL of one runs without the agent."""
    with ExitStack() as stack:
        node = stack.enter_context(BareNode(programs, tmp_path / "node", shared or EmbeddedSite(tmp_path / "node" / "state")))
        if shared is None:
            node.apply_pools()
        one, other = (pod(node, stack.enter_context(Netns("pod")), name) for name in ("web-0", "web-1"))
        one.add()
        other.add()
        one.netns.run("ping", "-c", "1", "-w", "5", other.addresses[0])
        one.delete()
        assert node.stop_agent() == 0
        other.delete()
        assert not [name for name in node.netns.links() if name.startswith("svc")]


@pytest.mark.root
def test_error_names_the_missing_extra(programs: Path, extra: str, tmp_path: Path) -> None:
    """Other datastores still work."""
    with BareNode(programs, tmp_path / "node", EmbeddedSite(tmp_path / "node" / "state")) as node, Netns("pod") as sandbox:
        for needed in STORES.keys() - {extra}:
            error = node.pod(sandbox, "c1", **STORES[needed]).failed("ADD").output
            assert f"-m pip install 'svc-cni[{needed}]'" in error["details"], error
        node.apply_pools()
        node.pod(sandbox, "c2").add()
